"""The ASGI application: keys, bodies, queue, trees and answers, for every request."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from ramet.agent.dialects import make_dialect
from ramet.agent.task_groups import task_group
from ramet.budget import Budget
from ramet.draw import counted
from ramet.errors import EngineError
from ramet.interfaces import Engine
from ramet.serve import chat, responses
from ramet.serve.asking import TOO_LITTLE_MONEY, Answer, Ask, Asked, OnProgress
from ramet.serve.budgets import lowest
from ramet.serve.conversation import Remembered
from ramet.serve.errors import RequestError
from ramet.serve.fields import Fields, parse_body
from ramet.serve.gate import Gate, shutting_down
from ramet.serve.keys import Account, Keyring, Reservation
from ramet.serve.metrics import Metrics
from ramet.serve.pages import Pages
from ramet.serve.settings import ALIAS, ServeConfig
from ramet.serve.storing import TreeStore
from ramet.serve.streaming import KEEP_ALIVE_S, RUNS, Events, EventStream
from ramet.serve.wire import (
    Bodies,
    api_key,
    check_json,
    check_origin,
    send_error,
    send_json,
    until_disconnect,
)

TREE_HEADER = "x-ramet-tree"
SEND_S = 60.0  # for a client to read one event
BODIES_TOGETHER = 16  # largest bodies that are read at once
CLIENT_GONE = 499  # in metrics; no client ever reads it
Log = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One of OpenAI's APIs."""

    name: str
    read: Callable[..., Ask]
    whole: Callable[[Ask, Answer], dict[str, Any]]
    stream: Callable[[Ask, str], Events]


CHAT = Format(name=chat.NAME, read=chat.read, whole=chat.whole, stream=chat.Stream)
RESPONSES = Format(name=responses.NAME, read=responses.read, whole=responses.whole, stream=responses.Stream)


@dataclass(slots=True, kw_only=True)
class Running:
    """A tree that runs now."""

    asked: Asked
    owner: str
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class Service:
    """What all requests share."""

    def __init__(
        self,
        config: ServeConfig,
        engine: Engine,
        *,
        keys: Keyring,
        store: TreeStore,
        log: Log = lambda _: None,
        clone_engine: Engine | None = None,
    ) -> None:
        self.config = config
        self.engine = engine
        self.clone_engine = clone_engine
        self.keep_alive_s = KEEP_ALIVE_S
        self.keys = keys
        self.store = store
        self.log = log
        self.dialect = make_dialect(config.dialect)
        self.gate = Gate(places=config.concurrency, queue=config.queue)
        self.metrics = Metrics()
        self.running: dict[str, Running] = {}
        most = config.max_body_bytes
        self.bodies = Bodies(most=most, seconds=config.body_s, most_together=BODIES_TOGETHER * most)

    @property
    def served(self) -> Sequence[str]:
        return (self.config.model, ALIAS)

    def account(self, scope: Scope) -> Account:
        """Whose request it is."""
        if not self.keys.needed:
            check_origin(scope)
        return self.keys.account(api_key(scope))

    def drain(self) -> None:
        """Take no more requests."""
        self.gate.closed = True

    def cancel_all(self) -> None:
        """End every tree. Each is stored as far as it got, and its client gets an error."""
        for running in self.running.values():
            running.scope.cancel()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Workers of the dialect and the writing of trees, which live as long as the server."""
        async with AsyncExitStack() as stack:
            if hasattr(self.dialect, "__aenter__"):
                opened: Any = self.dialect
                await stack.enter_async_context(opened)
            async with anyio.create_task_group() as group:
                group.start_soon(self.store.run)
                try:
                    yield
                finally:
                    group.cancel_scope.cancel()
                    with anyio.CancelScope(shield=True):
                        await self.store.flush()


class Endpoint:
    """`POST` of one API: from a request to the tree that answers it."""

    def __init__(self, service: Service, form: Format) -> None:
        self.service = service
        self.form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.monotonic()
        status = CLIENT_GONE
        try:
            async with task_group() as group:
                patient = _patient(send, group.cancel_scope)
                status = await self._respond(scope, receive, patient, group)
                group.cancel_scope.cancel()
        finally:
            self.service.metrics.request(self.form.name, status, time.monotonic() - began)

    async def _respond(self, scope: Scope, receive: Receive, send: Send, group: anyio.abc.TaskGroup) -> int:
        """Answer a request; the status it was answered with."""
        service = self.service
        try:
            account = service.account(scope)
            check_json(scope)
            body = parse_body(await service.bodies.read(scope, receive))
            ask, budget = self._read(body, account)
            group.start_soon(until_disconnect, receive, group.cancel_scope)
            reservation = account.reserve(budget)
            try:
                play = self._stream if ask.stream else self._whole
                return await play(ask, reservation, send)
            finally:
                reservation.settle(None)
        except RequestError as error:
            if error.status != CLIENT_GONE:
                await send_error(send, error)
            return error.status

    def _read(self, body: Fields, account: Account) -> tuple[Ask, Budget]:
        """What a request asks for, and its budget before its key lowers it."""
        service = self.service
        ask = self.form.read(body, served=service.served, remembered=_remembered(service.store, account))
        return ask, lowest(service.config.budget, *ask.limits)

    async def _whole(self, ask: Ask, reservation: Reservation, send: Send) -> int:
        async with self.service.gate.place():
            asked = self._asked(ask, reservation, None)
            headers = {TREE_HEADER: asked.tree.id}
            try:
                answer = await self._run(asked, reservation)
            except RequestError as error:
                await send_error(send, error, headers)
                return error.status
            await send_json(send, 200, self.form.whole(ask, answer), headers)
            return 200

    async def _stream(self, ask: Ask, reservation: Reservation, send: Send) -> int:
        """Something now and then while the request waits, progress while its tree runs, then the answer or an error."""
        lines, heard = anyio.create_memory_object_stream[str](float("inf"))
        with lines, heard:
            asked = self._asked(ask, reservation, lines.send_nowait)
            headers, every_s = {TREE_HEADER: asked.tree.id}, self.service.keep_alive_s
            stream = EventStream(send, self.form.stream(ask, asked.tree.id), headers, every_s=every_s)
            found: list[Answer | RequestError] = []

            async def run() -> None:
                with lines:
                    try:
                        async with self.service.gate.place():
                            lines.send_nowait(RUNS)
                            found.append(await self._run(asked, reservation))
                    except RequestError as error:
                        found.append(error)

            async with task_group() as group:
                group.start_soon(run)
                await stream.follow(heard)
            return await stream.end(found[0])

    def _asked(self, ask: Ask, reservation: Reservation, on_progress: OnProgress | None) -> Asked:
        service = self.service
        try:
            return Asked(
                ask,
                engine=service.engine,
                clone_engine=service.clone_engine,
                dialect=service.dialect,
                config=service.config,
                budget=reservation.budget,
                on_progress=on_progress,
            )
        except RequestError as error:
            if error.code == TOO_LITTLE_MONEY and reservation.rest_of_money:
                reservation.settle(None)
                raise reservation.account.money_used_up() from None
            raise

    async def _run(self, asked: Asked, reservation: Reservation) -> Answer:
        """Run the tree, charge for it and store it, however it ends."""
        service, tree, owner = self.service, asked.tree, reservation.account.name
        running = service.running[tree.id] = Running(asked=asked, owner=owner)
        problem: RequestError | None = shutting_down()
        service.store.start(reservation)
        try:
            with running.scope:
                await asked.run.run()
                problem = None
        except EngineError as error:
            problem = RequestError(502, f"the engine failed: {error}", code="engine_error", retry=False)
        finally:
            del service.running[tree.id]
            reservation.settle(tree)
            service.metrics.tree(tree)
            entry = service.store.put(tree, owner)
            service.log(_line(tree.id, asked))
        await entry.done.wait()
        if problem is not None:
            raise problem
        answer = asked.answer()
        if answer.calls:
            service.store.keep_work(tree.id, owner, asked.work)
        return answer


def _patient(send: Send, request: anyio.CancelScope) -> Send:
    """Send to a client that reads. One that reads nothing for too long counts as gone: its request is cancelled."""

    async def sending(message: Message) -> None:
        with anyio.move_on_after(SEND_S) as scope:
            await send(message)
        if scope.cancelled_caught:
            request.cancel()
            await anyio.lowlevel.checkpoint()

    return sending


def _remembered(store: TreeStore, account: Account) -> Remembered:
    return lambda call_id: store.work(call_id, account.name)


def _line(tree_id: str, asked: Asked) -> str:
    tree = asked.tree
    used = tree.usage
    size = f"{counted(used.tokens, 'token')}  {counted(len(tree.nodes), 'node')}"
    return f"tree {tree_id}  {tree.root.stop}  {size}  {tree.seconds:.1f} s"


def make_app(service: Service) -> Starlette:
    """The application, for uvicorn or any other ASGI server inside `service.open()`."""
    pages = Pages(service)
    post = ["POST"]
    return Starlette(
        routes=[
            Route("/v1/chat/completions", Endpoint(service, CHAT), methods=post),
            Route("/v1/responses", Endpoint(service, RESPONSES), methods=post),
            Route("/v1/models", pages.models),
            Route("/v1/models/{name:path}", pages.models),
            Route("/v1/trees/{id}", pages.tree),
            Route("/health", pages.health),
            Route("/metrics", pages.metrics),
        ],
        exception_handlers={RequestError: _request_error, 404: _not_found, 405: _not_found, Exception: _bug},
    )


def _json(error: RequestError) -> Response:
    return JSONResponse(error.body, status_code=error.status, headers=error.headers)


async def _request_error(request: Request, error: Exception) -> Response:
    del request
    return _json(error if isinstance(error, RequestError) else RequestError(500, "the server failed"))


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    what = f"there is no {request.method} {request.url.path[:100]}"
    return _json(RequestError(status, f"{what}; see /v1/chat/completions, /v1/responses, /v1/models, /v1/trees/ID"))


async def _bug(request: Request, error: Exception) -> Response:
    """A mistake of ours: the client gets an error it can read, the traceback goes to the log of uvicorn.

    The same request would fail again, and tokens may have been spent: clients should not retry by themselves.
    """
    del request, error
    return _json(RequestError(500, "the server failed; its log has the details", code="internal_error", retry=False))
