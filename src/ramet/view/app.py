"""The ASGI application: files of the page, answers as JSON, and events while a run is written.

Every address begins with a random token, compared in constant time: `/TOKEN/`, `/TOKEN/api/tree?run=...`. Requests for
another host name are refused, so that no web page can reach the viewer through a name of its own (DNS rebinding).
"""

# starlette's types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hmac
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import anyio

from ramet.errors import RametError
from ramet.store.facts import finite
from ramet.view.api import Api
from ramet.view.live import events

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

Handler: TypeAlias = "Callable[[Request], Awaitable[Response]]"
HOSTS = ("127.0.0.1", "localhost", "[::1]")
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
MAX_BODY = 2**20


def static_files() -> dict[str, bytes]:
    """The files of the page by name."""
    folder = files("ramet.view") / "static"
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.name.rpartition(".")[2] in TYPES}


class Pages:
    """Handlers of all addresses below the token."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.files = static_files()

    async def static(self, request: Request) -> Response:
        name = str(request.path_params.get("name", "")) or "index.html"
        if name not in self.files:
            return _plain("no such file", 404)
        return _respond(self.files[name], kind=TYPES[name.rpartition(".")[2]])

    async def ask(self, request: Request) -> Response:
        question, query = str(request.path_params["question"]), dict(request.query_params)
        try:
            return _respond(_json(await anyio.to_thread.run_sync(self.api.answer, question, query)))
        except RametError as error:
            return _error(str(error), 404)

    async def live(self, request: Request) -> Response:
        from starlette.responses import StreamingResponse

        try:
            path = self.api.path(dict(request.query_params))
        except RametError as error:
            return _error(str(error), 404)
        tree = request.query_params.get("tree")

        async def stream() -> AsyncGenerator[bytes]:
            async for event in events(path, tree):
                yield b"data: " + _json(event) + b"\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream", headers=HEADERS)

    async def fork(self, request: Request) -> Response:
        body = await _body(request)
        if body is None:
            return _error(f"the body has more than {MAX_BODY:,} bytes", 413)
        try:
            asked: object = json.loads(body)
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):
            return _error("the body is not a JSON object", 400)
        try:
            return _respond(_json(await anyio.to_thread.run_sync(self.api.fork, cast(dict[str, Any], asked))))
        except RametError as error:
            return _error(str(error), 409)


def make_app(api: Api, *, token: str) -> Starlette:
    """The application over these runs, for one token."""
    from starlette.applications import Starlette
    from starlette.responses import RedirectResponse
    from starlette.routing import Route

    pages = Pages(api)

    def guarded(handler: Handler) -> Handler:
        async def checked(request: Request) -> Response:
            return refusal(request, token) or await handler(request)

        return checked

    async def to_folder(request: Request) -> Response:
        del request
        return RedirectResponse(f"/{token}/", headers=HEADERS)

    return Starlette(
        routes=[
            Route("/{token}", guarded(to_folder)),
            Route("/{token}/", guarded(pages.static)),
            Route("/{token}/api/live", guarded(pages.live)),
            Route("/{token}/api/fork", guarded(pages.fork), methods=["POST"]),
            Route("/{token}/api/{question}", guarded(pages.ask)),
            Route("/{token}/{name}", guarded(pages.static)),
        ]
    )


def refusal(request: Request, token: str) -> Response | None:
    """Why a request is not answered: the name of the host, or the token."""
    if host_name(request.headers.get("host", "")) not in HOSTS:
        return _plain("this host name is not served", 421)
    given = str(request.path_params.get("token", ""))
    if not hmac.compare_digest(given.encode(errors="replace"), token.encode()):
        return _plain("wrong address: open the one that ramet view printed", 403)
    return None


async def _body(request: Request) -> bytes | None:
    """The body of a request; None as soon as it is too long."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            return None
    return bytes(body)


def _plain(text: str, status: int) -> Response:
    return _respond(f"{text}\n".encode(), kind="text/plain", status=status)


def _error(text: str, status: int) -> Response:
    return _respond(_json({"error": text}), status=status)


def _respond(data: bytes, *, kind: str = "application/json", status: int = 200) -> Response:
    from starlette.responses import Response

    return Response(data, media_type=kind, status_code=status, headers=HEADERS)


def host_name(host: str) -> str:
    """The name in a Host header, without the port.

    Example:
        host_name("127.0.0.1:8123")  # "127.0.0.1"
        host_name("[::1]:8123")  # "[::1]"
    """
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()


def _json(value: Any) -> bytes:
    """JSON without NaN, which browsers do not read."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(errors="replace")
    except ValueError:
        return json.dumps(finite(value), ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
