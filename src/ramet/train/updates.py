"""The updates of one step: one by default, or several on mini-batches of the same trees.

After the first of several updates, the weights are no longer those that sampled the trees. So the learner computes the
log-probs of all rows once before it (`proximal`). Ratios are taken against these and clipped. What changed before the
step, since the trees were sampled, is an importance weight of its own, bounded by `loss.ceiling`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any

from ramet.errors import ConfigError, TrainError
from ramet.tasks.dice import seed_of
from ramet.train.backend import Backend
from ramet.train.loss import rows_to_compute
from ramet.train.rows import Row
from ramet.train.settings import TrainConfig, UpdateConfig, WarmConfig
from ramet.train.step import UNCHANGED, gap_problem, refuse, update


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one update learns from: rows with credit, and rows of demonstrations to copy."""

    rows: Sequence[Row]
    demos: Sequence[Row] = ()


def check_mini_batches(config: TrainConfig) -> None:
    """Refuse more mini-batches than a step has groups: trees of a task stay together."""
    if config.update.mini_batches > config.tasks_per_step:
        raise ConfigError(
            f"update.mini_batches is at most tasks_per_step, {config.tasks_per_step}: trees of a task stay together; "
            f"got {config.update.mini_batches}"
        )


async def learn(
    backend: Backend,
    batch: Batch,
    *,
    config: TrainConfig | WarmConfig,
    step: int,
    temperature: float = 1.0,
    max_logprob_gap: float | None = None,
) -> dict[str, Any]:
    """All updates of a step; returns their metrics. The new weights still have to be published."""
    if not batch.rows and not batch.demos:
        return {"updates": 0} if config.update.several else {}
    plan = plan_updates(batch, config.update, seed=seed_of(config.seed, "updates", step))
    gaps: dict[str, Any] = {}
    if len(plan) > 1 and config.loss.kind != "plain":
        rows = await _with_proximal(backend, batch.rows, config, temperature=temperature)
        gaps = gap_metrics(rows, backend.version)
        refuse(gap_problem(gaps["logprob_gap"], gaps["logprob_gap_max"], most=max_logprob_gap))
        plan = plan_updates(replace(batch, rows=rows), config.update, seed=seed_of(config.seed, "updates", step))
    make = partial(
        update,
        backend,
        loss=config.loss,
        learning_rate=config.update.rate_at(step, config.steps),
        temperature=temperature,
        max_logprob_gap=max_logprob_gap,
    )
    done = await _make_all(plan, make)
    return summarize(done) | gaps if config.update.several else done[0]


async def _make_all(plan: Sequence[Batch], make: Callable[..., Awaitable[dict[str, Any]]]) -> list[dict[str, Any]]:
    done: list[dict[str, Any]] = []
    for part in plan:
        try:
            done.append(await make(part.rows, demos=part.demos, last=len(done) + 1 == len(plan)))
        except TrainError as error:
            raise _in_the_middle(error, done=len(done), planned=len(plan)) from None
    return done


def _in_the_middle(error: TrainError, *, done: int, planned: int) -> TrainError:
    """The error of a later update says that earlier ones were made. No checkpoint is written in such a step."""
    if not done:
        return error
    what = str(error).removesuffix(UNCHANGED)
    return TrainError(f"update {done + 1} of {planned} of a step: {what}. Resume from the newest checkpoint")


def plan_updates(batch: Batch, config: UpdateConfig, *, seed: int) -> list[Batch]:
    """What each update of a step learns from. Every row is in one mini-batch per epoch, in other company each time.

    There are never more mini-batches than groups (or trees) with credit, so each of them has something to learn.
    """
    if not batch.rows or not config.several:
        return [batch]
    by_group = not config.mini_batch_nodes
    units = _units(batch.rows, by_group=by_group)
    wanted = config.mini_batches if by_group else math.ceil(len(batch.rows) / config.mini_batch_nodes)
    count = max(1, min(wanted, sum(map(_has_credit, units.values()))))
    plan: list[Batch] = []
    for epoch in range(config.epochs):
        parts = deal(units, count, seed=seed_of(seed, epoch))
        plan += [Batch(rows=part, demos=deal_demos(batch.demos, place, count)) for place, part in enumerate(parts)]
    return plan


def _units(rows: Sequence[Row], *, by_group: bool) -> dict[str, list[Row]]:
    """Rows that stay together: those of a group, or of a tree."""
    units: dict[str, list[Row]] = {}
    for row in rows:
        units.setdefault(row.group if by_group else row.tree_id, []).append(row)
    return units


def _has_credit(rows: Sequence[Row]) -> bool:
    return any(row.advantage * row.weight != 0 for row in rows)


def deal(units: Mapping[str, Sequence[Row]], count: int, *, seed: int) -> list[list[Row]]:
    """Deal units at random to `count` mini-batches: first those with credit, then the others, one after the other.

    Example:
        Of units a, b, c and d, of which only d has no credit, two mini-batches get two each, one of them d.
    """
    names = list(units)
    random.Random(seed).shuffle(names)
    names.sort(key=lambda name: not _has_credit(units[name]))
    return [[row for name in names[place::count] for row in units[name]] for place in range(count)]


def deal_demos(demos: Sequence[Row], place: int, count: int) -> list[Row]:
    """The demonstrations of one of `count` mini-batches. Each has one at least, so few trees are in several."""
    names = list(dict.fromkeys(row.tree_id for row in demos))
    if not names:
        return []
    own = set(names[place::count] or [names[place % len(names)]])
    return [row for row in demos if row.tree_id in own]


async def _with_proximal(
    backend: Backend, rows: Sequence[Row], config: TrainConfig | WarmConfig, *, temperature: float
) -> list[Row]:
    """The rows with their log-probs under the current weights. Those that are not computed need none."""
    computed = rows_to_compute(rows, config.loss, skip_zero_credit=config.update.skip_zero_credit)
    found = await backend.logprobs(computed, temperature=temperature)
    proximal = {id(row): values for row, values in zip(computed, found, strict=True)}
    return [replace(row, proximal=proximal.get(id(row))) for row in rows]


def gap_metrics(rows: Sequence[Row], version: int) -> dict[str, float | None]:
    """Mean and largest difference between log-probs of sampler and learner, of rows that `version` sampled.

    Example:
        A row sampled with log-probs -1.0 and -2.0 that the learner finds to be -1.25 and -2.0: 0.125 and 0.25.
    """
    gaps = [
        abs(learner - sampler)
        for row in rows
        if row.proximal is not None and row.logprobs is not None and row.versions == (version,)
        for learner, sampler in compress(zip(row.proximal, row.logprobs, strict=True), row.mask)
    ]
    mean = math.fsum(gaps) / len(gaps) if gaps else None
    return {"logprob_gap": mean, "logprob_gap_max": max(gaps, default=None)}


def summarize(updates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Metrics of a step from those of its updates: counts are added up, everything else is averaged.

    `clip_fraction_last` is that of the last update, which is furthest from the weights that the step began with.
    """
    metrics: dict[str, Any] = {"updates": len(updates), "learning_rate": updates[0]["learning_rate"]}
    for name in dict.fromkeys(name for one in updates for name in one if name not in metrics):
        values = [one[name] for one in updates if one.get(name) is not None]
        is_count = name.startswith("num_") or name == "demo_tokens"
        total = sum(values) if is_count else math.fsum(values)
        metrics[name] = total if is_count else total / len(values) if values else None
    if "clip_fraction" in metrics:
        metrics["clip_fraction_last"] = updates[-1].get("clip_fraction")
    return metrics
