"""Run directories made by hand, small enough to work out every number on a page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ramet
from ramet.evaluate.journal import FILE, write_records
from ramet.evaluate.record import Record
from ramet.store import RunDir
from ramet.types import Stop, Turn, Usage, Verdict

PLAIN: dict[str, Any] = {
    "bucket": "small",
    "size": 2.0,
    "beyond": False,
    "answer": "4",
    "generated": 100,
    "prompt": 300,
    "cached": 0,
    "critical_path": 100,
    "critical_path_prompts": 400,
    "peak_window": 200,
    "nodes": 1,
    "depth": 0,
    "delegated": False,
    "concurrent": None,
    "seconds": 1.0,
    "dollars": None,
}


def record(method: str, budget: int | None, number: int, score: float, **more: Any) -> Record:
    """One item with default values; its tree is named after its place."""
    trees = (f"{method.replace('@', '-').replace('/', '-')}-{budget}-{number:03d}",)
    own = {"method": method, "budget": budget, "task": f"sums:eval/{number}", "score": score, "trees": trees}
    return Record(**(PLAIN | own | more))


def records(method: str, budget: int | None, scores: str, **more: Any) -> list[Record]:
    """One item per character: 1 is right, 0 is wrong."""
    return [record(method, budget, number, float(sign), **more) for number, sign in enumerate(scores)]


def tree(
    name: str, *, question: str = "2 + 2", answer: str = "4", score: float = 1.0, split: bool = False
) -> ramet.Tree:
    """A root with 10 + 5 tokens, and with `split` two parallel clones with 20 and 30 tokens."""
    turns = [Turn(tokens=10, finish="stop", started_s=0.0, sampled_s=1.0, children=[1, 2] if split else [])]
    turns.append(Turn(tokens=5, finish="stop", started_s=4.0, sampled_s=4.5))
    nodes = [_node(0, None, question, 15, 45 if split else 15, 0.0, 4.5, turns=turns, answer=answer, score=score)]
    if split:
        for index, tokens, end in ((1, 20, 3.0), (2, 30, 4.0)):
            turn = Turn(tokens=tokens, finish="stop", started_s=1.0, sampled_s=end)
            nodes.append(
                _node(index, 0, f"part {index}", tokens, tokens, 1.0, end, turns=[turn], answer="2", score=1.0)
            )
    task = ramet.Task(question=question, id="sums:eval/0")
    return ramet.Tree(id=name, task=task, budget=ramet.Budget(), dialect="tools", nodes=nodes, seconds=4.5)


def _node(
    index: int, parent: int | None, goal: str, tokens: int, path: int, start: float, end: float, **more: Any
) -> ramet.Node:
    return ramet.Node(
        index=index,
        parent=parent,
        depth=0 if parent is None else 1,
        path=() if parent is None else (index - 1,),
        goal=goal,
        grant=100,
        stop=Stop.ANSWERED,
        answer=more["answer"],
        turns=more["turns"],
        usage=Usage(tokens=tokens, critical_path_tokens=path),
        verdict=Verdict(score=more["score"], how="exact", reason="compared with the reference"),
        started_s=start,
        ended_s=end,
    )


def run_dir(
    parent: Path,
    name: str,
    *,
    kind: str = "eval",
    records: Sequence[Record] = (),
    trees: Sequence[ramet.Tree] = (),
    metrics: Sequence[dict[str, Any]] = (),
    **meta: Any,
) -> Path:
    """A run directory with this content and a fixed date."""
    run = RunDir.create(parent, name, kind=kind)
    facts = json.loads((run.path / "meta.json").read_text()) | {"created": "2026-01-02T03:04:05+00:00"} | meta
    (run.path / "meta.json").write_text(json.dumps(facts))
    if records:
        write_records(run.path / FILE, records)
    if trees:
        run.write(trees, name="000000")
    for line in metrics:
        run.log(line)
    return run.path


def step(number: int, **more: Any) -> dict[str, Any]:
    """One line of the metrics of a training run."""
    plain = {
        "step": number,
        "success": 0.5,
        "success_by_depth": [0.5, 0.25],
        "delegated": 0.75,
        "nodes": 2.0,
        "tokens": 40.0,
        "critical_path_tokens": 30.0,
        "reward": 0.125,
    }
    return plain | more


def codes_run(folder: Path, delegated: Mapping[str, Sequence[int]], *, trees: int = 10) -> Path:
    """A training run on codes: of each step's trees with this pattern, the first so many delegated and were right."""
    path = run_dir(folder, "training", kind="train", metrics=[step(number) for number in range(2)])
    (path / "config.toml").write_text('task = "codes:train"\n')
    for number in range(2):
        grown = [
            _codes_tree(f"{number:06d}-{place}-{item:03d}", pattern, split=item < hits[number])
            for place, (pattern, hits) in enumerate(delegated.items())
            for item in range(trees)
        ]
        RunDir(path).write(grown, name=f"step-{number:06d}")
    return path


def _codes_tree(name: str, pattern: str, *, split: bool) -> ramet.Tree:
    return tree(name, question=f"Add longest runs of {pattern} (last digit)", split=split, score=float(split))
