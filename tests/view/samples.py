"""Runs for the tests of the viewer: small, made by the real runtime where that matters."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import anyio

from ramet.agent.live import LiveLog
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.bench.view_runs import made_tree
from ramet.budget import Budget
from ramet.engine.scripted import ScriptedEngine, WordTokenizer
from ramet.store import RunDir
from ramet.tokens.render import TokenRenderer
from ramet.types import Completion, Meter, Piece, Prompt, Task, Tree, Verdict
from tests.waiting import PATIENCE_S

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\u202e"
TOKENIZER = WordTokenizer()  # of all scripted trees: a fork needs the tokens of its tree
BUDGET = Budget(tokens=2000, nodes=9, depth=2)


def delegate(goals: Sequence[str]) -> str:
    return f'<tool_call>{{"name": "delegate", "arguments": {{"goals": {json.dumps(goals)}}}}}</tool_call>'


def script(prompt: Prompt) -> str:
    """The root asks four clones; one of them asks two more, of which the second is refused."""
    if prompt.depth == 0 and prompt.turn == 0:
        return "Four parts. " + delegate(["count apples", "count pears", "count plums", f"read {HOSTILE}"])
    if prompt.goal == "count plums" and prompt.turn == 0:
        return delegate(["plums in the cellar", "plums in the attic"])
    return f"Answer: {HOSTILE if 'read' in prompt.goal else '7'}"


def scripted_tree(name: str = "orchard") -> Tree:
    """A tree of six nodes with a refusal, a wrong clone and hostile text, all with log-probs."""
    engine = ScriptedEngine(script, renderer=TokenRenderer(TOKENIZER))
    with ThreadPoolExecutor(1) as other:  # the thread of a browser test has an event loop of its own
        run = TreeRun("How many fruits are there?", TreeOptions(engine=engine, budget=BUDGET))
        tree = other.submit(anyio.run, run.run).result()
    tree.id = name
    for node in tree.nodes:
        wrong = node.goal == "count pears"
        node.verdict = Verdict(score=0.0 if wrong else 1.0, how="exact", reason="there are 9 pears" if wrong else "")
        node.pieces = [_surprising(piece) for piece in node.pieces]
    return tree


def _surprising(piece: Piece) -> Piece:
    return (
        replace(piece, logprobs=tuple(-0.7 * (i % 5) for i in range(len(piece.token_ids)))) if piece.sampled else piece
    )


def write_runs(folder: Path) -> Path:
    """A folder with a question, a training with two evaluations, and a run whose only file is damaged."""
    RunDir.create_at(folder / "orchard", kind="run").write([scripted_tree()])
    training = RunDir.create_at(folder / "training", kind="train")
    (training.path / "config.toml").write_text('task = "made:train"\nrule = "rao"\n', encoding="utf-8")
    dice = random.Random(7)
    for step in range(4):
        trees = [made_tree(f"{step:06d}-{i // 4:03d}-{i % 4:03d}", dice, nodes=1 + i % 5) for i in range(8)]
        for i, tree in enumerate(trees):
            tree.task = Task(question="count the lakes", id=f"made:train/{step}-{i // 4}")
        training.write(trees, name=f"step-{step:06d}")
        training.log({"step": step, "success": step / 4, "delegated": 0.5, "stops": {"window": 0.1}})
    for step in (2, 4):
        trees = [made_tree(f"eval-{step:06d}-{i:03d}", dice, nodes=step) for i in range(3)]
        for i, tree in enumerate(trees):
            tree.task = Task(question="count the rivers", id=f"made:eval/{i}")
        training.write(trees, name=f"eval-{step:06d}")
    RunDir.create_at(folder / "begun", kind="train")
    damaged = RunDir.create_at(folder / "damaged", kind="run")
    (damaged.path / "trees" / "000000-x.parquet").write_bytes(b"PAR1 not a table")
    return folder


class GatedEngine:
    """An engine whose words appear when a test says so. It fills the meter as real engines do."""

    renderer = TokenRenderer(WordTokenizer())

    def __init__(self) -> None:
        self.words = 0  # that may have appeared in every call
        self.calls = 0
        self.finish = threading.Event()

    async def sample(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        temperature: float = 1.0,
        seed: int | None = None,
        meter: Meter | None = None,
    ) -> Completion:
        del stop, temperature, seed
        ids = self.renderer.tokenizer.encode(script(prompt), control=False)[:max_tokens]
        meter = meter or Meter()
        meter.partial = lambda: self._completion(ids[: meter.tokens])
        self.calls += 1
        while not self.finish.is_set():
            meter.tokens = min(self.words, len(ids))
            await anyio.sleep(0.005)
        meter.tokens = len(ids)
        return self._completion(ids)

    def _completion(self, ids: Sequence[int]) -> Completion:
        text = self.renderer.tokenizer.decode(ids)
        return Completion(
            text=text, token_ids=tuple(ids), logprobs=(0.0,) * len(ids), num_tokens=len(ids), finish="stop"
        )


class RunningTree:
    """A tree that runs in a thread and writes to a run directory, as `ramet run` does."""

    def __init__(self, folder: Path, *, hold: bool = True) -> None:
        self.engine = GatedEngine()
        if not hold:
            self.engine.finish.set()
        self.run = RunDir.create_at(folder, kind="run")
        self.tree_run = TreeRun("How many fruits are there?", TreeOptions(engine=self.engine, budget=BUDGET))
        self.tree_run.watcher = LiveLog(self.run.path)
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    @property
    def id(self) -> str:
        return self.tree_run.tree.id

    def _work(self) -> None:
        anyio.run(self.tree_run.run)
        self.run.write([self.tree_run.tree])

    def end(self) -> None:
        self.engine.finish.set()
        self.thread.join(timeout=PATIENCE_S)
