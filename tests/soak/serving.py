"""A server whose clients answer, stream, disconnect, overload it and send nonsense, until it is stopped or killed."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import anyio
import httpx

from ramet.bench.serve import resident_mb
from ramet.store import read_trees
from tests.serve.scripted import process
from tests.soak.checks import check_budgets
from tests.soak.rounds import Place, Report

CLIENTS, REQUESTS = 24, 25  # at once, and of each
MEMORY_REQUESTS = 1500
FLAT_MB = 12.0  # the index of recent trees and the allocator's own; a leak of a tree per request would be over 50
PROMPT_S = 0.5  # a tree ends this soon after its client has gone
NONSENSE: list[Any] = [{}, {"model": 3}, {"model": "ramet", "messages": "x"}, [], {"model": "ramet", "n": 2}]


def ask(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "ramet:tokens=400", "messages": [{"role": "user", "content": text}], **more}


class Clients:
    """Clients of one server, and the trees whose answers they got."""

    def __init__(self, url: str, dice: random.Random, report: Report) -> None:
        self.url = url
        self.dice = dice
        self.report = report
        self.answered: set[str] = set()

    async def one(self, session: httpx.AsyncClient) -> None:
        """One request of a random kind. When the server is gone, so is the client."""
        kinds = [self.whole, self.stream, self.leave, self.nonsense]
        kind = self.dice.choices(kinds, weights=[5, 3, 2, 1])[0]
        try:
            await kind(session)
        except httpx.HTTPError:
            self.report.done["cut off by the end of the server"] += 1

    async def whole(self, session: httpx.AsyncClient) -> None:
        number = self.dice.randrange(10**6)
        response = await session.post(f"{self.url}/chat/completions", json=ask(f"question {number}"))
        self.report.done[f"answered with {response.status_code}"] += 1
        self.report.check(response.status_code in (200, 429, 503), f"a question got {response.text[:200]}")
        if response.status_code == 200:
            self.answered.add(response.headers["x-ramet-tree"])
            text = response.json()["choices"][0]["message"]["content"]
            self.report.check(text == f"you said question {number}", f"question {number} got {text!r}")

    async def stream(self, session: httpx.AsyncClient) -> None:
        body = ask(self.dice.choice(["split this", "late"]), stream=True)
        async with session.stream("POST", f"{self.url}/chat/completions", json=body) as response:
            lines = [line async for line in response.aiter_lines() if line]
        if response.status_code == 200:
            self.report.done["streamed"] += 1
            self.report.check(lines[-1] == "data: [DONE]", f"a stream ended with {lines[-1][:200]}")
            self.answered.add(response.headers["x-ramet-tree"])

    async def leave(self, session: httpx.AsyncClient) -> None:
        """Disconnect from a tree that would take an hour, after a random time."""
        with anyio.move_on_after(self.dice.uniform(0.0, 0.3)):
            await session.post(f"{self.url}/chat/completions", json=ask("stall"))
        self.report.done["disconnected"] += 1

    async def nonsense(self, session: httpx.AsyncClient) -> None:
        response = await session.post(f"{self.url}/chat/completions", json=self.dice.choice(NONSENSE))
        self.report.check(400 <= response.status_code < 500, f"nonsense got {response.status_code}")
        self.report.done["nonsense"] += 1

    async def run(self) -> None:
        async def client(session: httpx.AsyncClient) -> None:
            for _ in range(REQUESTS):
                await self.one(session)

        limits = httpx.Limits(max_connections=CLIENTS)
        async with httpx.AsyncClient(timeout=120.0, limits=limits) as session, anyio.create_task_group() as group:
            for _ in range(CLIENTS):
                group.start_soon(client, session)


async def until_idle(health: str, session: httpx.AsyncClient, report: Report) -> None:
    """After the last client has gone, no tree runs, soon. `session` has a connection: opening one takes time."""
    began = time.monotonic()
    while (await session.get(health)).json()["running"]:
        if time.monotonic() - began > 30.0:
            return report.check(False, "trees run on after their clients have gone")
        await anyio.sleep(0.005)
    return report.measured(time.monotonic() - began, limit=PROMPT_S)


def serve_faults(place: Place) -> Report:
    """Clients of all kinds, then SIGTERM or a kill in the middle of their requests, or at the end."""
    report = Report()
    with process(place.folder, "concurrency=16", "queue=4", "grace_s=2") as (server, url):
        clients = Clients(url, place.dice, report)
        how = place.dice.choice(["SIGTERM", "kill -9", "at the end"])

        async def play() -> None:
            health = url.replace("/v1", "/health")
            async with httpx.AsyncClient(timeout=60.0) as session:
                await session.get(health)
                async with anyio.create_task_group() as group:
                    if how != "at the end":
                        group.start_soon(_stop, server, how, place.dice.uniform(0.5, 5.0))
                    await clients.run()
                if how == "at the end":
                    await until_idle(health, session, report)

        anyio.run(play)
        report.done[how] += 1
        if how == "at the end":
            server.terminate()
        code = server.wait(60)
        report.check(code == (-signal.SIGKILL if how == "kill -9" else 0), f"the server ended with {code}")
    check_served(report, place.folder, clients.answered)
    return report


async def _stop(server: subprocess.Popen[str], how: str, after_s: float) -> None:
    await anyio.sleep(after_s)
    server.send_signal(signal.SIGKILL if how == "kill -9" else signal.SIGTERM)


def check_served(report: Report, runs: Path, answered: set[str]) -> None:
    """Every tree whose answer a client got is stored, once, and within its budget."""
    trees = [tree for meta in runs.glob("serve-*/meta.json") for tree in read_trees(meta.parent)]
    ids = [tree.id for tree in trees]
    report.check(len(ids) == len(set(ids)), f"{len(ids) - len(set(ids))} trees are stored twice")
    missing = answered - set(ids)
    report.check(not missing, f"{len(missing)} of {len(answered)} answered trees are not stored")
    check_budgets(report, trees)


def serve_memory(place: Place) -> Report:
    """The same requests again and again: the memory of the server stays what it was."""
    report = Report()
    with process(place.folder) as (server, url):

        async def send(number: int) -> None:
            clients = Clients(url, place.dice, report)
            limit = anyio.CapacityLimiter(CLIENTS)

            async def one(session: httpx.AsyncClient) -> None:
                async with limit:
                    await clients.whole(session) if place.dice.random() < 0.5 else await clients.stream(session)

            async with httpx.AsyncClient(timeout=120.0) as session, anyio.create_task_group() as group:
                for _ in range(number):
                    group.start_soon(one, session)

        anyio.run(send, MEMORY_REQUESTS // 3)
        early = resident_mb(server.pid)
        anyio.run(send, MEMORY_REQUESTS)
        grown = resident_mb(server.pid) - early
        report.check(grown < FLAT_MB, f"{MEMORY_REQUESTS:,} requests added {grown:.1f} MB to {early:.1f} MB")
        report.done["requests with memory measured"] += MEMORY_REQUESTS
    return report
