"""Trees over two replicas behind the real vllm-router: what stays together, and what passes through."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import anyio
import httpx
import pytest

import ramet
from ramet import HttpEngine, Message, Prompt, Tree
from ramet.engine.http import request_id
from ramet.engine.scripted import WordTokenizer
from ramet.tokens.render import TokenRenderer
from ramet.types import Meter
from tests.cluster.conftest import ENVIRONMENTS
from tests.engine.faulty import Answer, FaultyServer, Received, Script, chat, says, serve, stream, until, usage, vllm

TREES = 16  # all on one of two replicas by chance: once in 30,000 times
CALL = json.dumps({"name": "delegate", "arguments": {"goals": ["first", "second", "third"]}})
READY_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Routed:
    """A router and the two replicas behind it."""

    url: str
    replicas: tuple[FaultyServer, FaultyServer]

    def replicas_of(self, header: Literal["x-request-id", "x-session-id"]) -> dict[str, set[int]]:
        """The replicas that got requests with each value of a header."""
        found: dict[str, set[int]] = defaultdict(set)
        for number, replica in enumerate(self.replicas):
            for request in replica.requests:
                found[request.headers[header]].add(number)
        return found


def delegates(request: Received) -> Answer:
    """The root asks three clones and then answers; a clone answers at once."""
    if request.goal in ("first", "second", "third"):
        return says("Answer: done")
    is_first = len(request.body["messages"]) == 2
    return says(f"<tool_call>{CALL}</tool_call>" if is_first else "Answer: all done")


@asynccontextmanager
async def routed(script: Script) -> AsyncGenerator[Routed]:
    """Two replicas with one script behind `vllm-router --policy consistent_hash`."""
    async with serve(script) as one, serve(script) as other:
        ports = list(free_ports(2))
        router = start_router(ports, [one.url, other.url])
        try:
            url = f"http://127.0.0.1:{ports[0]}"
            await answers(f"{url}/health")
            with anyio.fail_after(READY_S):
                yield Routed(url=url, replicas=(one, other))
        finally:
            router.kill()
            router.wait()


def start_router(
    ports: Sequence[int], workers: Sequence[str], *, policy: str = "consistent_hash"
) -> subprocess.Popen[bytes]:
    options = {
        "host": "127.0.0.1",
        "port": ports[0],
        "prometheus-port": ports[1],
        "policy": policy,
        "worker-startup-check-interval": 1,
        "log-level": "error",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return subprocess.Popen(
        [
            *(str(ENVIRONMENTS / "router" / "bin" / "vllm-router"), *words, "--disable-retries"),
            *("--worker-urls", *(url.removesuffix("/v1") for url in workers)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": ""},
    )


def free_ports(count: int) -> Iterable[int]:
    """Ports that were free a moment ago; the router takes numbers only."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    for each in sockets:
        yield each.getsockname()[1]
    for each in sockets:
        each.close()


async def answers(url: str) -> None:
    async with httpx.AsyncClient() as client:
        with anyio.fail_after(READY_S):
            while True:
                try:
                    if (await client.get(url)).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                await anyio.sleep(0.1)


async def run_trees(engine: HttpEngine) -> list[Tree]:
    trees: list[Tree] = []

    async def run_one() -> None:
        trees.append(await ramet.run("Do it all.", engine=engine))

    async with anyio.create_task_group() as group:
        for _ in range(TREES):
            group.start_soon(run_one)
    return trees


@pytest.mark.anyio
async def test_all_turns_of_a_node_reach_the_replica_that_has_its_prefix():
    async with routed(delegates) as behind, HttpEngine(behind.url, model="m") as engine:
        trees = await run_trees(engine)
    of_node = behind.replicas_of("x-request-id")
    assert len(of_node) == 4 * TREES
    assert all(len(replicas) == 1 for replicas in of_node.values())
    per_tree = [set[int]().union(*(of_node[request_id(f"{tree.id}/{i}")] for i in range(4))) for tree in trees]
    assert {0, 1} in per_tree  # the clones of one tree are spread
    assert all(replica.requests for replica in behind.replicas)


@pytest.mark.anyio
async def test_all_nodes_of_a_tree_reach_one_replica_if_asked_for():
    async with routed(delegates) as behind, HttpEngine(behind.url, model="m", session_id="tree") as engine:
        trees = await run_trees(engine)
    of_tree = behind.replicas_of("x-session-id")
    assert set(of_tree) == {tree.id for tree in trees}
    assert all(len(replicas) == 1 for replicas in of_tree.values())
    assert all(replica.requests for replica in behind.replicas)


@pytest.mark.anyio
async def test_token_ids_and_log_probs_pass_through_the_router():
    tokenizer = WordTokenizer()
    to, be, or_, *_ = tokenizer.encode("to be or not")
    answer = stream(vllm("to", [to]), vllm(" be", [be]), vllm("", [], finish="stop"), usage(2))
    async with (
        routed(answer) as behind,
        HttpEngine(behind.url, model="m", tokenizer=TokenRenderer(tokenizer)) as engine,
    ):
        prompt = Prompt(messages=(), ids=[or_, be, to], node_id="tree/0")
        completion = await engine.sample(prompt, max_tokens=7, seed=11, stop=["x"])
    [request] = [request for replica in behind.replicas for request in replica.requests]
    sent = {name: request.body[name] for name in ("prompt", "max_tokens", "seed", "logprobs", "return_token_ids")}
    assert sent == {"prompt": [or_, be, to], "max_tokens": 7, "seed": 11, "logprobs": 1, "return_token_ids": True}
    assert (completion.token_ids, completion.logprobs) == ((to, be), (-0.5, -0.5))


@pytest.mark.anyio
async def test_a_cancelled_request_ends_on_the_replica():
    """With the next token that the replica sends: the router notices only when it passes one on."""
    answer = stream(*[chat("one "), 0.02] * 5000)
    prompt = Prompt(messages=[Message("system", "s"), Message("user", "u")], ids=None, node_id="tree/0")
    async with routed(answer) as behind, HttpEngine(behind.url, model="m") as engine:
        meter = Meter()
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: engine.sample(prompt, max_tokens=5000, meter=meter))
            await until(lambda: meter.tokens >= 3)
            group.cancel_scope.cancel()
        [request] = [request for replica in behind.replicas for request in replica.requests]
        await until(lambda: request.disconnected)
