"""Means and baselines with exact sums, rounded once at the end.

So the order of the trees never matters, and equal rewards give an advantage of exactly zero. With floating-point sums
the mean of 0.1, 0.1 and 0.1 is not 0.1, and a group without a signal would add noise.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """The exact mean, rounded once."""
    return float(statistics.mean(values))


def leave_one_out(values: Sequence[float]) -> list[float]:
    """For each value, the mean of the others.

    Example:
        leave_one_out([1.0, 0.0, 0.5])  # [0.25, 0.75, 0.5]
    """
    return [mean([*values[:i], *values[i + 1 :]]) for i in range(len(values))]


def spread(values: Sequence[float]) -> float:
    """The sample standard deviation (divisor n - 1); exactly 0 when all values are equal."""
    return 0.0 if min(values) == max(values) else float(statistics.stdev(values))


def scaled(difference: float, deviation: float, *, epsilon: float) -> float:
    """A difference in standard deviations. `epsilon` bounds it in groups whose rewards hardly differ."""
    return difference / (deviation + epsilon) if difference else 0.0
