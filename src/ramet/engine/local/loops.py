"""Event loops (asyncio and trio) as the engine thread uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import sniffio

from ramet.errors import ConfigError


class Loop(Protocol):
    """A running event loop. Both methods are thread-safe and return False when the loop has ended."""

    def post(self, action: Callable[[], object]) -> bool:
        """Run `action` in the loop, soon."""
        ...

    def when_idle(self, action: Callable[[], object]) -> bool:
        """Run `action` in the loop once all its tasks are blocked."""
        ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """What is called in an event loop when a request has ended."""

    loop: Loop
    wake: Callable[[], object]


class AsyncioLoop:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncioLoop) and other._loop is self._loop

    def __hash__(self) -> int:
        return id(self._loop)

    def post(self, action: Callable[[], object]) -> bool:
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:  # closed
            return False
        return True

    def when_idle(self, action: Callable[[], object]) -> bool:
        loop: Any = self._loop

        def check() -> None:
            if loop._ready:  # other callbacks run first
                loop.call_soon(check)
            else:
                action()

        return self.post(check)


class TrioLoop:
    def __init__(self, token: Any) -> None:
        self._token = token

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrioLoop) and other._token is self._token

    def __hash__(self) -> int:
        return id(self._token)

    def post(self, action: Callable[[], object]) -> bool:
        import trio

        try:
            self._token.run_sync_soon(action)
        except trio.RunFinishedError:
            return False
        return True

    def when_idle(self, action: Callable[[], object]) -> bool:
        import trio.testing

        async def check() -> None:
            await trio.testing.wait_all_tasks_blocked()
            action()

        return self.post(lambda: trio.lowlevel.spawn_system_task(check))


def current_loop(*, lockstep: bool) -> Loop:
    """The running event loop. With `lockstep` it must be one that reports when it is idle."""
    if sniffio.current_async_library() == "trio":
        import trio

        return TrioLoop(trio.lowlevel.current_trio_token())
    loop = asyncio.get_running_loop()
    if lockstep and not hasattr(loop, "_ready"):
        kind = type(loop).__module__
        raise ConfigError(f"lockstep needs trio or asyncio's own event loop, not {kind}: pass lockstep=False")
    return cast(Loop, AsyncioLoop(loop))
