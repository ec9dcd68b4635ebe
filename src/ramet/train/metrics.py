"""The numbers of a step: what its trees were like, what credit came out, what the update saw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ramet.credit import Credits
from ramet.types import Node, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What one `forward_backward` saw. Means are over trained tokens; None: nothing to average."""

    loss: float
    num_rows: int
    num_trained: int  # tokens with a loss term
    num_tokens: int  # tokens of the rows, as if no prefix were shared
    num_read: int  # tokens the model was run on
    num_batches: int  # micro-batches
    clip_fraction: float | None
    logprob_gap: float | None  # mean |log-prob of learner - log-prob of sampler|, of rows sampled by this version
    logprob_gap_max: float | None
    entropy: float | None  # of the whole distribution each token was drawn from
    kl: float | None


def tree_metrics(trees: Sequence[Tree]) -> dict[str, Any]:
    """What the trees were like. Nodes without a verdict are left out of averages."""
    nodes = [node for tree in trees for node in tree.nodes]
    roots = [tree.root for tree in trees]
    return {
        "trees": len(trees),
        "score": _mean([node.verdict.score for node in roots if node.verdict is not None]),
        "success": _success(roots),
        "success_by_depth": [
            _success([node for node in nodes if node.depth == depth])
            for depth in range(max(node.depth for node in nodes) + 1)
        ],
        "delegated": _mean([len(tree.nodes) > 1 for tree in trees]),
        "nodes": _mean([len(tree.nodes) for tree in trees]),
        "tokens": _mean([tree.usage.tokens for tree in trees]),
        "critical_path_tokens": _mean([tree.usage.critical_path_tokens for tree in trees]),
        "answered": _mean([tree.answer is not None for tree in trees]),
    }


def credit_metrics(credits: Credits) -> dict[str, Any]:
    """Mean reward of the roots, and how many groups have no advantage anywhere."""
    summary = credits.summary
    return {"reward": summary.reward, "groups": summary.groups, "flat": len(summary.flat)}


def age_metrics(trees: Sequence[Tree], version: int) -> dict[str, float]:
    """How many versions of the weights ago the oldest token of each tree was sampled: mean and maximum."""
    ages = tree_ages(trees, version)
    return {"age": sum(ages) / len(ages), "age_max": max(ages)}


def tree_ages(trees: Sequence[Tree], version: int) -> list[int]:
    """How many versions of the weights ago the oldest token of each tree was sampled."""
    sampled = [
        [piece.policy_version or 0 for node in tree.nodes for piece in node.pieces if piece.sampled] for tree in trees
    ]
    return [version - min(versions, default=version) for versions in sampled]


def _success(nodes: Sequence[Node]) -> float | None:
    return _mean([node.verdict.is_right for node in nodes if node.verdict is not None])


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
