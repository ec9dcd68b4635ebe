"""One update: trees in, new weights and numbers out."""

# pyright: standard

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ramet.credit import Credits, Rule, group_trees
from ramet.engine.local import LocalEngine
from ramet.errors import TrainError
from ramet.train.local.gradients import Elsewhere, Stats, backward
from ramet.train.local.learner import Learner, forget, shorten, step
from ramet.train.local.losses import Loss
from ramet.train.rows import Row, rows_of
from ramet.types import Node, Tree

WON = 1.0  # a score from which a node has succeeded


def learn(
    trees: Sequence[Tree],
    *,
    rule: Rule,
    learner: Learner,
    engine: LocalEngine,
    loss: Loss,
    rate: float,
    tokens: int,
    temperature: float,
    gap: float,
    reference: Elsewhere | None = None,
) -> dict[str, Any]:
    """Credit every node, learn from it, publish the weights. What is wrong is told before anything has changed.

    A batch in which no node has an advantage leaves the weights as they are, and says so in `note`.
    """
    credits = rule.credit(group_trees(trees))
    facts = facts_of(trees) | _credit_facts(credits)
    if credits.summary.without_signal:
        with engine.updating():
            learner.done += 1
        return facts | {"note": "no signal: all trees of each group earned the same"}
    rows = [row for tree in trees for row in rows_of(tree, credits.of(tree))]
    stats = differentiate(
        learner,
        rows,
        loss=loss,
        tokens=tokens,
        temperature=temperature,
        engine=engine,
        reference=reference,
        entropy=True,
    )
    check_gap(learner, stats, gap)
    norm = shorten(learner)
    with engine.updating():
        step(learner, rate=rate)
    return facts | {"norm": norm, "rate": rate} | asdict(stats)


def differentiate(
    learner: Learner,
    rows: Sequence[Row],
    *,
    loss: Loss,
    tokens: int,
    temperature: float = 1.0,
    engine: LocalEngine | None = None,
    reference: Elsewhere | None = None,
    entropy: bool = False,
) -> Stats:
    """The gradient of one step, and the numbers beside it. A loss that is not finite is refused."""
    stats = backward(
        learner.policy,
        rows,
        loss=loss,
        tokens=tokens,
        temperature=temperature,
        version=None if engine is None else engine.policy_version,
        entropy=entropy,
        reference=reference,
    )
    if not math.isfinite(stats.loss):
        forget(learner)
        raise TrainError(f"the loss is {stats.loss}: nothing was changed")
    return stats


def check_gap(learner: Learner, stats: Stats, most: float) -> None:
    """Sampler and learner run the same weights: where they disagree, ratios are wrong and learning goes astray."""
    if stats.gap is not None and stats.gap > most:
        forget(learner)
        raise TrainError(
            f"sampler and learner disagree: their log-probs differ by {stats.gap:.4g} on average "
            f"(at most {stats.gap_max:.4g}), where gap allows {most:g}. Nothing was changed"
        )


def facts_of(trees: Sequence[Tree]) -> dict[str, Any]:
    """What the trees were like. Nodes that nobody gave a verdict on count neither for nor against anybody."""
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


def _success(nodes: Sequence[Node]) -> float | None:
    return _mean([node.verdict.score >= WON for node in nodes if node.verdict is not None])


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _credit_facts(credits: Credits) -> dict[str, Any]:
    summary = credits.summary
    return {"reward": summary.reward, "groups": summary.groups, "flat": len(summary.flat)}
