"""Variants of a training run to compare it with: a single agent, and the credit rule as published.

single_variant(load(TrainConfig, file=recipe_file("craft-135m")))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ramet.train.settings import TrainConfig

SUFFIX = "-single"
ALONE: Mapping[str, int] = {"depth": 0, "nodes": 1}


def single_variant(config: TrainConfig) -> TrainConfig:
    """The same run without delegation: the same start, tasks, steps, tokens and window, and one node per tree.

    Its demonstrations are those of the oracle alone. Its name ends with `-single`.

    Example:
        single_variant(TrainConfig(name="a", budget={"tokens": 900, "depth": [1, 3]})).budget
        # {"tokens": 900, "depth": 0, "nodes": 1}
    """
    name = config.name if config.name.endswith(SUFFIX) else config.name + SUFFIX
    warm = _alone(config.warm) if config.warm.get("steps") else config.warm
    return replace(config, name=name, budget={**config.budget, **ALONE}, warm=warm)


PUBLISHED: Mapping[str, Any] = {"baseline": "leave_one_out", "depth_weights": True, "clone_cost": 0.0}


def published_variant(config: TrainConfig) -> TrainConfig:
    """The same run with the rule of Recursive Agent Optimization (arXiv 2605.06639) as its recipes have it.

    Rewards are compared with those of the other trees' roots, every depth has the same total weight, clones cost
    nothing, all tokens weigh the same, and a node may give its own goal to a clone. The name ends with `-published`.
    """
    loss = replace(config.loss, kind="cispo", bounds=None, dual_clip=None, aggregation="token", divisor=1.0)
    name = f"{config.name}-published"
    return replace(config, name=name, rule="rao", credit=dict(PUBLISHED), loss=loss, allow_same_goal=True)


def from_start(config: TrainConfig, model: str) -> TrainConfig:
    """The same run without a supervised start of its own: it begins with this model."""
    return replace(config, model=model, warm={**config.warm, "steps": 0} if config.warm else {})


def _alone(warm: Mapping[str, Any]) -> dict[str, Any]:
    """The supervised start. A budget of its own replaces that of the run, so it gets the same limits."""
    own = {"budget": {**warm["budget"], **ALONE}} if "budget" in warm else {}
    return {**warm, "delegate": 0.0, **own}
