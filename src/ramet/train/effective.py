"""What holds where a training sets nothing: every setting with its value, also in tables that may have any keys."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass, replace
from typing import Any

from ramet.interfaces import Rule
from ramet.tasks.returned import budget_of
from ramet.train.collect import step_attempts
from ramet.train.demos import shown_demos, warm_table
from ramet.train.loop import TrainPlan
from ramet.train.loss import CLIP_BOUNDS, Loss
from ramet.train.settings import SAME

PLAIN = (str, int, float, list, tuple, dict)


def effective_settings(plan: TrainPlan) -> dict[str, Any]:
    """All settings as nested tables: limits are those of the first task, a credit rule has all its fields."""
    config = plan.config
    warm = asdict(warm_table(config)) | {"steps": config.warm.get("steps", 0)}
    tables = {
        "loss": asdict(config.loss) | {"bounds": _clip_bounds(config.loss)},
        "budget": _first_budget(plan) | config.budget,
        "credit": _fields(plan.rule) | config.credit,
        "warm": {name: value for name, value in warm.items() if name not in SAME},
        "demos": asdict(shown_demos(config)),
    }
    return asdict(config) | tables


def _clip_bounds(loss: Loss) -> tuple[float, float] | None:
    """Of the ratio; the loss `plain` has none."""
    return loss.bounds or (None if loss.kind == "plain" else CLIP_BOUNDS[loss.kind])


def _first_budget(plan: TrainPlan) -> dict[str, Any]:
    smallest = replace(plan.config, group_size=1, tasks_per_step=1)
    task = step_attempts(plan.taskset, plan.first_split, smallest, step=0)[0].task
    return asdict(budget_of(plan.taskset, task))


def _fields(rule: Rule) -> dict[str, Any]:
    """The settings of a rule that declares them. A value that is no setting is shown as text."""
    if not is_dataclass(rule):
        return {}
    found: dict[str, Any] = asdict(rule)
    return {name: value if value is None or isinstance(value, PLAIN) else str(value) for name, value in found.items()}
