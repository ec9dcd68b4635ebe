"""Servers that answer with errors again and again."""

from __future__ import annotations

import httpx
import pytest

from ramet.engine.tinker.failures import FAILING_S, Failures
from ramet.errors import EngineError

URL = "http://127.0.0.1:8123"


def answer(status: int, *, body: bytes = b"1", path: str = "/api/v1/retrieve_future") -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("POST", URL + path, content=body))


@pytest.mark.anyio
async def test_a_request_that_gets_nothing_but_errors_is_one_line():
    now = [0.0]
    failures = Failures(URL, clock=lambda: now[0])
    await failures.see(answer(500))
    failures.check()
    now[0] = FAILING_S
    await failures.see(answer(200, body=b"2"))  # other requests do not matter
    await failures.see(answer(502))
    with pytest.raises(EngineError, match=r"^http://127\.0\.0\.1:8123 has answered 502 to a request for 10 s"):
        failures.check()


@pytest.mark.anyio
async def test_a_name_that_is_taken_is_one_line_at_once():
    failures = Failures(URL)
    await failures.see(answer(409, path="/api/v1/forward_backward"))
    failures.check()
    await failures.see(answer(409, body=b'{"path": "step-1"}', path="/api/v1/save_weights"))
    with pytest.raises(EngineError, match=r"8123 has a checkpoint 'step-1' already: it takes every name once$"):
        failures.check()


@pytest.mark.anyio
async def test_errors_that_end_are_forgotten():
    now = [0.0]
    failures = Failures(URL, clock=lambda: now[0])
    await failures.see(answer(503))
    await failures.see(answer(408))
    await failures.see(answer(500, path="/api/v1/healthz"))
    now[0] = 100 * FAILING_S
    failures.check()
