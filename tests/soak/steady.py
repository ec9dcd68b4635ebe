"""One `ramet serve` process under a steady load of all kinds of clients; its memory, threads and files over time.

    make soak-serve                 # an hour; SECONDS=600 for ten minutes

20 clients at once ask, stream, use tools, read trees, disconnect and send nonsense; the model is a server on loopback.
The exit code is 1 if an answer is wrong, a tree is missing or over its budget, or anything grew: memory, threads and
open files are compared between the second quarter and the last.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import anyio
import httpx
from rich.console import Console
from rich.table import Table

from ramet.bench.serve import cpu_seconds, resident_mb
from tests.serve.scripted import ROOT
from tests.soak.model import MODEL
from tests.soak.rounds import Report
from tests.soak.serving import FLAT_MB, NONSENSE, check_served
from tests.waiting import until

CLIENTS = 20  # at once
EVERY_S = 10.0  # a sample
SHOWN_AT = (1 / 12, 1 / 4, 1 / 2, 3 / 4, 1.0)  # of the time: 5, 15, 30, 45 and 60 minutes of an hour
FEW = 8  # threads or files more than before are none; connections come and go
KEY = "a key of the soak test"
KEYS = f'[keys.soak]\nkey = "{KEY}"\nrequests = 64\ntokens_per_day = 1_000_000_000\n'
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
ADDRESS = re.compile(r"http://\S+")
out = Console(highlight=False, width=140)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The server at one moment. `run_files` are open files of the folder of runs."""

    seconds: float
    requests: int
    rss_mb: float
    cpu_s: float
    threads: int
    files: int
    run_files: int


@dataclass(slots=True)
class Load:
    """Clients of one server: what they did, which trees answered them, and what was wrong."""

    url: str
    report: Report
    dice: random.Random
    answered: set[str] = field(default_factory=set[str])
    newest: str | None = None  # tree
    requests: int = 0

    async def run(self, seconds: float) -> None:
        """Keep all clients busy until the time is up."""
        end = time.monotonic() + seconds
        headers = {"authorization": f"Bearer {KEY}"}

        async def client() -> None:
            # A session each: httpx is slow to find a free connection among many.
            async with httpx.AsyncClient(timeout=120.0, headers=headers) as session:
                while time.monotonic() < end:
                    await self.one(session)

        async with anyio.create_task_group() as group:
            for _ in range(CLIENTS):
                group.start_soon(client)

    async def one(self, session: httpx.AsyncClient) -> None:
        kinds = [self.whole, self.split, self.tools, self.leave, self.nonsense, self.look]
        try:
            await self.dice.choices(kinds, weights=[6, 4, 2, 3, 2, 1])[0](session)
        except httpx.HTTPError as error:
            self.report.check(False, f"a request failed: {type(error).__name__} {error}")

    async def post(self, session: httpx.AsyncClient, messages: list[Any], **more: Any) -> httpx.Response:
        body = {"model": "ramet:tokens=400,nodes=4", "messages": messages, **more}
        self.requests += 1
        response = await session.post(f"{self.url}/chat/completions", json=body)
        if response.status_code == 200:
            self.newest = response.headers["x-ramet-tree"]
            self.answered.add(self.newest)
        return response

    async def expect(self, session: httpx.AsyncClient, messages: list[Any], text: str, **more: Any) -> None:
        response = await self.post(session, messages, **more)
        self.report.done[f"answered with {response.status_code}"] += 1
        self.report.check(text in response.text, f"expected {text!r}, got {response.text[:200]}")

    async def whole(self, session: httpx.AsyncClient) -> None:
        question = f"question {self.dice.randrange(10**6)}"
        await self.expect(session, [said(question)], f"you said {question}")

    async def split(self, session: httpx.AsyncClient) -> None:
        await self.expect(session, [said("split this")], "data: [DONE]", stream=True)

    async def tools(self, session: httpx.AsyncClient) -> None:
        """A tool of the client, then its result."""
        first = await self.post(session, [said("weather please")], tools=[TOOL])
        message = first.json()["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "12 degrees"}
        await self.expect(session, [said("weather please"), message, result], "12 degrees", tools=[TOOL])
        self.report.done["tools used"] += 1

    async def leave(self, session: httpx.AsyncClient) -> None:
        """Disconnect from an answer that never ends, after a random time."""
        stream = self.dice.random() < 0.5
        with anyio.move_on_after(self.dice.uniform(0.0, 1.0)):
            await self.post(session, [said("stall")], stream=stream)
        self.report.done["disconnected"] += 1

    async def nonsense(self, session: httpx.AsyncClient) -> None:
        self.requests += 1
        response = await session.post(f"{self.url}/chat/completions", json=self.dice.choice(NONSENSE))
        self.report.check(400 <= response.status_code < 500, f"nonsense got {response.status_code}")
        self.report.done["nonsense"] += 1
        await anyio.sleep(0.3)

    async def look(self, session: httpx.AsyncClient) -> None:
        """Read a tree, or the metrics."""
        self.requests += 1
        tree = self.newest if self.dice.random() < 0.5 else None
        address = f"{self.url}/trees/{tree}" if tree else f"{self.url[:-3]}/metrics"
        response = await session.get(address)
        self.report.check(response.status_code == 200, f"{'a tree' if tree else 'metrics'} got {response.status_code}")
        self.report.done["read"] += 1
        await anyio.sleep(0.3)


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def sample(pid: int, runs: Path, *, seconds: float, requests: int) -> Sample:
    """What the system reports about the server."""
    process = Path(f"/proc/{pid}")
    files = open_files(process / "fd")
    return Sample(
        seconds=round(seconds, 1),
        requests=requests,
        rss_mb=round(resident_mb(pid), 1),
        cpu_s=cpu_seconds(pid),
        threads=len(list((process / "task").iterdir())),
        files=len(files),
        run_files=sum(name.startswith(str(runs)) for name in files),
    )


def open_files(folder: Path) -> list[str]:
    found: list[str] = []
    for file in folder.iterdir():
        with suppress(OSError):  # closed in the meantime
            found.append(os.readlink(file))
    return found


async def watch(load: Load, pid: int, runs: Path, file: Path, samples: list[Sample]) -> None:
    """A sample every ten seconds, also as a line of the file."""
    began = time.monotonic()
    with file.open("w", buffering=1) as stream:
        rows = csv.DictWriter(stream, [part.name for part in fields(Sample)])
        rows.writeheader()
        while True:
            samples.append(sample(pid, runs, seconds=time.monotonic() - began, requests=load.requests))
            rows.writerow(asdict(samples[-1]))
            await anyio.sleep(EVERY_S)


@contextmanager
def started(command: Sequence[str], **streams: Any) -> Generator[subprocess.Popen[str]]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths}
    process = subprocess.Popen([sys.executable, "-m", *command], env=environment, text=True, **streams)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def serving(folder: Path) -> Generator[tuple[subprocess.Popen[str], str]]:
    """The model, and `ramet serve` in front of it with its lines in `folder`."""
    (folder / "keys.toml").write_text(KEYS)
    log = folder / "serve.log"
    with ExitStack() as stack:
        upstream = stack.enter_context(started(["tests.soak.model"], stdout=subprocess.PIPE))
        assert upstream.stdout is not None
        words = ["--base-url", upstream.stdout.readline().strip(), "--model", MODEL, "--port", "0"]
        words += ["--runs", str(folder / "runs"), "--keys", str(folder / "keys.toml")]
        stream = stack.enter_context(log.open("w"))
        server = stack.enter_context(started(["ramet", "serve", *words], stderr=stream))
        until(lambda: "trees    " in log.read_text() or server.poll() is not None)
        address = ADDRESS.search(log.read_text())
        assert address is not None, log.read_text()
        yield server, address[0]


def soak(seconds: float, *, folder: Path, samples_file: Path, seed: int) -> tuple[Report, list[Sample]]:
    """Load for so many seconds, then SIGTERM, then a look at all trees."""
    report, samples = Report(), list[Sample]()
    with serving(folder) as (server, url):
        load = Load(url, report, random.Random(seed))

        async def play() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(watch, load, server.pid, folder / "runs", samples_file, samples)
                await load.run(seconds)
                group.cancel_scope.cancel()

        anyio.run(play)
        samples.append(sample(server.pid, folder / "runs", seconds=seconds, requests=load.requests))
        server.terminate()
        report.check(server.wait(60) == 0, f"after SIGTERM the server ended with {server.returncode}")
    report.done["requests"] = load.requests
    check_served(report, folder / "runs", load.answered)
    check_flat(report, samples)
    return report, samples


def check_flat(report: Report, samples: Sequence[Sample]) -> None:
    """Nothing grew between the second quarter and the last."""
    quarter = len(samples) // 4
    if not quarter:
        report.check(False, f"{len(samples)} samples are too few: give --seconds 60 or more")
        return
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    for name, most in (("rss_mb", FLAT_MB), ("threads", FEW), ("files", FEW), ("run_files", FEW)):
        before, after = (statistics.median(getattr(one, name) for one in part) for part in (early, late))
        report.check(after - before < most, f"{name} grew from {before:g} to {after:g}")


def table(samples: Sequence[Sample]) -> Table:
    shown = Table("minute", "requests", "memory, MB", "CPU, s", "threads", "open files", "of the run")
    for share in SHOWN_AT:
        at = samples[min(int(share * len(samples)), len(samples) - 1)]
        cells = [at.seconds / 60, at.requests, at.rss_mb, at.cpu_s, at.threads, at.files, at.run_files]
        shown.add_row(*(f"{cell:,.1f}" if isinstance(cell, float) else f"{cell:,}" for cell in cells))
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak-serve", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=Path, default=Path("runs/soak-serve.csv"), help="CSV file for the samples")
    given = parser.parse_args()
    given.samples.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ramet-soak-") as name:
        report, samples = soak(given.seconds, folder=Path(name), samples_file=given.samples, seed=given.seed)
    out.print(table(samples))
    out.print(", ".join(f"{number:,} {what}" for what, number in sorted(report.done.items())))
    for problem, times in Counter(report.broken).most_common(20):
        out.print(f"BROKEN ({times} times): {problem}")
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
