"""So many trees at once, so many requests waiting; more are refused with a time after which to try again."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from ramet.serve.errors import RequestError

LONGEST_RETRY_S = 60.0
WEIGHT = 0.1  # of the newest tree in the average


class Gate:
    """A queue with a limit, first come, first served."""

    def __init__(self, *, places: int, queue: int) -> None:
        self.places = places
        self.queue = queue
        self.waiting = 0
        self.most_running = 0
        self.closed = False  # the server is shutting down
        self.seconds = 1.0  # a tree takes, on average
        self._limiter = anyio.CapacityLimiter(places)

    @property
    def running(self) -> int:
        return int(self._limiter.borrowed_tokens)

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[None]:
        """Wait for a place and hold it. Refused if too many wait, or if the server is shutting down."""
        holder = object()
        await self._enter(holder)
        try:
            if self.closed:
                raise shutting_down()
            self.most_running = max(self.most_running, self.running)
            began = anyio.current_time()
            yield
            self.seconds += WEIGHT * (anyio.current_time() - began - self.seconds)
        finally:
            self._limiter.release_on_behalf_of(holder)

    async def _enter(self, holder: object) -> None:
        if self.closed:
            raise shutting_down()
        try:
            return self._limiter.acquire_on_behalf_of_nowait(holder)
        except anyio.WouldBlock:
            pass
        if self.waiting >= self.queue:
            raise RequestError(
                429,
                f"the server is busy: {self.places} trees are running and {self.waiting} requests are waiting",
                code="rate_limit_exceeded",
                retry_after_s=self.retry_after_s,
            )
        self.waiting += 1
        try:
            await self._limiter.acquire_on_behalf_of(holder)
        finally:
            self.waiting -= 1

    @property
    def retry_after_s(self) -> float:
        """When a place should be free, judged by how long trees take."""
        return min(LONGEST_RETRY_S, max(1.0, self.seconds * (self.waiting + 1) / self.places))


def shutting_down() -> RequestError:
    return RequestError(503, "the server is shutting down", code="shutting_down", retry_after_s=5.0)
