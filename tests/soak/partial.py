"""Partial answers with a real slow server: llama.cpp on loopback, deadlines and Ctrl-C, many tries.

    make partial-answers            # 50 tries at every depth, and 50 times Ctrl-C (about half an hour)

At depth d every node above the lowest level is made to delegate; the lowest level writes until its time is up. A try
passes if every node has an answer, and if what the budget covers was not exceeded. A try with Ctrl-C passes if the run
directory has text of the model.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

import ramet
from ramet import Budget, Completion, HttpEngine, Prompt, Stop, Tree, read_trees
from ramet.tokens.render import Renderer
from tests.engine.llama import llama_server

CALL = '<tool_call>{"name": "delegate", "arguments": {"goals": ["Tell the story of part %d"]}}</tool_call>'
NOTHING_YET = "no token had arrived"
CONCURRENCY = 4  # trees at a time
QUESTION = "Tell a very long story about the sea."


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


async def one_deadline(address: str, depth: int, seconds: float) -> Tree:
    budget = Budget(tokens=100_000, nodes=depth + 1, depth=depth, seconds=seconds, window=2000, reserve=64)
    endless = {"logit_bias": [[2, False], [0, False]]}  # the end of a turn is never sampled
    async with HttpEngine(address, model="smollm2", extra=endless) as engine:
        return await ramet.run(QUESTION, engine=ForcedTurns(depth, engine), budget=budget, temperature=0.7)


def problem_of(tree: Tree, depth: int) -> str:
    """What is wrong with a tree that a deadline ended; empty if nothing is."""
    if tree.depth != depth:
        return f"depth {tree.depth}"
    if tree.usage.tokens + tree.usage.lost_tokens > tree.budget.tokens:
        return "overspent"
    lowest = tree.nodes[-1]
    if not any(piece.sampled and piece.text.strip() for piece in lowest.pieces):
        return NOTHING_YET
    for node in tree.nodes:
        if not node.answer:
            return f"no answer at depth {node.depth} ({node.stop})"
        if node.depth == depth and node.stop not in (Stop.DEADLINE, Stop.WINDOW):
            return f"stopped by {node.stop}"
    return ""


async def deadlines(address: str, tries: int, depth: int) -> Counter[str]:
    """Try several at once: the server is slow, and slower still with more requests."""
    found: Counter[str] = Counter()
    waiting = iter(range(tries))

    async def work() -> None:
        for number in waiting:
            seconds = 8.0 + random.Random(number).random() * 4
            outcome = NOTHING_YET
            while outcome == NOTHING_YET:  # so little time that no node can have an answer: take more
                outcome = problem_of(await one_deadline(address, depth, seconds), depth) or "answered"
                seconds *= 2
            found[outcome] += 1

    async with anyio.create_task_group() as group:
        for _ in range(CONCURRENCY):
            group.start_soon(work)
    return found


async def interrupts(address: str, tries: int) -> Counter[str]:
    found: Counter[str] = Counter()
    waiting = iter(range(tries))

    async def work() -> None:
        for number in waiting:
            with tempfile.TemporaryDirectory() as folder:
                wait_s = 6 + random.Random(number).random() * 3
                outcome = NOTHING_YET
                while outcome == NOTHING_YET:  # the server had not sent a token: wait longer
                    outcome = await anyio.to_thread.run_sync(one_interrupt, address, folder, wait_s)
                    wait_s *= 2
                found[outcome] += 1

    async with anyio.create_task_group() as group:
        for _ in range(CONCURRENCY):
            group.start_soon(work)
    return found


def one_interrupt(address: str, folder: str, wait_s: float) -> str:
    """Run the command, interrupt it some time after the first token, and read what it stored."""
    code = "import sys; from ramet.cli.main import main; sys.exit(main())"
    words = ["run", QUESTION, "--base-url", address, "--model", "smollm2", "--dialect", "tools"]
    command = [sys.executable, "-c", code, *words, "--tokens", "100000", "--runs", folder, "--depth", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while not list(Path(folder).glob("*/config.toml")) and process.poll() is None:
            time.sleep(0.05)
        time.sleep(wait_s)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    newest = max(Path(folder).iterdir(), key=lambda run: run.stat().st_mtime)
    trees = list(read_trees(newest))
    if not trees:
        return f"no tree: {said[-200:]}"
    if not trees[0].usage.tokens:
        return NOTHING_YET
    sampled = [piece.text for node in trees[0].nodes for piece in node.pieces if piece.sampled]
    return "text" if any(text.strip() for text in sampled) else f"no text ({trees[0].root.stop})"


def report(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=50)
    parser.add_argument("--depths", type=int, nargs="*", default=[0, 1, 2, 3])
    options = parser.parse_args()
    with llama_server() as address:
        found = anyio.run(interrupts, address, options.tries)
        report(f"Ctrl-C: {found['text']} of {options.tries} have the text {dict(found)}")
        good = found["text"] == options.tries
        for depth in options.depths:
            found = anyio.run(deadlines, address, options.tries, depth)
            report(f"depth {depth}: {found['answered']} of {options.tries} answered {dict(found)}")
            good = good and found["answered"] == options.tries
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
