"""One update: rows in, new weights and numbers out. Whatever is wrong is reported before anything has changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ramet.credit import compute_credits, group_trees
from ramet.errors import TrainError
from ramet.interfaces import Rule
from ramet.train.backend import Backend
from ramet.train.loss import Loss
from ramet.train.metrics import Stats, credit_metrics
from ramet.train.refill import without_replaced
from ramet.train.rows import Row, tree_rows
from ramet.types import Tree

NO_SIGNAL = "no signal: all trees of each group earned the same"
UNCHANGED = ". Nothing was changed"  # the end of an error that came before the optimiser
DEMO_LOSS = Loss(kind="plain", aggregation="token")  # of demonstrations: the mean over their tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What a step learns from its trees: rows, none if there is nothing to learn, and metrics to log beside them."""

    rows: Sequence[Row]
    metrics: dict[str, Any] = field(default_factory=dict[str, Any])


def credited_rows(
    trees: Sequence[Tree], rule: Rule, *, num_groups: int | None = None, keep_flat: bool = False
) -> Lesson:
    """Credit every node. A batch in which no node has an advantage has no rows, and a `note` that says why.

    With `keep_flat` it has rows all the same: a KL term has a gradient also where there is no credit.
    With `num_groups`, groups beyond that number replace others that have no signal; `refilled` says how many.
    """
    groups = group_trees(trees)
    credits = compute_credits(rule, groups)
    metrics: dict[str, Any] = {}
    if num_groups is not None:
        kept = without_replaced(groups, credits.summary.flat, num_groups=num_groups)
        metrics["refilled"] = len(groups) - len(kept)
        if len(kept) < len(groups):  # a credit may depend on the whole batch
            credits, trees = compute_credits(rule, kept), [tree for group in kept for tree in group.trees]
    metrics = credit_metrics(credits) | metrics
    if credits.summary.without_signal:
        metrics |= {"note": NO_SIGNAL}
        if not keep_flat:
            return Lesson(rows=(), metrics=metrics)
    rows = [row for tree in trees for row in tree_rows(tree, credits.of(tree), turns=credits.turns_of(tree))]
    return Lesson(rows=rows, metrics=metrics)


async def update(
    backend: Backend,
    rows: Sequence[Row],
    *,
    loss: Loss,
    learning_rate: float,
    temperature: float = 1.0,
    max_logprob_gap: float | None = None,
    demos: Sequence[Row] = (),
    last: bool = True,
) -> dict[str, Any]:
    """One optimiser step; returns its metrics. After the `last` one of a step, its weights still have to be published.

    `demos` are rows to copy: their loss is added to that of `rows`, with the coefficient that is their weight.
    """
    metrics: dict[str, Any] = {}
    try:
        if rows:
            stats = await backend.forward_backward(rows, loss=loss, temperature=temperature)
            refuse(_problem(stats, max_logprob_gap))
            metrics |= asdict(stats)
        if demos:
            shown = await backend.forward_backward(demos, loss=DEMO_LOSS, temperature=1.0)
            refuse(_problem(shown, None))
            metrics |= {"demo_loss": shown.loss / demos[0].weight, "demo_tokens": shown.num_trained}
    except TrainError:
        await backend.discard()
        raise
    norm = await backend.optim_step(learning_rate=learning_rate, last=last)
    return {"grad_norm": norm, "learning_rate": learning_rate} | metrics


def refuse(problem: str | None) -> None:
    """Stop because of a problem that was found before anything was changed."""
    if problem is not None:
        raise TrainError(problem + UNCHANGED)


def _problem(stats: Stats, max_logprob_gap: float | None) -> str | None:
    """Why this gradient must not be applied."""
    if not math.isfinite(stats.loss):
        return f"the loss is {stats.loss}"
    return gap_problem(stats.logprob_gap, stats.logprob_gap_max, most=max_logprob_gap)


def gap_problem(gap: float | None, gap_max: float | None, *, most: float | None) -> str | None:
    """Why ratios of these rows cannot be trusted."""
    if gap is None or most is None or gap <= most:
        return None
    return (
        f"sampler and learner disagree: their log-probs differ by {gap:.4g} on average "
        f"(at most {gap_max:.4g}), where max_logprob_gap allows {most:g}"
    )
