"""A streamed response: kept alive while the request waits and its tree runs, ended with the answer or an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from starlette.types import Send

from ramet.serve.asking import Answer
from ramet.serve.errors import RequestError
from ramet.serve.wire import KEEP_ALIVE, end_events, send_events, start_events

KEEP_ALIVE_S = 15.0  # clients and proxies give up a connection on which nothing arrives
RUNS = ""  # in place of a line of progress: the tree has its place and starts


class Events(Protocol):
    """The events of a streamed answer."""

    def opening(self) -> Iterator[bytes]: ...
    def progress(self, line: str) -> Iterator[bytes]: ...
    def answer(self, answer: Answer) -> Iterator[bytes]: ...
    def failed(self, error: RequestError) -> Iterator[bytes]: ...


class EventStream:
    """Sends events. A request that is refused before any was sent gets an ordinary error response."""

    def __init__(
        self, send: Send, events: Events, headers: Mapping[str, str], *, every_s: float = KEEP_ALIVE_S
    ) -> None:
        self._send = send
        self._events = events
        self._headers = headers
        self._every_s = every_s
        self._started = False

    async def follow(self, heard: MemoryObjectReceiveStream[str]) -> None:
        """Send lines of progress until the tree has ended, and something now and then if there is none."""
        while True:
            line: str | None = None
            try:
                with anyio.move_on_after(self._every_s):
                    line = await heard.receive()
            except anyio.EndOfStream:
                return
            await self._start()
            if line != RUNS:
                await send_events(self._send, [KEEP_ALIVE] if line is None else self._events.progress(line))

    async def end(self, found: Answer | RequestError) -> int:
        """Send the answer, or the error; returns the status."""
        if isinstance(found, RequestError) and not self._started:
            raise found
        await self._start()
        failed = isinstance(found, RequestError)
        await send_events(self._send, self._events.failed(found) if failed else self._events.answer(found))
        await end_events(self._send)
        return found.status if failed else 200

    async def _start(self) -> None:
        if not self._started:
            self._started = True
            await start_events(self._send, self._headers)
            await send_events(self._send, self._events.opening())
