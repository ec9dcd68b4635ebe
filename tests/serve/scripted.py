"""A served scripted model: in this process, in another one, and as a command.

python -m tests.serve.scripted --runs FOLDER [--port N] [KEY=VALUE]...
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import anyio
from anyio.from_thread import start_blocking_portal

import ramet
from ramet.bench.serve import Forgetful
from ramet.budget import Budget
from ramet.config import load
from ramet.engine.scripted import Reply, ScriptedEngine
from ramet.interfaces import Engine
from ramet.serve.server import Served, bind, listening, opened_service, serve
from ramet.serve.settings import ServeConfig
from ramet.terminal.serving import ARROW_POOL
from ramet.types import Node, Prompt, Task, Tree, Usage

FOREVER_S = 3600.0
PATIENCE_S = 60.0  # until a test gives up; nothing depends on how long a thing takes
ROOT = Path(__file__).parents[2]


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def tree_with(usage: Usage) -> Tree:
    """A tree of one node that used this."""
    root = Node(index=0, parent=None, depth=0, path=(), goal="q", grant=0, usage=usage)
    return Tree(id="t", task=Task(question="q"), budget=Budget(), nodes=[root])


def script(prompt: Prompt) -> str | Reply:
    """What the model does depends on the first word of its goal."""
    word = prompt.goal.partition(" ")[0]
    if prompt.depth:
        return Reply(text=f"Answer: {prompt.goal}", seconds=FOREVER_S if word == "sleep" else 0.0)
    if word == "split":
        return call("delegate", goals=["the left", "the right"]) if prompt.turn == 0 else _joined(prompt)
    if word == "stall":
        return call("delegate", goals=["sleep left", "sleep right"])
    if word == "fail":
        return Reply(text="", fault="the model is gone")
    if word == "late":  # delegates, then fails
        return call("delegate", goals=["the left"]) if prompt.turn == 0 else Reply(text="", fault="the model is gone")
    if word == "slow":
        return Reply(text="Answer: late", seconds=float(prompt.goal.split()[1]))
    if word == "weather":
        return _weather(prompt)
    if word == "json":
        return prompt.goal.removeprefix("json ")
    if word == "loop":
        return call("delegate", goals=["part"]) + " and on " * 50
    return f"Answer: you said {prompt.goal}"


def _joined(prompt: Prompt) -> str:
    lines = [line.partition(": ")[2] for line in prompt.last.splitlines() if line.startswith("clone ")]
    return "Answer: " + " and ".join(lines)


def _weather(prompt: Prompt) -> str:
    """Ask a clone first, then the client's tool, then answer with both."""
    if "12 degrees" in prompt.last:
        return "Answer: " + ("the place and " if "the place" in prompt.last else "") + "12 degrees"
    if prompt.turn == 0 and "alone" not in prompt.goal:
        return call("delegate", goals=["the place"])
    return "I will look." + call("get_weather", city="Oslo")


@asynccontextmanager
async def opened(
    config: ServeConfig, engine: Engine, runs: Path, *, clone_engine: Engine | None = None
) -> AsyncGenerator[Served]:
    """A server in this event loop, on a free port of the loopback address."""
    with ExitStack() as stack:
        service = stack.enter_context(opened_service(config, engine, runs=runs, clone_engine=clone_engine))
        listener = stack.enter_context(bind("127.0.0.1", 0))
        async with listening(service, listener):
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
            yield Served(url=url, run=service.store.run_dir.path, service=service)
            service.cancel_all()


@contextmanager
def served(
    runs: Path, *, engine: Engine | None = None, clone_engine: Engine | None = None, **settings: object
) -> Generator[Served]:
    """A server in a thread of this process."""
    base = {"name": "scripted", "grace_s": 1.0}
    config = load(ServeConfig, flags={**base, **settings}, base={"budget": {"tokens": 2000, "nodes": 8, "depth": 2}})
    server = opened(config, engine or ScriptedEngine(script), runs, clone_engine=clone_engine)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(server) as found:
        yield found


@contextmanager
def process(runs: Path, *settings: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    paths = os.pathsep.join([str(Path(ramet.__file__).parents[1]), str(ROOT)])
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.serve.scripted", "--runs", str(runs), *settings],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert started.stdout is not None
        url = started.stdout.readline().strip()
        assert url.startswith("http"), started.communicate()[1]
        yield started, url
    finally:
        started.kill()
        started.communicate()


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    done = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        if holds():
            return
        done.wait(0.02)
    raise AssertionError("it never held")


def until_idle(server: Served) -> None:
    """Wait until the server holds nothing of any request. A client has its response a moment earlier."""
    service = server.service
    gate = service.gate
    until(lambda: (gate.running, gate.waiting, service.bodies.held, service.running) == (0, 0, 0, {}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("settings", nargs="*")
    given = parser.parse_args()
    os.environ.setdefault(ARROW_POOL, "system")  # as `ramet serve` does: its memory is measured
    config = load(ServeConfig, words=given.settings, flags={"port": given.port, "name": "scripted"})

    def announce(served: Served) -> None:
        sys.stdout.write(served.url + "\n")
        sys.stdout.flush()

    engine = ScriptedEngine(script)
    engine.prompts = Forgetful()
    anyio.run(partial(serve, config, engine, runs=given.runs, on_start=announce))


if __name__ == "__main__":
    main()
