"""Text that only the page uses. Shares, intervals and verdicts are in `ramet.evaluate.format`."""

from __future__ import annotations

from collections.abc import Sequence


def budget_phrase(budget: int | None) -> str:
    """A budget in a sentence.

    Example:
        budget_phrase(1000)  # "1,000 tokens"
    """
    return "the tasks' own budgets" if budget is None else f"{budget:,} tokens"


def budgets_phrase(budgets: Sequence[int | None]) -> str:
    """Several budgets in a sentence.

    Example:
        budgets_phrase([500, 1000])  # "500 and 1,000 tokens"
    """
    numbers = [f"{budget:,}" for budget in budgets if budget is not None]
    parts = [f"{join_words(numbers)} tokens"] if numbers else []
    return join_words(parts + (["the tasks' own budgets"] if None in budgets else []))


def join_words(parts: Sequence[str]) -> str:
    """A list in a sentence.

    Example:
        join_words(["a", "b", "c"])  # "a, b and c"
    """
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def amount(value: float) -> str:
    """A mean of counts: without decimals from ten up.

    Example:
        amount(1234.5)  # "1,234"
        amount(2.25)    # "2.2"
        amount(0)       # "0"
    """
    return f"{value:,.0f}" if abs(value) >= 10 or value == 0 else f"{value:,.1f}"
