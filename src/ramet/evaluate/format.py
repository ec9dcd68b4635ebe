"""Numbers and verdicts as text: one format for tables, pages and the terminal."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal

from ramet.evaluate.methods import is_oracle
from ramet.evaluate.statistics import MIN_DIFFERING, Difference, Estimate


def percent(estimate: Estimate) -> str:
    """A share with its interval, whose ends are whole numbers.

    Example:
        percent(Estimate(0.5, 0.25, 0.75))  # "50% [25, 75]"
        percent(Estimate(0.995, 0.972, 0.999))  # "99.5% [97, 100]"
    """
    low, high = (_rounded(_scaled(end), 0) for end in (estimate.low, estimate.high))
    return f"{share(estimate.value)} [{low}, {high}]"


def share(value: float) -> str:
    """A share without an interval.

    Example:
        share(0.123)  # "12%"
        share(0.004)  # "0.4%"
    """
    return f"{hundredths(value)}%"


def hundredths(value: float) -> str:
    """A share times 100, rounded half up. Decimals keep what is close to 0 or 1 apart from it: none is 0, all is 100.

    `hundredths` in `view/static/dom.js` is the same rule.

    Example:
        hundredths(0.985)   # "99"
        hundredths(0.004)   # "0.4"
        hundredths(0.9996)  # "99.96"
    """
    if not math.isfinite(value):
        return str(value)
    scaled = _scaled(value)
    size = abs(scaled)
    rest = min(size, abs(100 - size))  # the distance to none and to all
    if rest == 0 or 1 <= size <= 99 or size > 100:
        return _rounded(scaled, 0)
    if rest <= Decimal("0.05"):
        size = min(max(size, Decimal("0.01")), Decimal("99.99"))
        return _rounded(size.copy_sign(scaled), 2)
    return _rounded(scaled, 1)


def _scaled(value: float) -> Decimal:
    """A share times 100, without the error of its binary form: 0.985 is 98.5."""
    return Decimal(f"{100 * value:.9f}").normalize() + 0


def _rounded(number: Decimal, digits: int) -> str:
    return f"{number.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP) + 0:f}"


def signed(value: float) -> str:
    """A difference of shares in points, with its sign.

    Example:
        signed(0.12)  # "+12"
        signed(0.0)   # "0"
    """
    text = hundredths(value)
    return f"+{text}" if float(text) > 0 else text


def interval(low: float, high: float) -> str:
    """The interval of a difference in points, with signs.

    Example:
        interval(-0.02, 0.11)  # "[-2, +11]"
    """
    return f"[{signed(low)}, {signed(high)}]"


def points(difference: Difference) -> str:
    """A difference in points with its interval.

    Example:
        points(Difference(0.05, -0.02, 0.11, 200, 40, 640))  # "+5 [-2, +11]"
    """
    return f"{signed(difference.value)} {interval(difference.low, difference.high)}"


def verdict(difference: Difference) -> str:
    """The conclusion of a comparison.

    Example:
        verdict(Difference(0.05, -0.02, 0.11, 200, 40, 640))  # "cannot tell: about 640 items needed"
        verdict(Difference(0.02, 0.01, 0.04, 200, 5, 350))    # "only 5 items differ: about 350 items needed"
        verdict(Difference(0.06, 0.01, 0.11, 100, 8, 140, 0.07))  # "cannot tell (p = 0.07): about 140 items needed"
    """
    if difference.direction:
        return "better" if difference.direction > 0 else "worse"
    needed = "" if difference.needed is None else f": about {difference.needed:,} items needed"
    if difference.differing < MIN_DIFFERING:
        return few_differ(difference) + needed
    chance = f" (p = {difference.p:.2f})" if difference.clear_of_zero else ""
    return f"cannot tell{chance}{needed or ': no difference on average'}"


def few_differ(difference: Difference) -> str:
    """Why a comparison has no conclusion, whatever its interval: two methods differ on too few items."""
    match difference.differing:
        case 0:
            return "no item differs"
        case 1:
            return "only 1 item differs"
        case number:
            return f"only {number} items differ"


def budget_label(budget: int | None) -> str:
    """A budget of tokens in a table."""
    return "task's own" if budget is None else f"{budget:,}"


def method_label(method: str) -> str:
    """The name of a method; oracles are marked."""
    return f"{method} (oracle)" if is_oracle(method) else method
