"""Run directories made up to measure the viewer: many small trees, or a large one."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from ramet.budget import Budget
from ramet.store import RunDir
from ramet.types import Node, Piece, Refusal, State, Stop, Task, Tree, Turn, Usage, Verdict

PER_FILE = 1000  # trees of one file
WORDS = (
    "sort",
    "the",
    "archive",
    "by",
    "year",
    "and",
    "count",
    "every",
    "entry",
    "that",
    "names",
    "a",
    "river",
    "lake",
)


def write_many(path: Path, trees: int) -> RunDir:
    """A training run with this many trees of five nodes on average."""
    run = RunDir.create_at(path, kind="train")
    dice = random.Random(0)
    for step, first in enumerate(range(0, trees, PER_FILE)):
        places = range(first, min(trees, first + PER_FILE))
        made = [made_tree(tree_name(place), dice, nodes=dice.randint(1, 9)) for place in places]
        run.write(made, name=f"step-{step:06d}")
        run.log({"step": step, "success": 0.5 + 0.4 * step / max(1, trees / PER_FILE), "delegated": dice.random()})
    return run


def write_large(path: Path, nodes: int) -> RunDir:
    """A run with one tree of this many nodes, called `large`."""
    run = RunDir.create_at(path, kind="run")
    run.write([made_tree("large", random.Random(1), nodes=nodes)])
    return run


def tree_name(place: int) -> str:
    """The id of a tree of `write_many`."""
    return f"{place // PER_FILE:06d}-{place % PER_FILE // 8:03d}-{place % 8:03d}"


def made_tree(name: str, dice: random.Random, *, nodes: int) -> Tree:
    """A tree of random shape whose times, grants and turns fit together."""
    budget = Budget(tokens=400 * nodes, nodes=max(2, nodes), depth=12)
    question = f"{' '.join(dice.choices(WORDS, k=9))} {dice.randint(0, 999)}"
    places = _places(dice, nodes)
    goals = [question, *(f"{' '.join(dice.choices(WORDS, k=5))} {dice.randint(0, 99)}" for _ in places[1:])]
    return Tree(
        id=name,
        task=Task(question=question, id=f"made:train/{dice.randint(0, 9999)}"),
        budget=budget,
        dialect="tools",
        nodes=[_node(dice, place, goal, budget) for place, goal in zip(places, goals, strict=True)],
        seconds=max(place.end for place in places),
    )


@dataclass(slots=True)
class Place:
    """Where a made-up node stands in its tree, and when it was there."""

    index: int
    parent: int | None
    depth: int
    path: tuple[int, ...]
    children: list[int]
    start: float
    end: float = 0.0


def _places(dice: random.Random, wanted: int) -> list[Place]:
    """Nodes in the order they were started. Each but the root is a child of an earlier one, two to six of a kind."""
    places = [Place(0, None, 0, (), [], 0.0)]
    while len(places) < wanted:
        parent = places[dice.randrange(max(0, len(places) - 40), len(places))]
        for _ in range(min(dice.randint(2, 6), wanted - len(places))):
            path = (*parent.path, len(parent.children))
            parent.children.append(len(places))
            places.append(Place(len(places), parent.index, parent.depth + 1, path, [], parent.start + 0.8))
    for place in reversed(places):
        ends = [places[child].end + 0.8 for child in place.children]
        place.end = max([place.start + dice.uniform(1.0, 4.0), *ends])
    return places


def _node(dice: random.Random, place: Place, goal: str, budget: Budget) -> Node:
    own, score = dice.randint(20, 300), float(dice.random() < 0.8)
    refused = [Refusal(goal="one more", reason="no tokens are left for it", kind="tokens")] * (dice.random() < 0.05)
    return Node(
        index=place.index,
        parent=place.parent,
        depth=place.depth,
        path=place.path,
        goal=goal,
        grant=budget.tokens // (place.depth + 1),
        state=State.ENDED,
        stop=Stop.ANSWERED if score else Stop.TURNS,
        answer=f"{dice.randint(0, 999)}",
        pieces=_pieces(goal),
        turns=[
            Turn(
                tokens=own // 2,
                finish="stop",
                started_s=place.start,
                sampled_s=place.start + 0.7,
                children=place.children,
                refusals=refused,
            ),
            Turn(tokens=own - own // 2, finish="stop", started_s=place.end - 0.7, sampled_s=place.end),
        ],
        usage=Usage(tokens=own, prompt_tokens=400, calls=2, critical_path_tokens=own, peak_window=500),
        verdict=Verdict(score=score, how="exact", reason="" if score else "another number was asked for"),
        started_s=place.start,
        ended_s=place.end,
    )


def _pieces(goal: str) -> list[Piece]:
    return [
        Piece(sampled=False, text=f"system prompt\n{goal}", token_ids=tuple(range(30))),
        Piece(sampled=True, text="working on it", token_ids=(1, 2, 3), logprobs=(-0.1, -1.2, -0.01)),
        Piece(sampled=False, text="results", token_ids=(4,)),
        Piece(sampled=True, text="Answer: done", token_ids=(5, 6), logprobs=(-0.3, -0.2)),
    ]
