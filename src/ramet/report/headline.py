"""The sentences on top of the page: who is better, by how much, and where nobody can tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ramet.evaluate.statistics import rate
from ramet.report.format import hundredths, listed, many_tokens, method_name, percent, points, tokens
from ramet.report.numbers import ALL, BASELINE, BEYOND, Comparison, Versus, is_oracle
from ramet.report.read import Run, number_in

Pair = tuple[str, str, str, str, str]  # part; run and method; run and method


def headline(comparison: Comparison, *, titled: bool = False) -> list[str]:
    """A sentence for each pair of methods or runs over all budgets, those people ask for first in front.

    After a training that is whether clones do better than before; then whether they do better than one long chain, also
    beyond what was trained; then all the rest.
    """
    pairs: dict[Pair, list[Versus]] = {}
    for one in (*comparison.runs_apart, *comparison.methods_apart):
        if one.part in (ALL, BEYOND) and not is_oracle(one.cell[1]):
            pairs.setdefault((one.part, *one.cell[:2], *one.other[:2]), []).append(one)
    order = sorted(pairs, key=lambda pair: _rank(pair, comparison))
    found = [_sentence(pair, pairs[pair], several=comparison.several) for pair in order]
    found = found or [_alone(comparison)]
    if titled and comparison.title:
        return [f"{comparison.title}: {said}" for said in found]
    runs = tuple(f"{run.name}:" for run in comparison.runs)  # a name stays as it is
    return [said if said.startswith(runs) else said[:1].upper() + said[1:] for said in found]


def _rank(pair: Pair, comparison: Comparison) -> tuple[bool, ...]:
    part, run, method, other_run, other_method = pair
    return (
        not method.startswith("clones"),
        run == other_run,
        run != comparison.runs[-1].name,
        other_method not in (BASELINE, method),
        part == BEYOND,
    )


def _sentence(pair: Pair, differences: Sequence[Versus], *, several: bool) -> str:
    """One pair at all its budgets."""
    part, run, method, other_run, other_method = pair
    across = run != other_run
    first, second = (run, other_run) if across else (method, other_method)
    before = [f"{run}:"] if several and not across else []
    before += ["beyond training,"] if part == BEYOND else []
    before += [f"with {method},"] if across else []
    return " ".join([*before, _said(first, second, differences, many=not across and first.startswith("clones"))])


def _said(first: str, second: str, differences: Sequence[Versus], *, many: bool) -> str:
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


def plain_headline(run: Run) -> str | None:
    """What a training run came to, or how many trees there are."""
    steps = f"{len(run.metrics):,} steps"
    held_out, own, losses = (_ends(run, key) for key in ("eval_success", "success", "loss"))
    if held_out is not None:
        first, last = (_share(one, "eval_success", "eval_trees") for one in held_out)
        return f"{run.name}: from {first} to {last} success on held-out tasks in {steps}."
    if own is not None and run.kind == "train":
        first, last = (_share(one, "success", "trees") for one in own)
        return f"{run.name}: from {first} to {last} success in {steps}, each on tasks of its own."
    if losses is not None:
        return f"{run.name}: loss from {losses[0]['loss']:.3g} to {losses[1]['loss']:.3g} in {steps}."
    if run.metrics:
        return f"{run.name}: {steps}."
    if run.records or not run.tree_ids:
        return None
    number = len(run.tree_ids)
    return f"{run.name}: {number:,} {'tree' if number == 1 else 'trees'}."


def _ends(run: Run, key: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Where a metric was measured first and last."""
    found = [one for one in run.metrics if number_in(one.get(key)) is not None]
    return (found[0], found[-1]) if found else None


def _share(record: dict[str, Any], key: str, number: str) -> str:
    """A share of trees, with its interval where their number is known."""
    share, trees = record[key], number_in(record.get(number))
    if not trees or not 0 <= share <= 1:
        return f"{hundredths(share)} %"
    return percent(rate(round(share * trees), round(trees)))
