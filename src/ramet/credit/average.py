"""Means and baselines of a few numbers, rounded once at the very end.

Sums are exact, so that the order of the trees never matters and equal rewards give an advantage of exactly zero: with
ordinary sums the mean of 0.1, 0.1 and 0.1 is not 0.1, and a group that teaches nothing would teach noise.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """The exact mean, rounded once."""
    return float(statistics.mean(values))


def leave_one_out(values: Sequence[float]) -> list[float]:
    """For each value the mean of the others.

    Example:
        leave_one_out([1.0, 0.0, 0.5])  # [0.25, 0.75, 0.5]
    """
    return [mean([*values[:i], *values[i + 1 :]]) for i in range(len(values))]


def spread(values: Sequence[float]) -> float:
    """The standard deviation of a sample (divided by one less than its size); exactly 0 when all are equal."""
    return 0.0 if min(values) == max(values) else float(statistics.stdev(values))


def scaled(difference: float, deviation: float, *, epsilon: float) -> float:
    """A difference in standard deviations. `epsilon` keeps a group that hardly differs from shouting."""
    return difference / (deviation + epsilon) if difference else 0.0
