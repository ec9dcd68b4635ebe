"""Variants of a training run: the same run for a single agent, to compare clones with.

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


def _alone(warm: Mapping[str, Any]) -> dict[str, Any]:
    """The supervised start. A budget of its own replaces that of the run, so it gets the same limits."""
    own = {"budget": {**warm["budget"], **ALONE}} if "budget" in warm else {}
    return {**warm, "delegate": 0.0, **own}
