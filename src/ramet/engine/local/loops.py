"""The event loops of those who wait for an engine, seen from its thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast

import sniffio

from ramet.errors import ConfigError


class Loop(Protocol):
    """A running event loop. Both verbs may be used from any thread; False: it has ended."""

    def post(self, action: Callable[[], object]) -> bool:
        """Run something there, soon."""
        ...

    def when_quiet(self, action: Callable[[], object]) -> bool:
        """Run something there once no task has anything left to do but wait."""
        ...

    def __hash__(self) -> int: ...


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

    def when_quiet(self, action: Callable[[], object]) -> bool:
        loop: Any = self._loop

        def look() -> None:
            if loop._ready:  # others have something to do first
                loop.call_soon(look)
            else:
                action()

        return self.post(look)


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

    def when_quiet(self, action: Callable[[], object]) -> bool:
        import trio.testing

        async def look() -> None:
            await trio.testing.wait_all_tasks_blocked()
            action()

        return self.post(lambda: trio.lowlevel.spawn_system_task(look))


def current_loop(*, lockstep: bool) -> Loop:
    """The one we are in. With `lockstep` it must be able to tell when it is quiet."""
    if sniffio.current_async_library() == "trio":
        import trio

        return TrioLoop(trio.lowlevel.current_trio_token())
    loop = asyncio.get_running_loop()
    if lockstep and not hasattr(loop, "_ready"):
        kind = type(loop).__module__
        raise ConfigError(f"lockstep needs trio or asyncio's own event loop, not {kind}: give lockstep=False")
    return cast(Loop, AsyncioLoop(loop))
