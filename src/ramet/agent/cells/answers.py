"""The calls of one cell, from their start until their answers go into the cell."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

import anyio

from ramet.agent.sandbox import STUCK
from ramet.agent.values import brief

LONGEST = 10**9  # seconds of a timer


class Answers:
    """Answers on their way into a parked cell, and the work that they come from.

    Timers follow the clock of the runtime while a clone or a function runs. When nothing else runs, the time until
    the next timer is skipped.
    """

    def __init__(self) -> None:
        self.started: set[int] = set()
        self._running: dict[int, anyio.CancelScope] = {}
        self._timers: dict[int, float] = {}  # when each is due
        self._skipped = 0.0  # seconds
        self._ready: dict[int, object] = {}
        self._arrived = anyio.Event()

    def give(self, number: int, answer: object) -> None:
        """The answer to a call. An exception is raised in the cell."""
        self.started.add(number)
        self._ready[number] = answer
        self._arrived.set()

    def begin(self, number: int) -> None:
        """A clone or a function is about to run for this call."""
        self._running[number] = anyio.CancelScope()

    async def run(self, number: int, work: Callable[[], Awaitable[object]]) -> None:
        """Run it and give its answer. If it was interrupted, that is an exception, given when all of it has ended."""
        answer: object = None
        with self._running[number] as scope:
            answer = await work()
        del self._running[number]
        self.give(number, _interrupted() if scope.cancel_called else answer)

    def set_timer(self, number: int, seconds: object) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds != seconds:
            self.give(number, TypeError(f"a time is a number of seconds, not {_shown(seconds)[:40]!r}"))
        else:
            self._timers[number] = self._now() + float(min(max(0, seconds), LONGEST))

    def wake(self, number: int) -> None:
        """End the wait of a parked task, unless something else is about to."""
        if number not in self._ready:
            self.give(number, None)

    def interrupt(self, number: int) -> None:
        """Raise in whatever awaits the call, and cancel what runs for it. A call that has not started never does."""
        scope = self._running.get(number)
        if scope is not None:
            scope.cancel()
        else:
            self._timers.pop(number, None)
            self.give(number, _interrupted())

    async def wait(self, pending: Collection[int]) -> dict[int, object]:
        """Wait for the first answer to a pending call, then take all that have arrived."""
        while True:
            ready = {number: answer for number, answer in self._ready.items() if number in pending}
            self._ready = {}
            self._arrived = anyio.Event()
            if ready:
                return ready
            if self._running:
                await self._arrival()
            elif not self._timers:
                return {number: RuntimeError(STUCK) for number in pending}
            else:
                self._skipped += max(0.0, min(self._timers.values()) - self._now())
            self._fire()

    async def _arrival(self) -> None:
        due = min(self._timers.values(), default=None)
        if due is None:
            await self._arrived.wait()
        else:
            with anyio.move_on_after(max(0.0, due - self._now())):
                await self._arrived.wait()

    def _fire(self) -> None:
        now = self._now()
        for number in [number for number, due in self._timers.items() if due <= now]:
            del self._timers[number]
            self.give(number, None)

    def _now(self) -> float:
        return anyio.current_time() + self._skipped


def _shown(value: object) -> str:
    return value if isinstance(value, str) else brief(value)


def _interrupted() -> BaseException:
    """`asyncio.CancelledError` in a cell: the interpreter has no exception of that name."""
    return KeyboardInterrupt("cancelled")
