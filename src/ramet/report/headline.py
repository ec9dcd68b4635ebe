"""The sentences at the top of the page: which method or run is better, by how much, and where it cannot be told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ramet.draw import counted
from ramet.evaluate.cells import ALL, BEYOND, Comparison
from ramet.evaluate.format import hundredths, method_label, percent, share
from ramet.evaluate.methods import BASELINE, is_oracle
from ramet.evaluate.statistics import MIN_DIFFERING, rate
from ramet.evaluate.tables import Section
from ramet.report.curves import table_metric
from ramet.report.format import budget_phrase, budgets_phrase, join_words
from ramet.report.read import Run, as_number

Pair = tuple[str, str, str, str, str]  # part; run and method; other run and method
ENDS = 10  # steps at each end of a long run that are counted together: the tasks of single steps differ too much
UNLIKE = 0.1  # share of trees with other sizes from which on two parts of a run cannot be compared as they are


def headline(section: Section, *, titled: bool = False) -> list[str]:
    """A sentence for each pair of methods or runs over all budgets, the most important first.

    Clones of a later run against those of the first come first, and clones of one run against another method of
    another run; then clones against `single`, also beyond training; then everything else.
    """
    pairs: dict[Pair, list[Comparison]] = {}
    for comparison in (*section.run_comparisons, *section.control_comparisons, *section.method_comparisons):
        if comparison.part in (ALL, BEYOND) and not is_oracle(comparison.cell[1]):
            pair = (comparison.part, *comparison.cell[:2], *comparison.other[:2])
            pairs.setdefault(pair, []).append(comparison)
    order = sorted(pairs, key=lambda pair: _rank(pair, section))
    lines = [_sentence(pair, pairs[pair], several_runs=section.several_runs) for pair in order]
    lines = lines or [_only_method(section)]
    if titled and section.title:
        return [f"{section.title}: {line}" for line in lines]
    names = tuple(f"{run}:" for run in section.runs)  # the case of a run's name is kept
    return [line if line.startswith(names) else line[:1].upper() + line[1:] for line in lines]


def _rank(pair: Pair, section: Section) -> tuple[bool, ...]:
    part, run, method, other_run, other_method = pair
    return (
        not method.startswith("clones"),
        run == other_run,
        run != section.runs[-1],
        other_method not in (BASELINE, method),
        part == BEYOND,
    )


def _sentence(pair: Pair, comparisons: Sequence[Comparison], *, several_runs: bool) -> str:
    """One pair at all its budgets."""
    part, run, method, other_run, other_method = pair
    same_run, same_method = run == other_run, method == other_method
    first, second = (run, other_run) if same_method else (method, other_method)
    if not same_run and not same_method:
        first, second = (one if one == own else f"{one} ({own})" for one, own in ((first, run), (second, other_run)))
    before = [f"{run}:"] if several_runs and same_run else []
    before += ["beyond training,"] if part == BEYOND else []
    before += [f"with {method},"] if same_method else []
    plural = not same_method and first.startswith("clones")
    return " ".join([*before, _conclusion(first, second, comparisons, plural=plural)])


def _conclusion(first: str, second: str, comparisons: Sequence[Comparison], *, plural: bool) -> str:
    ahead = [_by_how_much(one) for one in comparisons if one.difference.direction > 0]
    behind = [_by_how_much(one) for one in comparisons if one.difference.direction < 0]
    few = [one for one in comparisons if one.difference.differing < MIN_DIFFERING]
    unknown = [one for one in comparisons if not one.difference.direction and one not in few]
    parts: list[str] = []
    if ahead:
        parts.append(f"{first} {'beat' if plural else 'beats'} {second} by {join_words(ahead)}")
    if behind:
        subject = first if not parts else ("they" if plural else "it")
        parts.append(f"{subject} {'trail' if plural else 'trails'} {second} by {join_words(behind)}")
    if few:
        both = "they" if parts else f"{first} and {second}"
        parts.append(f"{both} differ on {join_words([_few(one) for one in few])}")
    if unknown:
        parts.append(_cannot_tell(first, second, unknown, only=not parts))
    return "; ".join(parts) + "."


def _by_how_much(comparison: Comparison) -> str:
    """Points with their interval, both positive: the sentence names the direction."""
    gap = comparison.difference
    value, low, high = (gap.value, gap.low, gap.high) if gap.direction > 0 else (-gap.value, -gap.high, -gap.low)
    interval = f"[{hundredths(low)}, {hundredths(high)}]"
    return f"{hundredths(value)} points {interval} at {budget_phrase(comparison.budget)}"


def _few(comparison: Comparison) -> str:
    """Too few items differ for a conclusion."""
    gap = comparison.difference
    more = "" if gap.needed is None else f" ({gap.needed:,} or more items would be needed)"
    only = f"only {gap.differing:,}" if gap.differing else "none"
    return f"{only} of {gap.items:,} items at {budget_phrase(comparison.budget)}{more}"


def _cannot_tell(first: str, second: str, unknown: Sequence[Comparison], *, only: bool) -> str:
    where = f"at {budgets_phrase([one.budget for one in unknown])}"
    items = max(one.difference.items for one in unknown)
    needed = [one.difference.needed for one in unknown if one.difference.needed is not None]
    more = f"; {min(needed):,} or more would be needed" if needed else ""
    subject = f"cannot tell {first} from {second}" if only else "cannot tell"
    return f"{subject} {where} ({counted(items, 'item')}{more})"


def _only_method(section: Section) -> str:
    best = max(section.cells, key=lambda cell: cell.accuracy.value)
    verb = "reach" if best.method.startswith("clones") else "reaches"
    return (
        f"{method_label(best.method)} {verb} {percent(best.accuracy)} at {budget_phrase(best.budget)} on "
        f"{counted(best.items, 'item')}; there is no other method to compare it with."
    )


def plain_headline(run: Run) -> str | None:
    """The result of a training run, or the number of trees; None for an evaluation."""
    steps = counted(len(run.metrics), "step")
    held_out, own, losses = (_first_and_last(run, key) for key in ("eval_success", "success", "loss"))
    if held_out is not None:
        first, last = (_success(record, "eval_success", "eval_trees") for record in held_out)
        return f"{run.name}: from {first} to {last} success on held-out tasks in {steps}."
    if own is not None and run.kind == "train":
        return f"{run.name}: {_training_success(run, own)}, each step on new tasks.{_at_equal_sizes(run)}"
    if losses is not None:
        return f"{run.name}: loss from {losses[0]['loss']:.3g} to {losses[1]['loss']:.3g} in {steps}."
    if run.metrics:
        return f"{run.name}: {steps}."
    if run.records or not run.tree_ids:
        return None
    return f"{run.name}: {counted(len(run.tree_ids), 'tree')}."


def _training_success(run: Run, ends: tuple[dict[str, Any], dict[str, Any]]) -> str:
    """Success at both ends of a run: a third of its steps each, ten at most; of few steps, the first and the last."""
    pairs = [(as_number(record.get("success")), as_number(record.get("trees"))) for record in run.metrics]
    known = [(success, trees) for success, trees in pairs if success is not None and trees]
    steps = len(run.metrics)
    number = min(ENDS, steps // 3)
    if len(known) < steps or number < 2:
        first, last = (_success(record, "success", "trees") for record in ends)
        return f"from {first} to {last} success in {counted(steps, 'step')}"
    first, last = (_success(_together(part), "success", "trees") for part in (known[:number], known[-number:]))
    return f"from {first} success in the first {number} steps to {last} in the last {number} of {steps:,}"


def _at_equal_sizes(run: Run) -> str:
    """Success at both ends for one mixture of task sizes, if the sizes at both ends differ; else nothing.

    With `overlap_by=groups`, the first steps consist of the trees that end first, which are those of small tasks.
    """
    steps = min(ENDS, len(run.metrics) // 3)
    first, last = (_by_size(part) for part in (run.metrics[:steps], run.metrics[len(run.metrics) - steps :]))
    trees = {size: first[size][1] + last[size][1] for size in first if size in last}
    if not trees or _unlike(first, last) < UNLIKE:
        return ""
    before, after = (
        sum(trees[size] * end[size][0] / end[size][1] for size in trees) / sum(trees.values()) for end in (first, last)
    )
    return f" At equal sizes of tasks: {share(before)} in the first {steps}, {share(after)} in the last {steps} steps."


def _by_size(records: Sequence[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Right roots and trees of each size of task."""
    found: dict[str, tuple[float, float]] = {}
    for record in records:
        success = table_metric(record, "success_by_size")
        for size, number in table_metric(record, "trees_by_size").items():
            trees, right = as_number(number), as_number(success.get(size))
            if trees and right is not None:
                before = found.get(size, (0.0, 0.0))
                found[size] = (before[0] + right * trees, before[1] + trees)
    return found


def _unlike(first: dict[str, tuple[float, float]], last: dict[str, tuple[float, float]]) -> float:
    """The share of trees that would need another size for both ends to have the same sizes."""
    totals = sum(trees for _, trees in first.values()), sum(trees for _, trees in last.values())
    gaps = (first.get(size, (0, 0))[1] / totals[0] - last.get(size, (0, 0))[1] / totals[1] for size in {*first, *last})
    return sum(map(abs, gaps)) / 2


def _together(steps: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """The success of several steps and the number of their trees."""
    trees = sum(number for _, number in steps)
    return {"success": sum(success * number for success, number in steps) / trees, "trees": trees}


def _first_and_last(run: Run, key: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The first and the last record that have a metric."""
    records = [record for record in run.metrics if as_number(record.get(key)) is not None]
    return (records[0], records[-1]) if records else None


def _success(record: dict[str, Any], key: str, count: str) -> str:
    """A share of trees, with its interval if their number is known."""
    success, trees = record[key], as_number(record.get(count))
    if not trees or not 0 <= success <= 1:
        return share(success)
    return percent(rate(round(success * trees), round(trees)))
