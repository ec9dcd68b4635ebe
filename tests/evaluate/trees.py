"""Trees and records made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ramet
from ramet.evaluate.record import Record
from ramet.types import Node, State, Stop, Task, Tree, Turn, Usage, Verdict


def node(
    index: int,
    parent: int | None,
    *,
    depth: int = 0,
    turns: Sequence[tuple[int, Sequence[int]]] = (),
    time: tuple[float, float] = (0.0, 1.0),
    prompt: int = 0,
    cached: int = 0,
    peak: int = 0,
    more: int = 0,
) -> Node:
    """`turns` are (tokens, children); `more` tokens were sampled in cancelled calls."""
    tokens = sum(number for number, _ in turns) + more
    usage = Usage(tokens=tokens, prompt_tokens=prompt, cached_tokens=cached, peak_window=peak, calls=len(turns))
    return Node(
        index=index,
        parent=parent,
        depth=depth,
        path=(),
        goal=f"goal {index}",
        grant=1000,
        state=State.ENDED,
        stop=Stop.ANSWERED,
        answer="yes",
        usage=usage,
        turns=[
            Turn(tokens=number, finish="stop", started_s=time[0], sampled_s=time[1], children=list(children))
            for number, children in turns
        ],
        verdict=Verdict(score=1.0, how="exact"),
        started_s=time[0],
        ended_s=time[1],
    )


def tree(*nodes: Node, seconds: float = 10.0, budget: ramet.Budget | None = None) -> Tree:
    return Tree(
        id="hand-made", task=Task(question="?"), budget=budget or ramet.Budget(), nodes=list(nodes), seconds=seconds
    )


def answered(answer: str | None, *, score: float = 0.0, stop: Stop = Stop.ANSWERED, name: str = "t") -> Tree:
    """A tree of one node with this answer."""
    made = tree(node(0, None, turns=[(5, ())]))
    made.id = name
    made.root.answer, made.root.stop = answer, stop
    made.root.verdict = Verdict(score=score, how="exact")
    return made


def record(method: str, task: str, score: float, **more: Any) -> Record:
    """A record with round numbers."""
    given: dict[str, Any] = {
        "budget": 1000,
        "bucket": "b",
        "size": None,
        "beyond": False,
        "answer": "x",
        "generated": 100,
        "prompt": 200,
        "cached": 50,
        "critical_path": 80,
        "critical_path_prompts": 180,
        "peak_window": 300,
        "nodes": 1,
        "depth": 0,
        "delegated": False,
        "concurrent": None,
        "seconds": 1.0,
        "dollars": None,
        "trees": (f"{method}.{task}",),
    }
    return Record(method=method, task=task, score=score, **(given | more))
