"""The trees behind the numbers: items of every cell, items that differ, and a few trees drawn."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from ramet.draw import draw, one_line
from ramet.evaluate.record import Record
from ramet.evaluate.tables import is_right
from ramet.report.format import percent, tokens
from ramet.report.markup import Content, Markup, table, tag
from ramet.report.numbers import ALL, SIZE, Cell, Comparison, Versus, accuracy_of, bucket_word
from ramet.report.read import Run
from ramet.report.sections import cell_id, versus_id
from ramet.types import Tree

LISTED = 500  # items of one cell on the page; all of them are in records.csv
DRAWN = 120  # lines of one tree
FOLDED = 2  # trees of one item that are listed openly


def command(run: Run, tree: str) -> Markup:
    """What to type to see a tree."""
    return tag("code", f"ramet show {shlex.quote(str(run.path))} --tree {shlex.quote(tree)}", class_="copy")


def trees_of(run: Run, trees: Sequence[str]) -> Content:
    """Commands for the trees of one item; many of them are folded."""
    shown = [tag("div", command(run, tree)) for tree in trees]
    if len(shown) <= FOLDED:
        return shown
    return tag("details", tag("summary", f"{len(shown)} trees"), shown)


def by_name(task: str) -> list[tuple[int, str]]:
    """For sorting: numbers in names count as numbers.

    Example:
        sorted(["x/10", "x/9"], key=by_name)  # ["x/9", "x/10"]
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", task)]


def behind_cells(comparison: Comparison) -> list[Markup]:
    """For each cell its items, bucket by bucket: what was scored, what it cost, and its trees."""
    runs = {run.name: run for run in comparison.runs}
    return [_behind_cell(cell, runs[cell.run], comparison) for cell in comparison.cells]


def _behind_cell(cell: Cell, run: Run, comparison: Comparison) -> Markup:
    title = f"{comparison.label(cell.run, cell.method)} at {tokens(cell.budget)}: {len(cell.records):,} items"
    left = LISTED
    inner: list[Content] = []
    for bucket in comparison.buckets:
        own = sorted((one for one in cell.records if one.bucket == bucket.name), key=lambda one: by_name(one.task))
        if not own:
            continue
        beyond = ", beyond training" if bucket.beyond else ""
        part = f"problem size {bucket.name}" if bucket_word(comparison) == SIZE else bucket.name
        caption = f"{part}{beyond}: {len(own):,} items, {percent(accuracy_of(own))}"
        rows = [_item(record, run) for record in own[: max(0, left)]]
        head = ("task", "score", "answer", "generated", "critical path", "nodes", "trees")
        inner.append(
            tag("div", table(head, rows, caption=caption, left=(2, 6)), id=cell_id(comparison, cell.key, bucket.name))
        )
        left -= len(own)
    if left < 0:
        inner.append(tag("p", f"Only the first {LISTED:,} of {len(cell.records):,}; all of them are in records.csv."))
    return tag("details", tag("summary", title), tag("div", inner, id=cell_id(comparison, cell.key)), class_="behind")


def _item(record: Record, run: Run) -> list[Content]:
    answer = "no answer" if record.answer is None else one_line(record.answer, 60)
    costs = [f"{record.generated:,}", f"{record.critical_path:,}", f"{record.nodes:,}"]
    return [record.task, f"{record.score:.3g}", answer, *costs, trees_of(run, record.trees)]


def behind_differences(comparison: Comparison) -> list[Markup]:
    """For each difference the items on which the two were not equal."""
    runs = {run.name: run for run in comparison.runs}
    both = [*comparison.methods_apart, *comparison.runs_apart]
    return [_behind_difference(one, runs, comparison) for one in both]


def _behind_difference(one: Versus, runs: Mapping[str, Run], comparison: Comparison) -> Markup:
    names = [comparison.label(key[0], key[1]) for key in (one.cell, one.other)]
    part = "" if one.part == ALL else f", {one.part}"
    title = f"{names[0]} against {names[1]} at {tokens(one.cell[2])}{part}: {one.gap.differing:,} items differ"
    apart = [pair for pair in one.pairs if is_right(pair[0]) != is_right(pair[1])]
    apart.sort(key=lambda pair: by_name(pair[0].task))
    rows = [
        (
            first.task,
            f"{first.score:.3g}",
            f"{second.score:.3g}",
            trees_of(runs[one.cell[0]], first.trees),
            trees_of(runs[one.other[0]], second.trees),
        )
        for first, second in apart[:LISTED]
    ]
    head = ("task", names[0], names[1], f"trees of {names[0]}", f"trees of {names[1]}")
    inner = table(head, rows, caption=title, left=(3, 4)) if rows else tag("p", "All items came out the same.")
    return tag("details", tag("summary", title), tag("div", inner, id=versus_id(comparison, one)), class_="behind")


def drawn_tree(tree: Tree, run: Run, *, title: str, open_: bool = False) -> Markup:
    """A tree as text, with what was asked and answered."""
    reason = tree.root.verdict.reason if tree.root.verdict is not None else ""
    facts = [
        tag("p", tag("strong", "Asked: "), one_line(tree.task.question, 400)),
        tag("p", tag("strong", "Answered: "), one_line(tree.answer if tree.answer is not None else "nothing", 400)),
        tag("p", tag("strong", "Verdict: "), one_line(reason, 400)) if reason else None,
    ]
    lines = draw(tree).splitlines()
    if len(lines) > DRAWN:
        lines = [*lines[:DRAWN], f"… and {len(lines) - DRAWN - 1:,} more nodes", lines[-1]]
    drawn = tag("pre", "\n".join(lines), tabindex="0")
    return tag("details", tag("summary", title), facts, drawn, tag("p", command(run, tree.id)), open=open_)


def examples(comparison: Comparison) -> list[tuple[str, Run, Record]]:
    """A right and a wrong item for each method and run at its largest budget, with a title."""
    found: list[tuple[str, Run, Record]] = []
    for run in comparison.runs:
        for method in sorted(comparison.methods, key=lambda method: not method.startswith("clones")):
            cells = [cell for cell in comparison.cells if (cell.run, cell.method) == (run.name, method)]
            if not cells:
                continue
            for word, right in (("right", True), ("wrong", False)):
                record = _typical([one for one in cells[-1].records if is_right(one) == right], run)
                if record is not None:
                    title = f"{comparison.label(run.name, method)}, {word}: {record.task} at {tokens(record.budget)}"
                    found.append((title, run, record))
    return found


def _typical(records: Sequence[Record], run: Run) -> Record | None:
    """One whose tree is stored: of those that delegated, the one in the middle by nodes; else by tokens."""
    stored = [record for record in records if any(tree in run.tree_ids for tree in record.trees)]
    split = [record for record in stored if record.delegated] or stored
    split.sort(key=lambda record: (record.nodes, record.generated, record.task))
    return split[len(split) // 2] if split else None
