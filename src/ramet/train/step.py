"""One update: rows in, new weights and numbers out. Whatever is wrong is reported before anything has changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ramet.credit import group_trees
from ramet.errors import TrainError
from ramet.interfaces import Backend, Rule
from ramet.train.loss import Loss
from ramet.train.metrics import Stats, credit_metrics
from ramet.train.refill import without_replaced
from ramet.train.rows import Row, tree_rows
from ramet.types import Tree

NO_SIGNAL = "no signal: all trees of each group earned the same"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What a step learns from its trees: rows, none if there is nothing to learn, and metrics to log beside them."""

    rows: Sequence[Row]
    metrics: dict[str, Any] = field(default_factory=dict[str, Any])


def credited_rows(trees: Sequence[Tree], rule: Rule, *, num_groups: int | None = None) -> Lesson:
    """Credit every node. A batch in which no node has an advantage has no rows, and a `note` that says why.

    With `num_groups`, groups beyond that number replace others that have no signal; `refilled` says how many.
    """
    groups = group_trees(trees)
    credits = rule.credit(groups)
    metrics: dict[str, Any] = {}
    if num_groups is not None:
        kept = without_replaced(groups, credits.summary.flat, num_groups=num_groups)
        metrics["refilled"] = len(groups) - len(kept)
        if len(kept) < len(groups):  # a credit may depend on the whole batch
            credits, trees = rule.credit(kept), [tree for group in kept for tree in group.trees]
    metrics = credit_metrics(credits) | metrics
    if credits.summary.without_signal:
        return Lesson(rows=(), metrics=metrics | {"note": NO_SIGNAL})
    return Lesson(rows=[row for tree in trees for row in tree_rows(tree, credits.of(tree))], metrics=metrics)


async def update(
    backend: Backend,
    rows: Sequence[Row],
    *,
    loss: Loss,
    learning_rate: float,
    temperature: float = 1.0,
    max_logprob_gap: float | None = None,
) -> dict[str, Any]:
    """One optimiser step; returns its metrics. The new weights still have to be published."""
    stats = await backend.forward_backward(rows, loss=loss, temperature=temperature)
    problem = _problem(stats, max_logprob_gap)
    if problem is not None:
        await backend.discard()
        raise TrainError(f"{problem}. Nothing was changed")
    norm = await backend.optim_step(learning_rate=learning_rate)
    return {"grad_norm": norm, "learning_rate": learning_rate} | asdict(stats)


def _problem(stats: Stats, max_logprob_gap: float | None) -> str | None:
    """Why this gradient must not be applied."""
    if not math.isfinite(stats.loss):
        return f"the loss is {stats.loss}"
    gap = stats.logprob_gap
    if gap is not None and max_logprob_gap is not None and gap > max_logprob_gap:
        return (
            f"sampler and learner disagree: their log-probs differ by {gap:.4g} on average "
            f"(at most {stats.logprob_gap_max:.4g}), where max_logprob_gap allows {max_logprob_gap:g}"
        )
    return None
