"""HTTP as ASGI has it: bodies read within bounds, JSON and event streams sent, disconnects noticed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import anyio
from starlette.types import Receive, Scope, Send

from ramet.serve.errors import RequestError
from ramet.serve.settings import is_loopback
from ramet.types import clean

JSON = "application/json"
KEEP_ALIVE = b": waiting\n\n"


class Bodies:
    """Reads bodies, with limits on the size and time of each and on the size of all that are being read."""

    def __init__(self, *, most: int, seconds: float, most_together: int) -> None:
        self.most = most
        self.seconds = seconds
        self.most_together = most_together
        self.held = 0

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """The body of a request; 408, 413 or 429 if it is too slow, too large, or too much with all others."""
        length = header(scope, "content-length") or "0"
        if not length.isdigit() or int(length[:20]) > self.most:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0
        try:
            with anyio.fail_after(self.seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RequestError(499, "the client has gone")
                    part: bytes = message.get("body", b"")
                    size += len(part)
                    self.held += len(part)
                    parts.append(part)
                    if size > self.most:
                        raise self._too_large()
                    if self.held > self.most_together:
                        raise RequestError(429, "the server is busy: too many large requests", retry_after_s=1.0)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise RequestError(408, f"the body did not arrive within {self.seconds:g} s") from None
        finally:
            self.held -= size

    def _too_large(self) -> RequestError:
        return RequestError(413, f"the body of a request must be at most {self.most:,} bytes", code="request_too_large")


def header(scope: Scope, name: str) -> str | None:
    """A header of a request, by its name in lower case."""
    wanted = name.encode()
    values: list[bytes] = [value for key, value in scope["headers"] if key == wanted]
    return values[0].decode("latin-1") if values else None


def api_key(scope: Scope) -> str | None:
    """The key in `Authorization: Bearer KEY`."""
    scheme, _, key = (header(scope, "authorization") or "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None


def check_origin(scope: Scope) -> None:
    """Refuse web pages. A server without keys trusts this machine, on which browsers also run pages of others.

    A page can send requests to loopback addresses without asking only as a form, or under a host name of its own.
    """
    name = (header(scope, "host") or "").rpartition(":")[0] or header(scope, "host") or ""
    if name and not is_loopback(name.strip("[]")):
        raise RequestError(403, "a server without keys answers to loopback host names only", code="host")


def check_json(scope: Scope) -> None:
    """Refuse a body that does not call itself JSON."""
    sort = (header(scope, "content-type") or "").partition(";")[0].strip().lower()
    if sort != JSON:
        raise RequestError(400, f"send the header Content-Type: {JSON}", code="content_type")


async def send_json(send: Send, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
    text = clean(json.dumps(body, ensure_ascii=False)).encode()
    await send_bytes(send, status, text, JSON, headers)


async def send_bytes(send: Send, status: int, body: bytes, sort: str, headers: Mapping[str, str] | None = None) -> None:
    await _start(send, status, {"content-type": sort, "content-length": str(len(body)), **(headers or {})})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: RequestError, headers: Mapping[str, str] | None = None) -> None:
    await send_json(send, error.status, error.body, {**error.headers, **(headers or {})})


async def start_events(send: Send, headers: Mapping[str, str]) -> None:
    """Begin a stream of server-sent events. Proxies are asked not to buffer it."""
    sent = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store", "x-accel-buffering": "no"}
    await _start(send, 200, {**sent, **headers})


async def send_events(send: Send, events: Iterable[bytes]) -> None:
    for event in events:
        await send({"type": "http.response.body", "body": event, "more_body": True})


async def end_events(send: Send) -> None:
    await send({"type": "http.response.body", "body": b""})


async def _start(send: Send, status: int, headers: Mapping[str, str]) -> None:
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def until_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    """Cancel `scope` when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
