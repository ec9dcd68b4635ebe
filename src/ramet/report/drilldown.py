"""The trees behind the numbers: items of every cell, items that differ, and a few trees drawn."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from ramet.draw import counted, draw, one_line
from ramet.evaluate.cells import ALL, Cell, Comparison, accuracy_rate
from ramet.evaluate.format import percent
from ramet.evaluate.record import Record
from ramet.evaluate.tables import Section
from ramet.report.format import budget_phrase
from ramet.report.grouping import SIZE, bucket_word
from ramet.report.markup import Content, Markup, table, tag
from ramet.report.page_tables import cell_id, comparison_id
from ramet.report.read import Run, read_references
from ramet.report.viewer import tree_link
from ramet.types import Tree

MAX_ITEMS = 500  # of one cell on the page; all of them are in records.csv
MAX_LINES = 120  # of one drawn tree
ANSWER = 60  # characters
MAX_COMMANDS = 2  # of one item that are not folded


def show_command(run: Run, tree: str) -> Markup:
    """The command that shows a tree."""
    return tag("code", f"ramet show {shlex.quote(str(run.path))} --tree {shlex.quote(tree)}", class_="copy")


def _show_commands(run: Run, trees: Sequence[str]) -> Content:
    """Commands for the trees of one item, folded if there are many."""
    commands = [tag("div", show_command(run, tree)) for tree in trees]
    if len(commands) <= MAX_COMMANDS:
        return commands
    return tag("details", tag("summary", f"{len(commands)} trees"), commands)


def natural_order(task: str) -> list[tuple[int, str]]:
    """A sort key in which numbers inside names count as numbers.

    Example:
        sorted(["x/10", "x/9"], key=natural_order)  # ["x/9", "x/10"]
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", task)]


def right_answers(section: Section, runs: Mapping[str, Run]) -> dict[str, str]:
    """A right answer for each task: one that was judged right, else the reference."""
    records = [record for cell in section.cells for record in cell.records]
    known = {name: answer for run in section.runs for name, answer in read_references(runs[run]).items()}
    return known | {one.task: one.answer for one in records if one.is_right and one.answer is not None}


def cell_details(section: Section, runs: Mapping[str, Run]) -> list[Markup]:
    """For each cell its items, bucket by bucket: score, answer, the right answer if it is wrong, cost and trees."""
    right = right_answers(section, runs)
    return [_cell_detail(cell, runs[cell.run], section, right) for cell in section.cells]


def _cell_detail(cell: Cell, run: Run, section: Section, right: Mapping[str, str]) -> Markup:
    title = f"{section.label(cell.run, cell.method)} at {budget_phrase(cell.budget)}: {counted(cell.items, 'item')}"
    room = MAX_ITEMS
    inner: list[Content] = []
    for bucket in section.buckets:
        records = [record for record in cell.records if record.bucket == bucket.name]
        records.sort(key=lambda record: natural_order(record.task))
        if not records:
            continue
        beyond = ", beyond training" if any(record.beyond for record in records) else ""
        part = f"problem size {bucket.name}" if bucket_word(section) == SIZE else bucket.name
        caption = f"{part}{beyond}: {counted(len(records), 'item')}, {percent(accuracy_rate(records))}"
        rows = [_item_row(record, run, right) for record in records[: max(0, room)]]
        head = ("task", "score", "answer", "right answer", "generated", "critical path", "nodes", "trees")
        inner.append(
            tag("div", table(head, rows, caption=caption, left=(2, 3, 7)), id=cell_id(section, cell.key, bucket.name))
        )
        room -= len(records)
    if room < 0:
        inner.append(tag("p", f"Only the first {MAX_ITEMS:,} of {cell.items:,}; all of them are in records.csv."))
    return tag("details", tag("summary", title), tag("div", inner, id=cell_id(section, cell.key)), class_="behind")


def _item_row(record: Record, run: Run, right: Mapping[str, str]) -> list[Content]:
    answer = _answer(record)
    other = "" if record.is_right else one_line(right.get(record.task, "not known"), ANSWER)
    costs = [f"{record.generated:,}", f"{record.critical_path:,}", f"{record.nodes:,}"]
    return [record.task, f"{record.score:.3g}", answer, other, *costs, _show_commands(run, record.trees)]


def _answer(record: Record) -> str:
    return "no answer" if record.answer is None else one_line(record.answer, ANSWER)


def difference_details(section: Section, runs: Mapping[str, Run]) -> list[Markup]:
    """For each comparison the items on which the two differ."""
    return [_difference_detail(comparison, runs, section) for comparison in section.comparisons]


def _difference_detail(comparison: Comparison, runs: Mapping[str, Run], section: Section) -> Markup:
    names = [section.label(key[0], key[1]) for key in (comparison.cell, comparison.other)]
    part = "" if comparison.part == ALL else f", {comparison.part}"
    where = f"at {budget_phrase(comparison.budget)}{part}"
    title = f"{names[0]} against {names[1]} {where}: {comparison.difference.differing:,} items differ"
    pairs = [pair for pair in comparison.pairs if pair[0].is_right != pair[1].is_right]
    pairs.sort(key=lambda pair: natural_order(pair[0].task))
    rows = [
        (
            first.task,
            f"{first.score:.3g}",
            f"{second.score:.3g}",
            _answer(first),
            _answer(second),
            _show_commands(runs[comparison.cell[0]], first.trees),
            _show_commands(runs[comparison.other[0]], second.trees),
        )
        for first, second in pairs[:MAX_ITEMS]
    ]
    head = ("task", *names, *(f"answer of {name}" for name in names), *(f"trees of {name}" for name in names))
    inner = table(head, rows, caption=title, left=(3, 4, 5, 6)) if rows else tag("p", "No item differs.")
    target = comparison_id(section, comparison)
    return tag("details", tag("summary", title), tag("div", inner, id=target), class_="behind")


def drawn_tree(tree: Tree, run: Run, *, title: str, open_: bool = False, linked: bool = False) -> Markup:
    """A tree as text, with the question, the answer and the verdict; `linked`: and a link to all that was said."""
    reason = tree.root.verdict.reason if tree.root.verdict is not None else ""
    facts = [
        tag("p", tag("strong", "Question: "), one_line(tree.task.question, 400)),
        tag("p", tag("strong", "Answer: "), one_line(tree.answer if tree.answer is not None else "none", 400)),
        tag("p", tag("strong", "Verdict: "), one_line(reason, 400)) if reason else None,
    ]
    lines = draw(tree).splitlines()
    if len(lines) > MAX_LINES:
        lines = [*lines[:MAX_LINES], f"… and {len(lines) - MAX_LINES - 1:,} more nodes", lines[-1]]
    drawn = tag("pre", "\n".join(lines), tabindex="0")
    more = [tree_link(run, tree.id), " · "] if linked else None
    shown = tag("p", more, show_command(run, tree.id))
    return tag("details", tag("summary", title), facts, drawn, shown, open=open_)


def examples(section: Section, runs: Mapping[str, Run]) -> list[tuple[str, Run, Record]]:
    """A right and a wrong item for each method and run at its largest budget, with a title."""
    chosen: list[tuple[str, Run, Record]] = []
    for run in (runs[name] for name in section.runs):
        for method in sorted(section.methods, key=lambda method: not method.startswith("clones")):
            cells = [cell for cell in section.cells if (cell.run, cell.method) == (run.name, method)]
            if not cells:
                continue
            for word, right in (("right", True), ("wrong", False)):
                record = _typical([record for record in cells[-1].records if record.is_right == right], run)
                if record is not None:
                    where = f"{record.task} at {budget_phrase(record.budget)}"
                    chosen.append((f"{section.label(run.name, method)}, {word}: {where}", run, record))
    return chosen


def _typical(records: Sequence[Record], run: Run) -> Record | None:
    """The median item by nodes, then tokens, among those whose tree is stored; one that delegated if there is any."""
    stored = [record for record in records if any(tree in run.tree_ids for tree in record.trees)]
    candidates = [record for record in stored if record.delegated] or stored
    candidates.sort(key=lambda record: (record.nodes, record.generated, record.task))
    return candidates[len(candidates) // 2] if candidates else None
