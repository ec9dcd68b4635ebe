"""`ramet serve` under load: trees at once, none lost, none doubled, every token accounted for.

The server runs in a process of its own, with a scripted model whose every call takes a while. Each request asks for
another budget and gets an answer that names its question, so that a mix-up would be seen.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx

from ramet.budget import Budget
from ramet.engine.clients import Clients
from ramet.engine.scripted import Reply, ScriptedEngine
from ramet.errors import ConfigError
from ramet.serve.server import Served, serve
from ramet.serve.settings import ServeConfig
from ramet.store import read_trees
from ramet.types import Prompt, Tree

if TYPE_CHECKING:
    from rich.console import Console

Facts = dict[str, Any]
CALL_S = 0.2  # of the scripted model
CLONES = 4  # a question has 0 to 3 clones
QUEUE = 100
TIMEOUT_S = 120.0
MEMORY_AT = 0.2  # share of the requests after which memory is read for the first time


def script(prompt: Prompt) -> Reply:
    """Question N is given to N % 4 clones, whose answers the root counts."""
    if prompt.depth:
        return Reply(text="Answer: 1", seconds=CALL_S)
    clones = int(prompt.goal.split()[1]) % CLONES
    if clones and prompt.turn == 0:
        call = {"name": "delegate", "arguments": {"goals": [f"part {i}" for i in range(clones)]}}
        return Reply(text=f"<tool_call>{json.dumps(call)}</tool_call>", seconds=CALL_S)
    counted = sum(line.startswith("clone ") for line in prompt.last.splitlines())
    return Reply(text=f"Answer: {prompt.goal} has {counted}", seconds=CALL_S)


def budget_of(number: int) -> dict[str, int]:
    """The limits that request `number` asks for: each request other ones."""
    return {"tokens": 400 + number % 500, "nodes": CLONES + number % 3, "depth": 1 + number % 2}


class Forgetful(list[Prompt]):
    """The record of a scripted engine's prompts, which would be most of the memory after thousands of trees."""

    def append(self, prompt: Prompt, /) -> None:
        del prompt


@dataclass(slots=True, kw_only=True)
class Load:
    """What clients saw."""

    latencies: list[float] = field(default_factory=list[float])
    trees: list[str] = field(default_factory=list[str])
    tokens: int = 0
    statuses: dict[int, int] = field(default_factory=dict[int, int])
    wrong: list[str] = field(default_factory=list[str])
    retry_after: int = 0  # refusals that say when to try again

    def add(self, number: int, response: httpx.Response, seconds: float) -> None:
        self.statuses[response.status_code] = self.statuses.get(response.status_code, 0) + 1
        if response.status_code != 200:
            self.retry_after += int(response.headers.get("retry-after", 0)) > 0
            return
        found, asked = response.json(), budget_of(number)
        details = found["usage"]["ramet"]
        text = found["choices"][0]["message"]["content"]
        if text != f"question {number} has {number % CLONES}":
            self.wrong.append(f"request {number} was answered with {text!r}")
        if any(details["budget"][name] != limit for name, limit in asked.items()):
            self.wrong.append(f"request {number} asked for {asked} and had {details['budget']}")
        if found["usage"]["completion_tokens"] > asked["tokens"] or details["nodes"] > asked["nodes"]:
            self.wrong.append(f"request {number} used more than it was allowed")
        self.latencies.append(seconds)
        self.trees.append(details["tree"])
        self.tokens += found["usage"]["completion_tokens"]


async def send(url: str, numbers: Sequence[int], *, at_once: int) -> Load:
    """Send one request per number, so many at once."""
    load = Load()
    waiting = iter(numbers)
    clients = Clients(httpx.Timeout(TIMEOUT_S))

    async def client() -> None:
        for number in waiting:
            limits = ",".join(f"{name}={limit}" for name, limit in budget_of(number).items())
            message = {"role": "user", "content": f"question {number}"}
            body = {"model": f"ramet:{limits}", "messages": [message]}
            began = time.perf_counter()
            async with clients.stream("POST", f"{url}/chat/completions", json=body) as response:
                await response.aread()
            load.add(number, response, time.perf_counter() - began)

    async with aclosing(clients), anyio.create_task_group() as group:
        for _ in range(at_once):
            group.start_soon(client)
    return load


async def under_load(url: str, pid: int, *, requests: int, at_once: int) -> tuple[Load, Facts]:
    """All requests, with the memory of the server after a part of them and at the end."""
    early = max(1, int(requests * MEMORY_AT))
    cpu, began = cpu_seconds(pid), time.perf_counter()
    load = await send(url, range(early), at_once=at_once)
    memory = resident_mb(pid)
    rest = await send(url, range(early, requests), at_once=at_once)
    seconds = time.perf_counter() - began
    load.latencies += rest.latencies
    load.trees += rest.trees
    load.wrong += rest.wrong
    load.tokens += rest.tokens
    load.statuses = {
        status: load.statuses.get(status, 0) + rest.statuses.get(status, 0)
        for status in {*load.statuses, *rest.statuses}
    }
    return load, {
        "seconds": seconds,
        "cpu_s": cpu_seconds(pid) - cpu,
        "early_mb": memory,
        "end_mb": resident_mb(pid),
    }


def check(load: Load, trees: Sequence[Tree], *, requests: int, generated: int) -> list[str]:
    """Everything that is wrong: requests lost or doubled, trees without an answer, tokens missing from usage."""
    wrong = load.wrong[:10]
    if load.statuses != {200: requests}:
        wrong.append(f"of {requests:,} requests these were answered: {load.statuses}")
    stored = [tree.id for tree in trees]
    if len(set(load.trees)) != len(load.trees) or len(set(stored)) != len(stored):
        wrong.append("a tree answered two requests, or is stored twice")
    if set(stored) != set(load.trees):
        wrong.append(f"{len(set(stored) ^ set(load.trees)):,} trees are stored or answered, not both")
    if not load.tokens == generated == sum(tree.usage.tokens for tree in trees):
        wrong.append(f"the model generated {generated:,} tokens, responses report {load.tokens:,}")
    over = [tree.id for tree in trees if tree.usage.tokens + tree.usage.lost_tokens > tree.budget.tokens]
    return [*wrong, *(f"tree {tree_id} is over its budget" for tree_id in over[:10])]


async def measure_load(folder: Path, *, requests: int, at_once: int) -> Facts:
    """Load, then twice as many requests as there are places; then what the run directory has."""
    with server_process(folder, at_once) as (process, url):
        load, facts = await under_load(url, process.pid, requests=requests, at_once=at_once)
        burst = 2 * (at_once + QUEUE)
        overload = await send(url, range(requests, requests + burst), at_once=burst)
        process.terminate()
        ended = json.loads(process.communicate()[0].strip().splitlines()[-1])
    run, trees = _stored(folder)
    refused = set(overload.trees)
    served = [tree for tree in trees if tree.id not in refused]
    generated = ended["generated"] - overload.tokens
    wrong = check(load, served, requests=requests, generated=generated)
    answered = overload.statuses.get(200, 0)
    if {*overload.statuses} - {200, 429} or overload.retry_after != overload.statuses.get(429, 0):
        wrong.append(f"overload was answered with {overload.statuses}, {overload.retry_after} with Retry-After")
    return {
        **facts,
        "requests": requests,
        "at_once": at_once,
        "most_at_once": ended["most_at_once"],
        "per_second": requests / facts["seconds"],
        "cpu_ms_per_request": facts["cpu_s"] / requests * 1e3,
        "median_s": statistics.median(load.latencies),
        "p99_s": statistics.quantiles(load.latencies, n=100)[98],
        "files": _num_files(run),
        "overload": {"sent": burst, "answered": answered, "refused": overload.statuses.get(429, 0)},
        "wrong": wrong,
    }


def _stored(folder: Path) -> tuple[Path, list[Tree]]:
    """The run directory of the server, and its trees."""
    run = next(folder.glob("serve-*"))
    return run, list(read_trees(run))


def _num_files(run: Path) -> int:
    return len(list((run / "trees").iterdir()))


@contextmanager
def server_process(folder: Path, at_once: int) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A server with the scripted model, in a process of its own."""
    command = [sys.executable, "-m", "ramet.bench.serve", "--runs", str(folder), "--at-once", str(at_once)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None:
            raise AssertionError("standard output is a pipe")
        url = process.stdout.readline().strip()
        if not url:
            raise ConfigError("the server did not start")
        yield process, url
    finally:
        process.kill()
        process.wait()


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far; 0 where the system does not say."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def resident_mb(pid: int) -> float:
    """Memory of a process; 0 where the system does not say."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024
    return 0.0


def bench(*, requests: int, at_once: int, disconnects: int, rounds: int, python: Path | None, as_json: bool) -> bool:
    """Measure, print, and return whether nothing was wrong. A part with the number 0 is left out."""
    from rich.console import Console

    from ramet.bench.serve_disconnects import measure_disconnects, print_disconnects
    from ramet.bench.serve_peers import measure_overhead, print_overhead

    console = Console(stderr=as_json, highlight=False)
    found: dict[str, Facts] = {}
    with tempfile.TemporaryDirectory() as name, console.status("measuring"):
        folder = Path(name)
        parts: list[tuple[str, int, Any, Callable[[Console, Facts], None]]] = [
            ("load", requests, partial(measure_load, folder, requests=requests, at_once=at_once), _print_load),
            ("disconnects", disconnects, partial(measure_disconnects, folder, number=disconnects), print_disconnects),
            ("overhead", rounds, partial(measure_overhead, folder, rounds=rounds, python=python), print_overhead),
        ]
        for part, number, measure, show in parts:
            if number:
                found[part] = anyio.run(measure)
                show(console, found[part])
    if as_json:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return not found.get("load", {}).get("wrong")


def _print_load(console: Console, load: Facts) -> None:
    over = load["overload"]
    console.print(
        f"{load['requests']:,} requests, up to {load['most_at_once']} trees at once: {load['seconds']:.1f} s, "
        f"{load['per_second']:.0f} requests/s, {load['cpu_ms_per_request']:.1f} ms of the server's CPU each"
    )
    console.print(f"latency: median {load['median_s']:.2f} s, 99% within {load['p99_s']:.2f} s")
    console.print(f"memory: {load['early_mb']:.0f} MB after a fifth, {load['end_mb']:.0f} MB at the end")
    console.print(
        f"overload: {over['sent']} at once, {over['answered']} answered, {over['refused']} refused with Retry-After"
    )
    for problem in load["wrong"]:
        console.print(f"WRONG: {problem}", style="red")
    if not load["wrong"]:
        console.print("none lost, none doubled, every budget and token exact")


def main() -> None:
    """Serve the scripted model; at the end, print what it generated as JSON. `bench` starts this."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", required=True)
    parser.add_argument("--at-once", type=int, required=True)
    given = parser.parse_args()
    engine = ScriptedEngine(script)
    engine.prompts = Forgetful()
    config = ServeConfig(
        port=0, concurrency=given.at_once, queue=QUEUE, budget=Budget(tokens=1000, nodes=8, depth=3), name="bench"
    )
    services: list[Served] = []

    def announce(served: Served) -> None:
        services.append(served)
        sys.stdout.write(served.url + "\n")
        sys.stdout.flush()

    anyio.run(partial(serve, config, engine, runs=given.runs, on_start=announce))
    facts = {"generated": engine.generated, "most_at_once": services[0].service.gate.most_running}
    sys.stdout.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
