"""The overhead of a request through `ramet serve` and through LiteLLM's proxy, before the same model server.

Both are put in front of a server that answers at once. Overhead is the time of a request through them less the time of
the same request without them. The three take turns, so that a busy machine is as busy for each. The processor time of
a request depends little on what else the machine does.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx

from ramet.bench.serve import cpu_seconds
from ramet.bench.serve_upstream import MODEL
from ramet.engine.clients import Clients
from ramet.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

Facts = dict[str, Any]
START_S = 600.0  # LiteLLM's proxy takes minutes to import on a busy machine
SEQUENTIAL, PARALLEL, AT_ONCE = 40, 320, 32  # requests one by one; then so many, so many at once
KEY = f"sk-{secrets.token_hex(32)}"  # LiteLLM's proxy does not start without one


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that answers, and its process."""

    url: str
    pid: int


async def measure_overhead(folder: Path, *, rounds: int, python: Path | None) -> Facts:
    """Milliseconds per request of each, the best of the rounds."""
    with ExitStack() as stack:
        model = stack.enter_context(_process([sys.executable, "-m", "ramet.bench.serve_upstream"], "/v1/models"))
        servers = {"the model itself": model, "ramet serve": stack.enter_context(_ramet(folder, model.url))}
        if python is not None:
            servers["LiteLLM proxy"] = stack.enter_context(_litellm(folder, model.url, python))
        for server in servers.values():
            await _times(server.url, 10, at_once=1)
        best: dict[str, Facts] = {}
        for _ in range(rounds):
            for name, server in servers.items():
                best[name] = _better(best.get(name), await _measure(server))
    base = best["the model itself"]
    for facts in best.values():
        facts["overhead_ms"] = facts["one_ms"] - base["one_ms"]
        facts["overhead_parallel_ms"] = facts["parallel_ms"] - base["parallel_ms"]
    return best


async def _measure(server: Server) -> Facts:
    cpu = cpu_seconds(server.pid)
    one = statistics.median(await _times(server.url, SEQUENTIAL, at_once=1))
    between, began = cpu_seconds(server.pid), time.perf_counter()
    await _times(server.url, PARALLEL, at_once=AT_ONCE)
    seconds = time.perf_counter() - began
    return {
        "one_ms": one * 1e3,
        "parallel_ms": seconds / PARALLEL * 1e3,
        "cpu_ms": (between - cpu) / SEQUENTIAL * 1e3,
        "cpu_parallel_ms": (cpu_seconds(server.pid) - between) / PARALLEL * 1e3,
    }


def _better(best: Facts | None, found: Facts) -> Facts:
    return found if best is None else {name: min(value, best[name]) for name, value in found.items()}


async def _times(url: str, number: int, *, at_once: int) -> list[float]:
    """Seconds of every request."""
    seconds: list[float] = []
    waiting = iter(range(number))
    headers = {"authorization": f"Bearer {KEY}"}

    clients = Clients(httpx.Timeout(60.0))

    async def client() -> None:
        for _ in waiting:
            body = {"model": MODEL, "messages": [{"role": "user", "content": "What is six times seven?"}]}
            began = time.perf_counter()
            async with clients.stream("POST", f"{url}/chat/completions", json=body, headers=headers) as response:
                await response.aread()
            seconds.append(time.perf_counter() - began)
            if response.status_code != 200 or "42" not in response.text:
                raise ConfigError(f"{url} answered {response.status_code}: {response.text[:200]}")

    async with aclosing(clients), anyio.create_task_group() as group:
        for _ in range(at_once):
            group.start_soon(client)
    return seconds


@contextmanager
def _ramet(folder: Path, upstream: str) -> Generator[Server]:
    words = ["serve", "--base-url", upstream, "--model", MODEL, "--runs", str(folder / "overhead"), "--quiet"]
    with _process([sys.executable, "-m", "ramet", *words], "/v1/models") as server:
        yield server


@contextmanager
def _litellm(folder: Path, upstream: str, python: Path) -> Generator[Server]:
    program = python.with_name("litellm")
    if not program.exists():
        raise ConfigError(f"{python.parent} has no litellm: pip install 'litellm[proxy]' there")
    parameters = {"model": f"openai/{MODEL}", "api_base": upstream, "api_key": "none"}
    config = folder / "litellm.yaml"  # JSON is YAML
    config.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": parameters}]}))
    words = ["--config", str(config), "--host", "127.0.0.1", "--num_workers", "1"]
    with _process([str(program), *words], "/health/liveliness") as server:
        yield server


@contextmanager
def _process(command: Sequence[str], path: str) -> Generator[Server]:
    """A server on a free port, once it answers at `path`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_MASTER_KEY": KEY,
    }
    process = subprocess.Popen(
        [*command, "--port", str(port)], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait(process, f"http://127.0.0.1:{port}{path}", command)
        yield Server(url=f"http://127.0.0.1:{port}/v1", pid=process.pid)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, command: Sequence[str]) -> None:
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        try:
            httpx.get(url, timeout=5.0)
            return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise ConfigError(f"{' '.join(command[:3])} did not start")


def print_overhead(console: Console, found: Facts) -> None:
    """One row for each, and how many times ramet's overhead LiteLLM's is."""
    from rich.table import Table

    table = Table("", "ms, one at a time", "overhead", "CPU", f"ms, {AT_ONCE} at once", "overhead", "CPU")
    for name, facts in found.items():
        table.add_row(
            name,
            f"{facts['one_ms']:.1f}",
            f"{facts['overhead_ms']:.1f}",
            f"{facts['cpu_ms']:.1f}",
            f"{facts['parallel_ms']:.1f}",
            f"{facts['overhead_parallel_ms']:.1f}",
            f"{facts['cpu_parallel_ms']:.1f}",
        )
    console.print(table)
    if "LiteLLM proxy" in found:
        own, other = found["ramet serve"], found["LiteLLM proxy"]
        names = ("overhead_ms", "overhead_parallel_ms", "cpu_ms", "cpu_parallel_ms")
        one, many, cpu, cpu_many = (other[name] / max(own[name], 0.01) for name in names)
        console.print(
            f"LiteLLM's overhead is {one:.2f} times ramet's one at a time, {many:.2f} times under load; "
            f"its processor time {cpu:.2f} and {cpu_many:.2f} times"
        )
