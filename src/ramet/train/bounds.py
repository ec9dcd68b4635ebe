"""Limits of trees that are drawn at random: `budget.tokens=[200,900]`."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ramet.budget import Budget
from ramet.config import build
from ramet.errors import ConfigError

Bounds = Mapping[str, tuple[Any, Any]]  # least and most of each limit


def parse_bounds(budget: Mapping[str, Any], *, inside: str = "budget.") -> Bounds:
    """Least and most of every limit that is set, checked.

    Example:
        parse_bounds({"tokens": [200, 900], "depth": 1})  # {"tokens": (200, 900), "depth": (1, 1)}
    """
    ends = {name: _ends(value, name=f"{inside}{name}") for name, value in budget.items()}
    low, high = (build(Budget, {name: pair[end] for name, pair in ends.items()}, inside=inside) for end in (0, 1))
    return {name: (getattr(low, name), getattr(high, name)) for name in ends}


def _ends(value: Any, *, name: str) -> tuple[Any, Any]:
    if not isinstance(value, (list, tuple)):
        return value, value
    ends: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
    if len(ends) != 2 or (ends[0] != ends[1] and not all(type(end) is int for end in ends)):
        raise ConfigError(f"{name} is a limit, or two whole numbers to draw it between; got {value!r}")
    if ends[0] != ends[1] and ends[0] > ends[1]:
        raise ConfigError(f"{name}: the lower bound comes first; got {value!r}")
    return ends[0], ends[1]


def draw_budget(budget: Budget, bounds: Bounds, *, seed: int) -> Budget:
    """The task's own budget with other limits laid over it; those with two bounds are drawn at random."""
    dice = random.Random(seed)
    drawn = {name: low if low == high else dice.randint(low, high) for name, (low, high) in sorted(bounds.items())}
    return replace(budget, **drawn)


def inside_table(message: str, table: str, names: Collection[str]) -> str:
    """An error about a setting in a table, with the name of the table; `names` are the settings there.

    Example:
        inside_table("steps is a number from 1 up", "warm", ["steps"])  # "warm.steps is a number from 1 up"
    """
    first = re.split(r"\W", message, maxsplit=1)[0]
    return f"{table}.{message}" if first in names else message
