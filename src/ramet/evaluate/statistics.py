"""How sure a number is, and whether two methods can be told apart.

Intervals are 95 %: of many such intervals nineteen in twenty hold the true value. Rates have Wilson's interval, which
is honest at 0 of 50; means and differences are bootstrapped over items, with a seed, so the same records give the same
digits. Two methods are compared item by item: what makes an item hard is the same for both, and drops out.
"""

# numpy's types are partly unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramet.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RESAMPLES = 4000
BLOCK = 2_000_000  # numbers held at once
WIDE, POWER = 1.959964, 0.841621  # normal quantiles: 95 % of a bell curve, and 80 % of one side
FEWEST = 6  # items on which two methods differ; with fewer, even all on one side happens by chance in 1 of 20


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and the interval around it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The first method minus the second on the items both did."""

    value: float
    low: float
    high: float
    items: int
    differing: int  # items on which the two were not equal
    needed: int | None  # items it would take to tell them apart; None when they can be, or when nothing differs

    @property
    def told_apart(self) -> bool:
        return (self.low > 0 or self.high < 0) and self.differing >= FEWEST


def rate(hits: int, items: int) -> Estimate:
    """A share with Wilson's interval.

    Example:
        rate(0, 10).high  # 0.2775328
        rate(5, 10).low   # 0.2365931
    """
    if not 0 <= hits <= items or not items:
        raise ConfigError(f"a rate is hits out of items, at least one item; got {hits} of {items}")
    share, square = hits / items, WIDE**2 / items
    middle = (share + square / 2) / (1 + square)
    half = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    return Estimate(share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)))


def mean(values: Sequence[float], *, seed: int = 0) -> Estimate:
    """The mean with a bootstrap interval."""
    import numpy as np

    if not values:
        raise ConfigError("a mean needs at least one value")
    held = np.asarray(values, dtype=float)
    value = math.fsum(values) / len(values)
    drawn = np.concatenate([weights @ held for weights in _resamples(len(values), seed)])
    return _around(value, drawn)


def difference(first: Mapping[str, float], second: Mapping[str, float], *, seed: int = 0) -> Difference | None:
    """The mean of first minus second over the items both have, by name; None when they share none."""
    shared = [item for item in first if item in second]
    if not shared:
        return None
    gaps = [first[item] - second[item] for item in shared]
    found = mean(gaps, seed=seed)
    differing = sum(gap != 0 for gap in gaps)
    apart = (found.low > 0 or found.high < 0) and differing >= FEWEST
    needed = None if apart else items_needed(gaps)
    return Difference(found.value, found.low, found.high, len(shared), differing, needed)


def items_needed(gaps: Sequence[float]) -> int | None:
    """How many items it takes to see a mean gap like this one, four times in five, if it is real; None for no gap.

    Example:
        items_needed([1.0, 0.0, 0.0, 0.0])  # 32
    """
    middle = math.fsum(gaps) / len(gaps)
    if middle == 0 or len(gaps) < 2:
        return None
    variance = math.fsum((gap - middle) ** 2 for gap in gaps) / (len(gaps) - 1)
    return max(FEWEST, len(gaps) + 1, math.ceil((WIDE + POWER) ** 2 * variance / middle**2))


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which points (cost, value) no other one beats: none is as cheap and better, or cheaper and as good.

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
    """The area under the front up to a cost: at every cost, the best value that can be had for it or less.

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


def hypervolume_of(
    costs: Sequence[Sequence[float]], values: Sequence[Sequence[float]], *, reference: float, seed: int = 0
) -> Estimate:
    """The hypervolume of several cells, a row each, over the same items in the same order, with its interval.

    Items are drawn for all cells together: what one is lucky with, so are the others.
    """
    import numpy as np

    cost, value = np.asarray(costs, dtype=float), np.asarray(values, dtype=float)
    if cost.ndim != 2 or cost.shape != value.shape or not cost.size:
        raise ConfigError("hypervolume_of takes costs and values of the same items, a row a cell")

    def area(cost_C: NDArray[np.float64], value_C: NDArray[np.float64]) -> float:
        return hypervolume(list(zip(cost_C.tolist(), value_C.tolist(), strict=True)), reference=reference)

    drawn: list[float] = []
    for weights in _resamples(cost.shape[1], seed):
        drawn += [area(*both) for both in zip(weights @ cost.T, weights @ value.T, strict=True)]
    return _around(area(cost.mean(axis=1), value.mean(axis=1)), np.asarray(drawn))


def _around(value: float, drawn: NDArray[np.float64]) -> Estimate:
    import numpy as np

    drawn = np.round(drawn, 12)  # sums of shares miss zero by 1e-18, which would tell two methods apart
    # Outwards to values that were drawn: between two of them, shares of few items have none.
    low, high = float(np.quantile(drawn, 0.025, method="lower")), float(np.quantile(drawn, 0.975, method="higher"))
    return Estimate(value, min(low, value), max(high, value))  # a very lopsided sample, or rounding


def _resamples(items: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """How much each item weighs in each draw of as many items with putting back, in blocks of draws."""
    import numpy as np

    dice = np.random.default_rng(seed)
    even = np.full(items, 1 / items)
    left = RESAMPLES
    while left:
        block = max(1, min(left, BLOCK // items))
        yield dice.multinomial(items, even, size=block) / items
        left -= block
