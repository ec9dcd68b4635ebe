"""One replica against two behind vllm-router: seconds, prompt tokens computed, and how evenly replicas are used.

    PYTHONPATH=. python -m tests.cluster.replicas        (the environments of `make test-cluster` must exist)

The replicas are stand-ins on this machine: they wait as long as a server with these speeds would compute, and keep a
prefix cache in blocks as vLLM does. So the numbers show what routing does to batching and caching, not how fast a GPU
is.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import anyio

import ramet
from ramet import Budget, HttpEngine, Task
from ramet.agent.dialects.tools import ToolsDialect
from ramet.interfaces import Host
from tests.cluster.test_router import answers, free_ports, start_router
from tests.engine.faulty import Answer, Event, Received, Step, chat, serve, stream, usage

SLOTS = 16  # requests that one replica decodes together
TOKEN_S = 0.06  # one decoding step of a batch
PREFILL_S = 0.0006  # per prompt token that is not cached: a decoding step is worth 100 of them
BLOCK = 16  # tokens; a token is four characters here
TREES, CLONES, ANSWER_TOKENS = 24, 4, 24
TEXT = 2000  # tokens of the text that a root hands to each of its clones
CALL = {
    "name": "delegate",
    "arguments": {"goals": [f"part {i}" for i in range(CLONES)], "context": ["report"] * CLONES},
}


@dataclass(slots=True)
class Replica:
    """Decodes at most `SLOTS` requests at a time, and computes every block of a prompt once."""

    blocks: set[int] = field(default_factory=set[int])
    busy: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0

    def script(self, request: Received) -> Answer:
        text = json.dumps(request.body["messages"])
        prefixes = [hash(text[:end]) for end in range(4 * BLOCK, len(text), 4 * BLOCK)]
        new = sum(prefix not in self.blocks for prefix in prefixes) * BLOCK
        self.blocks.update(prefixes)
        self.requests += 1
        self.prompt_tokens += len(prefixes) * BLOCK
        self.computed_tokens += new
        words = reply(request).split(" ")
        tokens = [word if i == 0 else f" {word}" for i, word in enumerate(words)] + [""] * (ANSWER_TOKENS - len(words))
        pieces: list[Event | Step] = [self.enter, new * PREFILL_S]
        for token in tokens:
            pieces += [chat(token), TOKEN_S]
        return stream(*pieces, self.leave, chat("", finish="stop"), usage(len(tokens)))

    def enter(self) -> bool:
        self.busy += (free := self.busy < SLOTS)
        return free

    def leave(self) -> bool:
        self.busy -= 1
        return True


def reply(request: Received) -> str:
    """A root hands its text to all clones and then answers; a clone looks once and then answers."""
    turns = len(request.body["messages"])
    if turns > 2:
        return "Answer: done"
    is_clone = "part " in request.body["messages"][1]["content"]
    call = {"name": "look", "arguments": {}} if is_clone else CALL
    return f"<tool_call>{json.dumps(call)}</tool_call>"


class TextsFirst(ToolsDialect):
    """The dialect `tools` with a clone's texts before its goal: clones of one node share a long prefix."""

    def opening(self, host: Host, *, missing: Sequence[str]) -> str:
        goal, _, texts = super().opening(host, missing=missing).partition("\n\n")
        return f"{texts}\n\n{goal}"


class Looking:
    """A world with one text and one function."""

    def __init__(self, text: str) -> None:
        self.context: Mapping[str, str] = {"report": text}
        self.functions: Mapping[str, Any] = {"look": self.look}

    def look(self) -> str:
        """Look again."""
        return "nothing new"


@dataclass(frozen=True, kw_only=True)
class Measured:
    seconds: float
    requests: tuple[int, ...]
    computed: int
    prompt: int


async def measure(
    replicas: int, *, policy: str | None, session_id: Literal["node", "tree"] = "node", dialect: ToolsDialect
) -> Measured:
    """Run all trees at once over this many replicas; without a policy there is no router."""
    states = [Replica() for _ in range(replicas)]
    async with AsyncExitStack() as stack:
        urls = [(await stack.enter_async_context(serve(state.script))).url for state in states]
        url = urls[0]
        if policy is not None:
            ports = list(free_ports(2))
            router = start_router(ports, urls, policy=policy)
            stack.callback(router.wait)
            stack.callback(router.kill)
            url = f"http://127.0.0.1:{ports[0]}"
            await answers(f"{url}/health")
        engine = await stack.enter_async_context(HttpEngine(url, model="m", concurrency=512, session_id=session_id))
        begun = time.perf_counter()
        async with anyio.create_task_group() as group:
            for number in range(TREES):
                group.start_soon(run_one, engine, dialect, number)
        seconds = time.perf_counter() - begun
    return Measured(
        seconds=seconds,
        requests=tuple(state.requests for state in states),
        computed=sum(state.computed_tokens for state in states),
        prompt=sum(state.prompt_tokens for state in states),
    )


async def run_one(engine: HttpEngine, dialect: ToolsDialect, number: int) -> None:
    text = " ".join(f"line {number}.{i}" for i in range(TEXT * 4 // 12))
    budget = Budget(tokens=20_000, nodes=CLONES + 1, depth=1, window=50_000)
    task = Task(question=f"Read {number}.", context={"report": text})
    tree = await ramet.run(task, engine=engine, budget=budget, world=Looking(text), dialect=dialect)
    assert tree.answer == "done"
    assert len(tree.nodes) == CLONES + 1


def main() -> None:
    cases = {
        "one replica": partial(measure, 1, policy=None),
        "two, round_robin": partial(measure, 2, policy="round_robin"),
        "two, session_id=node": partial(measure, 2, policy="consistent_hash"),
        "two, session_id=tree": partial(measure, 2, policy="consistent_hash", session_id="tree"),
    }
    for dialect in (ToolsDialect(), TextsFirst()):
        sys.stdout.write(f"{type(dialect).__name__}\n")
        measured = {name: anyio.run(partial(case, dialect=dialect)) for name, case in cases.items()}
        one = measured["one replica"]
        for name, found in measured.items():
            sys.stdout.write(
                f"{name:22} {found.seconds:6.1f} s  {one.seconds / found.seconds:4.2f}x  requests {found.requests}  "
                f"computed {found.computed:,} of {found.prompt:,} prompt tokens\n"
            )


if __name__ == "__main__":
    main()
