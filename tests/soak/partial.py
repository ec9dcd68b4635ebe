"""Partial answers with a real slow server: llama.cpp on loopback, deadlines and Ctrl-C, many tries.

    make partial-answers            # 50 tries at every depth, and 50 times Ctrl-C (about half an hour)

At depth d every node above the lowest level is made to delegate; the lowest level writes until its time is up. Four
trees run at a time. The last fifth of the tries is made without the server's prompt cache, so that closing calls begin
from nothing.

Deadlines follow the machine: before every ten tries the time of a prompt that is in no cache and of four tokens is
measured, four at a time, and the lowest level gets 3 to 4 times as much. No try is repeated. A try in which the
server sends no token before the deadline has no answer; it is counted like any other, and in a column of its own. The
exit code is 1 unless every try has an answer.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

import ramet
from ramet import Budget, Completion, HttpEngine, Prompt, Stop, Tree, read_trees
from ramet.tokens.render import Renderer
from tests.engine.llama import llama_server

CALL = '<tool_call>{"name": "delegate", "arguments": {"goals": ["Tell the story of part %d"]}}</tool_call>'
CONCURRENCY = 4  # trees at a time
MEASURED_EVERY = 10  # tries
UNCACHED = 0.2  # share of the tries
LEAST, MOST = 3.0, 4.0  # the time of the lowest level, in times of a short answer
ENDLESS = {"logit_bias": [[2, False], [0, False]]}  # the end of a turn is never sampled
# A shell starts background jobs with SIGINT ignored, and processes inherit that.
COMMAND = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from ramet.cli.main import main
sys.exit(main())
"""
COLUMNS = ("depth", "tries", "answers", "of all nodes", "no token", "deadlines", "slowest end")


def question(number: int) -> str:
    return f"Tell a very long story about the sea, number {number}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One try. `late_s`: how long after its deadline, or after Ctrl-C, it ended."""

    seconds: float
    late_s: float
    answered: bool
    complete: bool = True  # every node has an answer
    tokens: int = 1
    problem: str = ""  # anything else that is wrong


OneTry = Callable[[int, float, bool], Awaitable[Outcome]]  # its number, the time of a short answer, with the cache


@dataclass
class ForcedTurns:
    """Every node above the lowest level delegates at once; the model samples everything else."""

    depth: int
    free: HttpEngine

    @property
    def renderer(self) -> Renderer:
        return self.free.renderer

    async def sample(self, prompt: Prompt, **how: Any) -> Completion:
        if prompt.depth >= self.depth or prompt.turn:
            return await self.free.sample(prompt, **how)
        return Completion(text=CALL % (prompt.depth + 1), num_tokens=20, finish="stop")


async def short_answers(address: str) -> float:
    """Seconds of a prompt and 4 tokens without the cache, with as many at a time as trees."""
    took: list[float] = []
    budget = Budget(tokens=4, turns=1, depth=0, window=2000, reserve=2)

    async def one(number: int, engine: HttpEngine) -> None:
        began = anyio.current_time()
        await ramet.run(question(number), engine=engine, budget=budget)
        took.append(anyio.current_time() - began)

    async with (
        HttpEngine(address, model="smollm2", extra=ENDLESS | {"cache_prompt": False}) as engine,
        anyio.create_task_group() as group,
    ):
        for _ in range(CONCURRENCY):
            group.start_soon(one, random.randrange(10**6, 10**9), engine)
    return max(took)


async def one_deadline(address: str, number: int, unit_s: float, cached: bool, *, depth: int) -> Outcome:
    """The lowest level has its share of `unit_s`, after each level has kept a tenth of its own time."""
    seconds = unit_s * random.Random(number).uniform(LEAST, MOST) / 0.9 ** (depth + 1)
    budget = Budget(tokens=100_000, nodes=depth + 1, depth=depth, seconds=seconds, window=2000, reserve=64)
    extra = ENDLESS | {"cache_prompt": cached}
    async with HttpEngine(address, model="smollm2", extra=extra) as engine:
        tree = await ramet.run(question(number), engine=ForcedTurns(depth, engine), budget=budget, temperature=0.7)
    return Outcome(
        seconds=seconds,
        late_s=tree.seconds - seconds,
        answered=bool(tree.answer),
        complete=all(node.answer for node in tree.nodes),
        tokens=tree.usage.tokens - 20 * depth,
        problem=problem_of(tree, depth),
    )


def problem_of(tree: Tree, depth: int) -> str:
    """What no try may show, with or without an answer; empty if it does not."""
    if tree.depth != depth:
        return f"depth {tree.depth}"
    if tree.usage.tokens + tree.usage.lost_tokens > tree.budget.tokens:
        return "overspent"
    lowest = tree.nodes[-1]
    return "" if lowest.stop in (Stop.DEADLINE, Stop.WINDOW) else f"stopped by {lowest.stop}: {lowest.error}"


async def interrupted(address: str, number: int, unit_s: float, cached: bool) -> Outcome:
    del cached  # the command leaves that to the server
    return await anyio.to_thread.run_sync(one_interrupt, address, number, unit_s)


def one_interrupt(address: str, number: int, unit_s: float) -> Outcome:
    """Run the command, interrupt it after the time of 3 to 4 short answers, and read what it stored."""
    words = ["run", question(number), "--base-url", address, "--model", "smollm2", "--dialect", "tools"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", COMMAND, *words, "--tokens", "100000", "--runs", folder, "--depth", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            while not list(Path(folder).glob("*/config.toml")) and process.poll() is None:
                time.sleep(0.05)
            seconds = unit_s * random.Random(number).uniform(LEAST, MOST)
            time.sleep(seconds)
            process.send_signal(signal.SIGINT)
            sent = time.monotonic()
            said, _ = process.communicate(timeout=120)
            late = time.monotonic() - sent
        trees = [tree for run in Path(folder).iterdir() for tree in read_trees(run)]
    sampled = "".join(piece.text for tree in trees for piece in tree.root.pieces if piece.sampled)
    tokens = sum(tree.usage.tokens for tree in trees)
    problem = "" if trees else f"no tree: {said[-200:]!r}"
    return Outcome(seconds=seconds, late_s=late, answered=bool(sampled.strip()), tokens=tokens, problem=problem)


async def tries(address: str, count: int, one: OneTry) -> list[Outcome]:
    found: list[Outcome] = []

    async def work(numbers: Iterator[int], unit_s: float, cached: bool) -> None:
        for number in numbers:
            found.append(await one(number, unit_s, cached))

    for start in range(0, count, MEASURED_EVERY):
        numbers = iter(range(start, min(count, start + MEASURED_EVERY)))
        cached = start < (1 - UNCACHED) * count
        unit_s = await short_answers(address)
        async with anyio.create_task_group() as group:
            for _ in range(CONCURRENCY):
                group.start_soon(work, numbers, unit_s, cached)
    return found


def row(name: str, found: Sequence[Outcome]) -> tuple[str, ...]:
    shortest, longest = min(one.seconds for one in found), max(one.seconds for one in found)
    return (
        name,
        str(len(found)),
        str(sum(one.answered for one in found)),
        str(sum(one.complete for one in found)),
        str(sum(not one.tokens for one in found)),
        f"{shortest:.0f} to {longest:.0f} s",
        f"{max(one.late_s for one in found):+.2f} s",
    )


def report(cells: Sequence[str]) -> None:
    sys.stdout.write("| " + " | ".join(cells) + " |\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=50)
    parser.add_argument("--depths", type=int, nargs="*", default=[0, 1, 2, 3])
    parser.add_argument("--no-interrupts", action="store_true", help="deadlines only")
    options = parser.parse_args()
    bad: list[str] = []
    with llama_server() as address:
        kinds: list[tuple[str, OneTry]] = [
            (str(depth), partial(one_deadline, address, depth=depth)) for depth in options.depths
        ]
        if not options.no_interrupts:
            kinds.append(("Ctrl-C", partial(interrupted, address)))
        report(COLUMNS)
        report(["---"] * len(COLUMNS))
        for name, one in kinds:
            found = anyio.run(tries, address, options.tries, one)
            report(row(name, found))
            bad += [f"{name}: {one.problem or 'no answer'}" for one in found if one.problem or not one.answered]
    for line in bad:
        sys.stdout.write(line + "\n")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
