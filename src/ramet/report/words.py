"""Numbers as people read them, and the sentence on top of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from ramet.evaluate.statistics import Estimate
from ramet.report.numbers import ALL, BEYOND, Comparison, Key, Versus, is_oracle

_Name = Callable[[Key], str]


def percent(found: Estimate) -> str:
    """A share and its interval.

    Example:
        percent(Estimate(0.5, 0.25, 0.75))  # "50 % [25, 75]"
    """
    return f"{hundredths(found.value)} % [{hundredths(found.low)}, {hundredths(found.high)}]"


def hundredths(share: float) -> str:
    """A share in hundredths, without decimals unless it is small or next to all.

    Example:
        hundredths(0.123)  # "12"
        hundredths(0.004)  # "0.4"
    """
    value = 100 * share
    near_an_end = 0.05 <= abs(value) < 1 or 99 < abs(value) <= 99.95
    said = f"{value:.{1 if near_an_end else 0}f}"
    return "0" if said == "-0" else said


def points(low: float, high: float) -> str:
    """The interval of a difference, in points."""
    return f"[{hundredths(low)}, {hundredths(high)}]"


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


def headline(comparison: Comparison, *, titled: bool = False) -> list[str]:
    """A sentence for each pair of methods or runs: who is better, by how much, and where nobody can tell."""
    found: list[str] = []
    for run in comparison.runs:
        own = [one for one in comparison.methods_apart if one.cell[0] == run.name and not is_oracle(one.cell[1])]
        clones = [one for one in own if one.cell[1].startswith("clones")]
        prefix = f"{run.name}: " if comparison.several else ""
        found += [prefix + said for said in _by_pair(clones or own, _method)]
    found += _by_pair([one for one in comparison.runs_apart if not is_oracle(one.cell[1])], _with_method)
    title = f"{comparison.title}: " if titled and comparison.title else ""
    return [title + said for said in found or [_alone(comparison)]]


def _by_pair(differences: Iterable[Versus], name: _Name) -> list[str]:
    pairs: dict[tuple[str, str, str], list[Versus]] = {}
    for one in differences:
        if one.part in (ALL, BEYOND):
            pairs.setdefault((one.part, *_two(one, name)), []).append(one)
    found: list[str] = []
    for (part, first, second), own in pairs.items():
        said = _sentence(first, second, own)
        found.append(f"Beyond training, {said}" if part == BEYOND else said)
    return found


def _method(key: Key) -> str:
    return key[1]


def _with_method(key: Key) -> str:
    return f"{key[1]} in {key[0]}"


def _two(one: Versus, name: _Name) -> tuple[str, str]:
    return name(one.cell), name(one.other)


def _sentence(first: str, second: str, differences: Sequence[Versus]) -> str:
    """One pair at all its budgets."""
    many = first.startswith("clones")
    ahead = [_by_how_much(one) for one in differences if one.told > 0]
    behind = [_by_how_much(one) for one in differences if one.told < 0]
    unknown = [one for one in differences if not one.told]
    parts: list[str] = []
    if ahead:
        parts.append(f"{first} {'beat' if many else 'beats'} {second} by {listed(ahead)}")
    if behind:
        subject = first if not parts else ("they" if many else "it")
        parts.append(f"{subject} {'trail' if many else 'trails'} {second} by {listed(behind)}")
    if unknown:
        parts.append(_unknown(first, second, unknown, alone=not parts))
    return "; ".join(parts) + "."


def _by_how_much(one: Versus) -> str:
    """Points with their interval, both counted in the direction of the verdict."""
    gap = one.gap
    value, low, high = (gap.value, gap.low, gap.high) if one.told > 0 else (-gap.value, -gap.high, -gap.low)
    return f"{hundredths(value)} points {points(low, high)} at {tokens(one.cell[2])}"


def _unknown(first: str, second: str, unknown: Sequence[Versus], *, alone: bool) -> str:
    where = f"at {many_tokens([one.cell[2] for one in unknown])}"
    items = max(one.gap.items for one in unknown)
    needed = [one.gap.needed for one in unknown if one.gap.needed is not None]
    more = f"; {min(needed):,} or more would be needed" if needed else ""
    said = f"cannot tell {first} from {second}" if alone else "cannot tell"
    return f"{said} {where} ({items:,} {'item' if items == 1 else 'items'}{more})"


def _alone(comparison: Comparison) -> str:
    """One method only: nothing to compare it with."""
    best = max(comparison.cells, key=lambda cell: cell.accuracy.value)
    return (
        f"{method_name(best.method)} reaches {percent(best.accuracy)} at {tokens(best.budget)} on "
        f"{len(best.records):,} items; there is no other method to compare it with."
    )


def amount(value: float) -> str:
    """A mean of counts: whole from ten up.

    Example:
        amount(1234.5)  # "1,234"
        amount(2.25)    # "2.2"
    """
    if not math.isfinite(value):
        return "?"
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:,.1f}"
