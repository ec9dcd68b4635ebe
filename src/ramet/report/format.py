"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.evaluate.statistics import Estimate
from ramet.report.numbers import Versus, is_oracle


def percent(found: Estimate) -> str:
    """A share and its interval.

    Example:
        percent(Estimate(0.5, 0.25, 0.75))  # "50 % [25, 75]"
    """
    return f"{100 * found.value:.0f} % [{100 * found.low:.0f}, {100 * found.high:.0f}]"


def hundredths(share: float) -> str:
    """A share in hundredths, without decimals unless it is small or next to all.

    Example:
        hundredths(0.123)  # "12"
        hundredths(0.004)  # "0.4"
    """
    value = 100 * share
    near_an_end = abs(value) < 1 or 99 < abs(value) < 100
    said = f"{value:.{0 if not near_an_end else 2 if abs(value) < 0.05 else 1}f}"
    return "0" if float(said) == 0 else said


def points(low: float, high: float) -> str:
    """The interval of a difference, in points."""
    return f"[{hundredths(low)}, {hundredths(high)}]".replace("-", "\N{MINUS SIGN}")


def signed(share: float) -> str:
    """A difference in points, with its sign.

    Example:
        signed(0.12)  # "+12"
    """
    said = hundredths(abs(share))
    return said if said == "0" else ("+" if share > 0 else "\N{MINUS SIGN}") + said


def tokens(budget: int | None) -> str:
    """A budget in words."""
    return "the tasks' own budgets" if budget is None else f"{budget:,} tokens"


def many_tokens(budgets: Sequence[int | None]) -> str:
    """Budgets in a sentence.

    Example:
        many_tokens([500, 1000])  # "500 and 1,000 tokens"
    """
    told = [f"{budget:,}" for budget in budgets if budget is not None]
    parts = [f"{listed(told)} tokens"] if told else []
    return listed(parts + (["the tasks' own budgets"] if None in budgets else []))


def short_tokens(budget: int | None) -> str:
    """A budget in a table."""
    return "own" if budget is None else f"{budget:,}"


def listed(parts: Sequence[str]) -> str:
    """Parts of a sentence, the last one after an and.

    Example:
        listed(["a", "b", "c"])  # "a, b and c"
    """
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def method_name(method: str) -> str:
    """A method as it is shown: an oracle is always called one."""
    return f"{method} (oracle)" if is_oracle(method) else method


def verdict(versus: Versus) -> str:
    """What a difference says, in words."""
    if versus.told:
        return "better" if versus.told > 0 else "worse"
    if not versus.gap.differing:
        return "no item came out differently"
    if versus.gap.needed is None:
        return "cannot tell: no difference on average"
    return f"cannot tell, about {versus.gap.needed:,} items needed"


def amount(value: float) -> str:
    """A mean of counts: whole from ten up.

    Example:
        amount(1234.5)  # "1,234"
        amount(2.25)    # "2.2"
        amount(0)       # "0"
    """
    return f"{value:,.0f}" if abs(value) >= 10 or value == 0 else f"{value:,.1f}"
