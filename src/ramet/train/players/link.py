"""One end of the connection between the training process and a player.

Messages that are sent while the event loop is busy travel together: one pickle and one write for all of them. Both
ends are processes of one run, and nothing else can reach the socket.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any, Self, cast

from ramet.train.players.pickling import dumps, loads

LENGTH = struct.Struct("!Q")  # before every batch of messages


class Link(asyncio.Protocol):
    """Calls `receive` with every message, and `lost` once when the other end is gone."""

    def __init__(self, receive: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._receive = receive
        self._lost = lost
        self._incoming = bytearray()
        self._outgoing: list[Any] = []
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def open(cls, end: socket.socket, receive: Callable[[Any], None], lost: Callable[[], None]) -> Self:
        link = cls(receive, lost)
        await asyncio.get_running_loop().create_connection(lambda: link, sock=end)
        return link

    def send(self, message: Any) -> None:
        """Send a message soon. After the connection is lost, nothing is sent."""
        self._outgoing.append(message)
        if len(self._outgoing) == 1:
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write what has been sent."""
        messages, self._outgoing = self._outgoing, []
        if messages and self._transport is not None and not self._transport.is_closing():
            try:
                data = dumps(messages)
            except BaseException:  # the other side would wait for them forever
                self._transport.abort()
                raise
            self._transport.write(LENGTH.pack(len(data)) + data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._incoming += data
        at = 0
        while len(self._incoming) - at >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._incoming, at)
            end = at + LENGTH.size + size
            if end > len(self._incoming):
                break
            batch = bytes(self._incoming[at + LENGTH.size : end])
            at = end
            for message in loads(batch):
                self._receive(message)
        del self._incoming[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # a process that ended, whichever way
        self._lost()
