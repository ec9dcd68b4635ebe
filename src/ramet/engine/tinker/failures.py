"""Notice a server that answers with errors again and again.

The client package asks for a result again at once when it gets an error 5xx, without end, and saves again for five
minutes under a name that the server has already. So every response is looked at here: a request for a result that has
got nothing else for a while ends the run, and so does a name that is taken.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import httpx

from ramet.errors import EngineError

RESULTS = "/retrieve_future"  # the request that is repeated until a result is there
SAVES = "/save_weights", "/save_weights_for_sampler"
TAKEN = 409
FAILING_S = 10.0


class Failures:
    """Since when requests for a result have got errors of the server and nothing else; names that are taken."""

    def __init__(self, address: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._address, self._clock = address, clock
        self._taken: str | None = None
        self._since: dict[bytes, tuple[float, int]] = {}  # by the body of the request: when it began, the newest status

    async def see(self, response: httpx.Response) -> None:
        """A response hook of httpx."""
        request = response.request
        if response.status_code == TAKEN and request.url.path.endswith(SAVES):
            self._taken = str(json.loads(request.content)["path"])
        if not request.url.path.endswith(RESULTS):
            return
        if response.status_code < 500:
            self._since.pop(request.content, None)
        else:
            began, _ = self._since.get(request.content, (self._clock(), 0))
            self._since[request.content] = (began, response.status_code)

    def check(self) -> None:
        """Raise one line if a name is taken, or a request has been failing for too long."""
        if self._taken is not None:
            raise EngineError(f"{self._address} has a checkpoint {self._taken!r} already: it takes every name once")
        for began, status in list(self._since.values()):
            if self._clock() - began >= FAILING_S:
                raise EngineError(
                    f"{self._address} has answered {status} to a request for {FAILING_S:g} s: the log of the server "
                    "has the cause"
                )
