"""Deadlines around every call of a service.

The client package asks a server that has gone away again and again, some requests without end. So every call has a
deadline here, and while it waits, the address is checked every few seconds: a server that is gone is one error within
seconds, not the end of a deadline.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from ramet.engine.tinker.service import Service
from ramet.errors import EngineError

T = TypeVar("T")
CHECK_EVERY_S = 3.0


class Calls:
    """Calls of one service. After the server was found to be gone, every further call fails at once."""

    def __init__(
        self,
        service: Service,
        *,
        deadline_s: float,
        check_every_s: float = CHECK_EVERY_S,
        setting: str = "backend.deadline_s",
    ) -> None:
        self.service = service
        self.deadline_s = deadline_s
        self.setting = setting  # what the user raises to wait longer
        self.check_every_s = check_every_s
        self.lost: EngineError | None = None  # why the server is considered gone
        self._checked = float("-inf")

    async def run(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`, within the deadline. `what` names it in errors, like "optim_step"."""
        if self.lost is not None:
            raise EngineError(str(self.lost))
        results: list[T] = []
        failures: list[EngineError] = []
        with anyio.move_on_after(self.deadline_s) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch, group.cancel_scope)
                try:
                    results.append(await work())
                except EngineError as error:  # out of the group as it is, not in an exception group
                    failures.append(error)
                group.cancel_scope.cancel()
        if results:
            return results[0]
        if failures:
            raise failures[0]
        if self.lost is not None:
            raise EngineError(f"{self.lost} (during {what})")
        assert scope.cancelled_caught
        raise EngineError(
            f"{what}: the server did not answer within {self.deadline_s:g} s. It is still there, and may be compiling: "
            f"try again, or allow more with {self.setting}"
        )

    async def _watch(self, scope: anyio.CancelScope) -> None:
        """Cancel the call when the server is gone. All calls under way share one check at a time."""
        while True:
            await anyio.sleep(self.check_every_s)
            if anyio.current_time() - self._checked >= self.check_every_s:
                self._checked = anyio.current_time()
                try:
                    await self.service.check()
                except EngineError as error:
                    self.lost = error
            if self.lost is not None:
                scope.cancel()
