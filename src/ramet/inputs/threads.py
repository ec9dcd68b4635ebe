"""Blocking functions in daemon threads: unlike those of anyio, one that hangs does not keep the program from ending."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio
import sniffio

MAX_THREADS = 64  # calls that may be running, those that were given up on included
Schedule = Callable[[Callable[[], object]], object]  # runs a function in the event loop, from any thread


@dataclass(slots=True)
class Outcome:
    """What a function returned or raised."""

    value: Any = None
    error: BaseException | None = None


class Threads:
    """Runs blocking functions, each in a thread of its own."""

    def __init__(self, most: int = MAX_THREADS) -> None:
        self.most = most
        self._running: set[threading.Thread] = set()

    async def run(self, work: Callable[[], Any]) -> Any:
        """The result of the work. A cancelled call leaves its thread behind, until the work ends by itself."""
        self._running = {thread for thread in self._running if thread.is_alive()}
        if len(self._running) >= self.most:
            raise RuntimeError(f"{self.most} calls are still running: try again later")
        outcome, done, schedule = Outcome(), anyio.Event(), _scheduler()
        context = contextvars.copy_context()

        def target() -> None:
            try:
                outcome.value = context.run(work)
            except BaseException as error:  # noqa: BLE001  raised again where it is awaited
                outcome.error = error
            with suppress(RuntimeError):  # the event loop has ended
                schedule(done.set)

        thread = threading.Thread(target=target, name="ramet function", daemon=True)
        self._running.add(thread)
        thread.start()
        await done.wait()
        if isinstance(outcome.error, StopIteration):  # which a coroutine cannot raise
            raise RuntimeError(f"StopIteration: {outcome.error}") from outcome.error
        if outcome.error is not None:
            raise outcome.error
        return outcome.value


def _scheduler() -> Schedule:
    if sniffio.current_async_library() == "asyncio":
        return asyncio.get_running_loop().call_soon_threadsafe
    import trio

    return trio.lowlevel.current_trio_token().run_sync_soon
