"""Trees, nodes and numbers as plain data, for JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, cast

from ramet.types import Node, Tree


def tree_facts(tree: Tree) -> dict[str, Any]:
    """A tree without its token ids and messages."""
    return {
        "id": tree.id,
        "question": tree.task.question,
        "answer": tree.answer,
        "stop": tree.root.stop,
        "verdict": tree.root.verdict and asdict(tree.root.verdict),
        "seconds": tree.seconds,
        "usage": asdict(tree.usage) | {"dollars": tree.usage.dollars},
        "budget": asdict(tree.budget),
        "nodes": [node_facts(node) for node in tree.nodes],
    }


def node_facts(node: Node) -> dict[str, Any]:
    """A node without its token ids and messages."""
    return {
        "index": node.index,
        "parent": node.parent,
        "depth": node.depth,
        "goal": node.goal,
        "grant": node.grant,
        "stop": node.stop,
        "answer": node.answer,
        "verdict": node.verdict and asdict(node.verdict),
        "error": node.error,
        "started_s": node.started_s,
        "ended_s": node.ended_s,
        "usage": asdict(node.usage),
        "turns": [asdict(turn) for turn in node.turns],
    }


def finite(value: Any) -> Any:
    """The same value with None for every number that is not finite: JSON has neither NaN nor infinity."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in cast(dict[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in cast(list[Any], value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
