"""HTTP clients of an engine: one connection each, the one that was used last first.

A client of httpx looks at each of its connections, with a system call, whenever a request begins or ends. With dozens
of connections that is more work than the request itself; with one it is next to none.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache

import anyio
import httpx

from ramet.engine.reading import IDENTITY

KEPT = 64  # idle connections
IDLE_S = 5.0  # an older one is opened again: many servers close it about then


class Clients:
    """As many clients as there are requests at once; `KEPT` of them stay open for the next requests."""

    def __init__(self, timeout: httpx.Timeout, *, idle_s: float = IDLE_S) -> None:
        self._timeout = timeout
        self._limits = httpx.Limits(keepalive_expiry=idle_s)
        self._idle: list[httpx.AsyncClient] = []

    @asynccontextmanager
    async def stream(self, method: str, url: str, **request: object) -> AsyncGenerator[httpx.Response]:
        """The response of one request, as `httpx.AsyncClient.stream` has it."""
        client = self._idle.pop() if self._idle else self._new()
        try:
            async with client.stream(method, url, **request) as response:  # pyright: ignore[reportArgumentType]
                yield response
        finally:
            if len(self._idle) < KEPT:
                self._idle.append(client)
            else:
                with anyio.CancelScope(shield=True):
                    await client.aclose()

    async def aclose(self) -> None:
        """Close all connections that are not in use."""
        while self._idle:
            await self._idle.pop().aclose()

    def _new(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(timeout=self._timeout, limits=self._limits, verify=_certificates(), headers=IDENTITY)


@cache
def _certificates() -> ssl.SSLContext:
    """The trusted certificates. Reading them takes tens of milliseconds, so it is done once per process."""
    return httpx.create_ssl_context()
