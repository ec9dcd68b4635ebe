"""One connection per client: those that are idle are used again, the newest first."""

from __future__ import annotations

import anyio
import anyio.abc
import httpx
import pytest

from ramet.engine.clients import KEPT, Clients
from tests.waiting import PATIENCE_S

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Counting:
    """A server that counts connections and answers when it is allowed to."""

    def __init__(self) -> None:
        self.connections = 0
        self.requests = 0
        self.allowed = anyio.Event()

    async def answer(self, stream: anyio.abc.ByteStream) -> None:
        self.connections += 1
        async with stream:
            try:
                while True:
                    await stream.receive()
                    self.requests += 1
                    await self.allowed.wait()
                    await stream.send(ANSWER)
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return


async def ask(clients: Clients, url: str) -> None:
    async with clients.stream("GET", url) as response:
        assert await response.aread() == b"ok"


async def ask_at_once(number: int, server: Counting, clients: Clients, url: str) -> None:
    """Send so many requests; none is answered before all have arrived."""
    server.requests, server.allowed = 0, anyio.Event()
    async with anyio.create_task_group() as group:
        for _ in range(number):
            group.start_soon(ask, clients, url)
        while server.requests < number:  # noqa: ASYNC110 (requests are counted by another task)
            await anyio.sleep(0.001)
        server.allowed.set()


@pytest.mark.anyio
async def test_connections_are_as_many_as_requests_at_once_and_are_used_again():
    server, clients = Counting(), Clients(httpx.Timeout(PATIENCE_S), idle_s=PATIENCE_S)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    url = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/"

    async with listener, anyio.create_task_group() as serving:
        serving.start_soon(listener.serve, server.answer)
        await ask_at_once(3, server, clients, url)
        for _ in range(5):
            await ask(clients, url)
        assert (server.connections, server.requests) == (3, 8)
        await clients.aclose()
        await ask(clients, url)  # after closing, there is a new one
        assert server.connections == 4
        await clients.aclose()
        serving.cancel_scope.cancel()


@pytest.mark.anyio
async def test_connections_beyond_those_that_are_kept_are_closed():
    server, clients = Counting(), Clients(httpx.Timeout(PATIENCE_S), idle_s=PATIENCE_S)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    url = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/"
    async with listener, anyio.create_task_group() as serving:
        serving.start_soon(listener.serve, server.answer)
        await ask_at_once(KEPT + 3, server, clients, url)
        await ask_at_once(KEPT + 3, server, clients, url)
        assert server.connections == KEPT + 3 + 3
        await clients.aclose()
        serving.cancel_scope.cancel()
