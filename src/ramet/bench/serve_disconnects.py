"""How soon a tree ends after its client has gone, wherever the tree is then.

Server, model and clients share a process and an event loop. A disconnect counts as handled when no tree of the request
runs or waits, no call of it is in progress in the engine, and a model behind HTTP has noticed that the call ended.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import anyio.abc

from ramet.budget import Budget
from ramet.engine.http import HttpEngine
from ramet.engine.scripted import Reply, ScriptedEngine
from ramet.interfaces import Engine
from ramet.serve.app import Service
from ramet.serve.server import bind, listening, opened_service
from ramet.serve.settings import ServeConfig
from ramet.types import Prompt, State

if TYPE_CHECKING:
    from rich.console import Console

Facts = dict[str, Any]
HOUR_S = 3600.0
LIMIT_S = 0.5  # a tree ends this soon
POLL_S = 0.001
TOGETHER = 20  # clients that go at the same moment, in the last situation
HEAD = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
EVENT = 'data: {"choices": [{"index": 0, "delta": {"content": "so far"}}]}\n\n'


@dataclass(slots=True)
class Stalling:
    """A model server that begins to answer and never ends. `open`: calls in progress."""

    open: int = 0

    async def answer(self, stream: anyio.abc.ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send((HEAD + EVENT).encode())
            self.open += 1
            try:
                while True:  # until the caller closes the connection
                    await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                self.open -= 1

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[str]:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        async with listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, self.answer)
            yield f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/v1"
            group.cancel_scope.cancel()


def delegating(prompt: Prompt) -> Reply:
    """Two clones, each in a call that takes an hour."""
    if prompt.depth:
        return Reply(text="Answer: late", seconds=HOUR_S)
    call = {"name": "delegate", "arguments": {"goals": ["the left", "the right"]}}
    return Reply(text=f"<tool_call>{json.dumps(call)}</tool_call>")


def looping(prompt: Prompt) -> Reply:
    del prompt
    return Reply(text="<python>\nwhile True:\n    pass\n</python>")


@dataclass(slots=True, kw_only=True)
class Situation:
    """Where trees are when their clients go. `reached`: so many are there; `over`: nothing is left of them."""

    name: str
    service: Service
    url: str
    reached: Callable[[int], bool]
    over: Callable[[], bool]
    stream: bool = True
    together: int = 1
    seconds: list[float] = field(default_factory=list[float])

    async def disconnect(self) -> None:
        """Let clients ask, go when their trees are where they should be, and wait for the end of the trees."""
        clients = [await ask(self.url, stream=self.stream) for _ in range(self.together)]
        await until(lambda: self.reached(self.together))
        began = time.perf_counter()
        for client in clients:
            await client.aclose()
        await until(self.over)
        self.seconds.append(time.perf_counter() - began)


async def ask(url: str, *, stream: bool) -> anyio.abc.ByteStream:
    """A client that has sent its request."""
    address = urlsplit(url)
    body = {"model": "ramet", "messages": [{"role": "user", "content": "work"}], "stream": stream}
    text = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    client = await anyio.connect_tcp(str(address.hostname), address.port or 0)
    await client.send(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
    return client


async def until(holds: Callable[[], bool]) -> None:
    """Look again and again, as someone outside would: nothing of the server reports that a request is over."""
    with anyio.fail_after(60.0):
        while not holds():  # noqa: ASYNC110
            await anyio.sleep(POLL_S)


@asynccontextmanager
async def served(folder: Path, engine: Engine, **settings: Any) -> AsyncGenerator[tuple[Service, str]]:
    config = ServeConfig(port=0, name="bench", budget=Budget(tokens=2000, nodes=8, depth=2), **settings)
    with ExitStack() as stack:
        service = stack.enter_context(opened_service(config, engine, runs=folder))
        listener = stack.enter_context(bind("127.0.0.1", 0))
        async with listening(service, listener):
            yield service, f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
            service.cancel_all()


async def scripted(folder: Path, stack: AsyncExitStack, name: str, **how: Any) -> Situation:
    """Clones in calls of a scripted model."""
    engine = ScriptedEngine(delegating)
    service, url = await stack.enter_async_context(served(folder, engine))
    return Situation(
        name=name,
        service=service,
        url=url,
        reached=lambda number: engine.running == 2 * number,
        over=lambda: not engine.running and idle(service),
        **how,
    )


async def waiting(folder: Path, stack: AsyncExitStack) -> Situation:
    """A request in the queue, behind one that takes an hour."""
    engine = ScriptedEngine(delegating)
    service, url = await stack.enter_async_context(served(folder, engine, concurrency=1))
    stack.push_async_callback((await ask(url, stream=True)).aclose)
    await until(lambda: engine.running == 2)
    gate = service.gate
    return Situation(
        name="waiting in the queue",
        service=service,
        url=url,
        reached=lambda number: gate.waiting == number,
        over=lambda: gate.waiting == 0,
    )


async def over_http(folder: Path, stack: AsyncExitStack) -> Situation:
    """A call of a model behind HTTP that has begun to answer."""
    model = Stalling()
    address = await stack.enter_async_context(model.listening())
    engine = await stack.enter_async_context(HttpEngine(address, model="stalling"))
    service, url = await stack.enter_async_context(served(folder, engine))
    return Situation(
        name="in a call over HTTP",
        service=service,
        url=url,
        reached=lambda number: model.open == number,
        over=lambda: not model.open and idle(service),
    )


async def in_cell(folder: Path, stack: AsyncExitStack) -> Situation:
    """A code cell that never ends."""
    service, url = await stack.enter_async_context(served(folder, ScriptedEngine(looping), dialect="python"))

    def acting(number: int) -> bool:
        roots = [running.asked.tree.root for running in service.running.values()]
        return len(roots) == number and all(root.state is State.ACTING for root in roots)

    return Situation(
        name="in a code cell", service=service, url=url, reached=acting, over=lambda: idle(service), stream=False
    )


def idle(service: Service) -> bool:
    return not service.running and not service.gate.running


async def measure_disconnects(folder: Path, *, number: int) -> Facts:
    """Seconds until the end of a tree, by where it was; `number` disconnects for each."""
    async with AsyncExitStack() as stack:
        situations = [
            await scripted(folder, stack, "in calls of clones", stream=False),
            await scripted(folder, stack, "in calls of clones, streamed"),
            await waiting(folder, stack),
            await over_http(folder, stack),
            await in_cell(folder, stack),
            await scripted(folder, stack, f"{TOGETHER} clients at the same moment", together=TOGETHER),
        ]
        for situation in situations:
            for _ in range(max(1, number // situation.together)):
                await situation.disconnect()
    return {situation.name: facts(situation) for situation in situations}


def facts(situation: Situation) -> Facts:
    seconds = situation.seconds
    return {
        "disconnects": len(seconds) * situation.together,
        "median_s": statistics.median(seconds),
        "slowest_s": max(seconds),
        "late": sum(value > LIMIT_S for value in seconds),
    }


def print_disconnects(console: Console, found: Facts) -> None:
    from rich.table import Table

    table = Table("a client goes while its tree is", "disconnects", "median ms", "slowest ms")
    for name, row in found.items():
        table.add_row(name, str(row["disconnects"]), f"{row['median_s'] * 1e3:.1f}", f"{row['slowest_s'] * 1e3:.1f}")
    console.print(table)
    late = sum(row["late"] for row in found.values())
    console.print(f"{late} ended later than {LIMIT_S:g} s after their client had gone")
