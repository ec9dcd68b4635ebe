"""A real evaluation with a scripted engine, and its page: both have the same numbers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio

import ramet
from ramet.evaluate import Evaluation, evaluate
from ramet.evaluate.format import percent, points, verdict
from ramet.report.page import make_report
from ramet.store import read_trees
from ramet.tasks.arithmetic import Calculator
from ramet.tasks.oracle import script
from ramet.types import Prompt
from tests.report.page_parser import Page


def careless(prompt: Prompt) -> str:
    """Delegates if it may; alone it gets every expression that contains a 7 wrong."""
    may = "delegate(" in prompt.messages[0].content
    reply = script(Calculator(delegate=may, dice_seed=("test",)), "tools")(prompt)
    return "Answer: 0.5" if not may and "7" in prompt.goal else reply


def played(parent: Path) -> tuple[Evaluation, Path]:
    evaluation = anyio.run(
        partial(
            evaluate,
            ["arithmetic:eval"],
            engine=ramet.ScriptedEngine(careless),
            methods=["single", "vote@2", "clones"],
            budgets=[300, 900],
            n=8,
            taskset={"operators": [2, 4], "digits": 1},
            into=parent / "sums",
        )
    )
    return evaluation, parent / "sums"


def test_the_page_has_the_numbers_of_the_evaluation(tmp_path: Path) -> None:
    evaluation, path = played(tmp_path)
    page = Page(make_report([path]).html)
    (section,) = evaluation.sections()
    cells = section.cells
    assert len(cells) == 6
    for cell in cells:
        row = page.row("Methods under", cell.method, f"{cell.budget:,}")
        assert row[2] == percent(cell.accuracy)
        assert ("tokens" in row[3]) == cell.front
    for one in section.baseline_comparisons:
        row = page.row("Methods compared", one.cell[1], one.other[1], f"{one.budget:,}")
        assert row[3] == str(one.difference.items)
        assert row[5:7] == [points(one.difference), verdict(one.difference)]


def test_the_page_has_a_command_for_every_tree(tmp_path: Path) -> None:
    evaluation, path = played(tmp_path)
    page = Page(make_report([path]).html)
    trees = {tree.id for tree in read_trees(path)}
    reply = {code.removeprefix(f"ramet show {path} --tree ") for code in page.codes if " show " in code}
    assert reply == trees
    assert {tree for record in evaluation.records for tree in record.trees} == trees
    assert "Timeline of tree clones." in page.text
