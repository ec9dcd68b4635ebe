"""Demonstrations in every update of RL, beside the trees that the policy played itself.

They are made like those of the supervised start, beginning where these ended, and are copied with the plain supervised
loss: its gradient is added to that of the policy loss, and both go into one optimiser step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from ramet.config import build
from ramet.errors import ConfigError
from ramet.tokens.render import TokenRenderer
from ramet.train.bounds import parse_bounds
from ramet.train.phase import NO_DEMOS, Demos
from ramet.train.prefetch import Collect
from ramet.train.rows import Row
from ramet.train.settings import TrainConfig, WarmConfig, check_delegate, warm_config
from ramet.train.warmstart import (
    check_source,
    collect_stored,
    demonstrations,
    good_trees,
    rows_to_copy,
)
from ramet.types import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class DemosConfig:
    """Demonstrations in every update. What is not set is as in the table `warm`, or else as in the run itself."""

    weight: float = 0.0  # coefficient of their loss per token, added to that of the policy; 0: no demonstrations
    trees_per_step: int = 16
    task: str = "arithmetic:train"  # NAME:SPLIT, demonstrated by its oracle
    taskset: dict[str, Any] = field(default_factory=dict[str, Any])
    run: str = ""  # learn from the trees of this run directory instead
    least: float = 1.0  # lowest root score of a tree to learn from
    honest_failures: bool = False  # also learn from demonstrations whose root fails and reports it
    delegate: float | str = 0.5  # as warm.delegate
    budget: dict[str, Any] = field(default_factory=dict[str, Any])
    show_budget: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf:
            raise ConfigError(f"demos.weight is a number from 0 up; got {self.weight!r}")
        if self.trees_per_step < 1:
            raise ConfigError(f"demos.trees_per_step is a number from 1 up; got {self.trees_per_step!r}")
        check_delegate(self.delegate, "demos.delegate")
        parse_bounds(self.budget, inside="demos.budget.")


OWN = ("weight", "trees_per_step")  # settings that have nothing to do with those of the supervised start


def demos_config(config: TrainConfig) -> DemosConfig | None:
    """The demonstrations of a run: its table `demos` laid over that of its supervised start; None without a weight."""
    demos = shown_demos(config)
    if config.demos and "weight" not in config.demos:
        raise ConfigError("demos.weight is missing: the coefficient of the demonstrations' loss, or 0 for none")
    return demos if demos.weight else None


def warm_table(config: TrainConfig) -> WarmConfig:
    """The settings of the supervised start, also of one that is skipped (`warm.steps=0`) or that does not exist."""
    table = config.warm | {"steps": config.warm.get("steps") or 1}
    warm = warm_config(replace(config, warm=table, demos={}))
    assert warm is not None  # it has steps
    return warm


def shown_demos(config: TrainConfig) -> DemosConfig:
    """The settings of demonstrations, also of a run without them."""
    shown = warm_table(config)
    names = [setting.name for setting in fields(DemosConfig) if setting.name not in OWN]
    return build(DemosConfig, {name: getattr(shown, name) for name in names} | config.demos, inside="demos.")


def demos_source(config: TrainConfig) -> WarmConfig | None:
    """The settings that the demonstrations are made with; what does not exist is reported."""
    demos = demos_config(config)
    if demos is None:
        return None
    names = [setting.name for setting in fields(DemosConfig) if setting.name != "weight"]
    shown = replace(warm_table(config), dialect=config.dialect, **{name: getattr(demos, name) for name in names})
    check_source(shown)
    return shown


def open_demos(config: TrainConfig, renderer: TokenRenderer) -> Demos:
    """The demonstrations of every step, in the tokens of `renderer`."""
    demos, source, warm = demos_config(config), demos_source(config), warm_config(config)
    if demos is None or source is None:
        return NO_DEMOS
    first = 0 if warm is None else warm.steps * warm.trees_per_step
    collect = _stored(source, renderer) if source.run else _from_oracle(source, renderer, first=first)
    return Demos(collect=collect, rows=partial(demo_rows, weight=demos.weight))


def _stored(source: WarmConfig, renderer: TokenRenderer) -> Collect:
    taskset, _ = check_source(source)
    return collect_stored(source, taskset, renderer)


def _from_oracle(source: WarmConfig, renderer: TokenRenderer, *, first: int) -> Collect:
    """Demonstrations from place `first` on. A step in which the oracle fails at all of them has none."""
    taskset, split = check_source(source)

    async def collect(step: int) -> list[Tree]:
        start = first + step * source.trees_per_step
        places = range(start, start + source.trees_per_step)
        trees = await demonstrations(taskset, split, source, renderer, places)
        return good_trees(trees, least=source.least, honest_failures=source.honest_failures)

    return collect


def demo_rows(trees: Sequence[Tree], *, weight: float) -> list[Row]:
    """Rows to copy, whose loss has the coefficient `weight`."""
    return [replace(row, weight=weight) for row in rows_to_copy(trees)]
