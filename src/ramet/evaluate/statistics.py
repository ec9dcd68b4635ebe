"""Confidence intervals, and whether the difference between two methods is significant.

Intervals are 95%. Rates have Wilson's interval, which is also right for 0 of 50; means and differences are bootstrapped
over items with a fixed seed, so the same records give the same digits. Two methods are compared item by item: how hard
an item is affects both alike and cancels out. With few items bootstrap intervals are too narrow, so a difference also
has to pass a test by flipping signs.
"""

# numpy's types are partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ramet.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RESAMPLES = 4000
BLOCK = 2_000_000  # numbers in memory at a time
Z_95, Z_POWER = 1.959964, 0.841621  # normal quantiles: two-sided 95%, and 80% power
LEVEL = 0.05  # of tests
MIN_DIFFERING = 6  # with fewer differing items, even all on one side happens by chance more than once in 20
MOST_FLIPPED = 200  # with more differing items, their sum is close enough to a normal distribution
FLIPS = 10_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The first method minus the second, on the items that both have."""

    value: float
    low: float
    high: float
    items: int
    differing: int  # items on which the two are not equal
    needed: int | None  # items needed for significance; None if significant, or if the mean is 0
    p: float = 0.0  # of a mean this far from 0 by chance: `sign_flip_test`

    @property
    def clear_of_zero(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 0, enough items differ, and flipping signs rarely gives as much."""
        return self.clear_of_zero and self.differing >= MIN_DIFFERING and self.p < LEVEL

    @property
    def direction(self) -> int:
        """1: better; -1: worse; 0: cannot tell."""
        return (1 if self.value > 0 else -1) if self.significant else 0


def rate(hits: int, items: int) -> Estimate:
    """A rate with Wilson's interval.

    Example:
        rate(0, 10).high  # 0.2775328
        rate(5, 10).low   # 0.2365931
    """
    if not 0 <= hits <= items or not items:
        raise ConfigError(f"a rate is hits out of items, at least one item; got {hits} of {items}")
    share, square = hits / items, Z_95**2 / items
    middle = (share + square / 2) / (1 + square)
    half = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    return Estimate(share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)))


def mean(values: Sequence[float], *, seed: int = 0) -> Estimate:
    """The mean with a bootstrap interval."""
    import numpy as np

    if not values:
        raise ConfigError("a mean needs at least one value")
    array = np.sort(np.asarray(values, dtype=float))[::-1]  # the interval does not depend on the order of the items
    value = math.fsum(values) / len(values)
    drawn = np.concatenate([weights @ array for weights in _resamples(len(values), seed)])
    return _with_interval(value, drawn)


def difference(first: Mapping[str, float], second: Mapping[str, float], *, seed: int = 0) -> Difference | None:
    """The mean of first minus second over the items that both have, by id; None if they share none."""
    shared = [item for item in first if item in second]
    if not shared:
        return None
    gaps = [first[item] - second[item] for item in shared]
    estimate = mean(gaps, seed=seed)
    differing = sum(gap != 0 for gap in gaps)
    p = sign_flip_test(gaps, seed=seed)
    found = Difference(estimate.value, estimate.low, estimate.high, len(shared), differing, None, p)
    return found if found.significant else replace(found, needed=items_needed(gaps))


def sign_flip_test(gaps: Sequence[float], *, seed: int = 0) -> float:
    """How often the mean is at least as far from 0 if every gap has either sign with the same chance.

    Exact for gaps of one size, as right and wrong answers have them (a sign test); else from draws with a fixed seed.
    If more than `MOST_FLIPPED` items differ, by the normal distribution.

    Example:
        sign_flip_test([1.0] * 6 + [-1.0] + [0.0] * 5)  # 0.125
    """
    gaps = [rounded for gap in gaps if (rounded := round(gap, 12))]
    sizes = sorted(map(abs, gaps))
    if len(sizes) > MOST_FLIPPED:
        return math.erfc(abs(math.fsum(gaps)) / math.sqrt(2 * math.fsum(size**2 for size in sizes)))
    if len(set(sizes)) <= 1:
        return _sign_test(sum(gap > 0 for gap in gaps), len(sizes))
    import numpy as np

    signs = np.random.default_rng(seed).integers(0, 2, size=(FLIPS, len(sizes))) * 2 - 1
    reached = np.abs(signs @ np.asarray(sizes)) >= abs(math.fsum(gaps)) - 1e-9
    return float((1 + reached.sum()) / (1 + FLIPS))


def _sign_test(positive: int, number: int) -> float:
    """The chance of at least this imbalance among fair coins, on either side."""
    more = max(positive, number - positive)
    return min(1.0, 2 * sum(math.comb(number, heads) for heads in range(more, number + 1)) / 2**number)


def items_needed(gaps: Sequence[float]) -> int | None:
    """How many items show a mean gap of this size with 80% power; None if the mean is 0.

    Example:
        items_needed([1.0, 0.0, 0.0, 0.0])  # 32
    """
    middle = math.fsum(gaps) / len(gaps)
    if middle == 0 or len(gaps) < 2:
        return None
    variance = math.fsum((gap - middle) ** 2 for gap in gaps) / (len(gaps) - 1)
    return max(MIN_DIFFERING, len(gaps) + 1, math.ceil((Z_95 + Z_POWER) ** 2 * variance / middle**2))


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """The Pareto front of points (cost, value): indices of those for which no cheaper point is as good.

    Example:
        front([(100, 0.5), (200, 0.4), (300, 0.9), (300, 0.8)])  # [0, 2]
    """
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    kept: list[int] = []
    for i in order:
        equal = bool(kept) and points[i] == points[kept[-1]]
        if equal or not kept or points[i][1] > points[kept[-1]][1]:
            kept.append(i)
    return kept


def hypervolume(points: Sequence[tuple[float, float]], *, reference: float) -> float:
    """The area under the front up to a cost: at every cost, the best value for at most this cost.

    Example:
        hypervolume([(100, 0.5), (300, 0.9)], reference=500)  # 0.5 * 200 + 0.9 * 200
    """
    area, best, at = 0.0, 0.0, 0.0
    for cost, value in sorted(points):
        if cost >= reference:
            break
        area += best * (max(cost, 0.0) - at)
        best, at = max(best, value), max(cost, 0.0)
    return area + best * (max(reference, 0.0) - at)


def hypervolume_estimate(
    costs: Sequence[Sequence[float]], values: Sequence[Sequence[float]], *, reference: float, seed: int = 0
) -> Estimate:
    """The hypervolume of several cells with its interval. A row is a cell; columns are the same items in every row.

    The bootstrap draws the same items for all cells.
    """
    import numpy as np

    cost, value = np.asarray(costs, dtype=float), np.asarray(values, dtype=float)
    if cost.ndim != 2 or cost.shape != value.shape or not cost.size:
        raise ConfigError("hypervolume_estimate takes costs and values of the same items, one row per cell")
    order = np.lexsort((*cost, *value))  # the interval does not depend on the order of the items
    cost, value = cost[:, order], value[:, order]

    def area(cost_C: NDArray[np.float64], value_C: NDArray[np.float64]) -> float:
        return hypervolume(list(zip(cost_C.tolist(), value_C.tolist(), strict=True)), reference=reference)

    drawn: list[float] = []
    for weights in _resamples(cost.shape[1], seed):
        drawn += [area(*both) for both in zip(weights @ cost.T, weights @ value.T, strict=True)]
    return _with_interval(area(cost.mean(axis=1), value.mean(axis=1)), np.asarray(drawn))


def _with_interval(value: float, drawn: NDArray[np.float64]) -> Estimate:
    import numpy as np

    drawn = np.round(drawn, 12)  # rounding errors of 1e-18 would make a difference of zero significant
    # Rounded outwards to drawn values: shares of few items have nothing between two of them.
    low, high = float(np.quantile(drawn, 0.025, method="lower")), float(np.quantile(drawn, 0.975, method="higher"))
    return Estimate(value, min(low, value), max(high, value))  # skewed samples, rounding


def _resamples(items: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Bootstrap weights: the share of each item in each draw with replacement, in blocks of draws."""
    import numpy as np

    dice = np.random.default_rng(seed)
    even = np.full(items, 1 / items)
    remaining = RESAMPLES
    while remaining:
        block = max(1, min(remaining, BLOCK // items))
        yield dice.multinomial(items, even, size=block) / items
        remaining -= block
