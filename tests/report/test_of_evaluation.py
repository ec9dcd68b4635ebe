"""A real evaluation, played by a script with the real runtime, and its page: the same numbers in both."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio

import ramet
from ramet.evaluate import Evaluation, evaluate
from ramet.report.page import make_report
from ramet.store import RunDir, read_trees
from ramet.tasks.arithmetic import Calculator
from ramet.tasks.oracle import script
from ramet.types import Prompt
from tests.report.page_of import Page


def careless(prompt: Prompt) -> str:
    """Delegates where it may; alone it gets every expression with a 7 in it wrong."""
    may = "delegate(" in prompt.messages[0].content
    said = script(Calculator(delegate=may, dice_seed=("test",)), "tools")(prompt)
    return "Answer: 0.5" if not may and "7" in prompt.goal else said


def played(parent: Path) -> tuple[Evaluation, Path]:
    run = RunDir.create(parent, "sums", kind="eval")
    found = anyio.run(
        partial(
            evaluate,
            ["arithmetic:eval"],
            engine=ramet.ScriptedEngine(careless),
            methods=["single", "vote@2", "clones"],
            budgets=[300, 900],
            n=8,
            taskset={"operators": [2, 4], "digits": 1},
            run=run,
        )
    )
    return found, run.path


def test_the_page_says_what_the_evaluation_found(tmp_path: Path) -> None:
    found, path = played(tmp_path)
    page = Page(make_report([path]).html)
    cells = found.sections()[0].cells
    assert len(cells) == 6
    for cell in cells:
        row = page.row("Methods under", cell.method, f"{cell.budget:,}")
        assert row[2].startswith(f"{100 * cell.accuracy.value:.0f} % [{100 * cell.accuracy.low:.0f}, ")
        assert ("tokens" in row[3]) == cell.front
    for one in found.sections()[0].comparisons:
        row = page.row("Methods compared", one.method, one.against, f"{one.budget:,}")
        assert row[3] == str(one.difference.items)
        assert (row[6] in ("better", "worse")) == one.difference.told_apart


def test_every_tree_behind_a_number_can_be_shown(tmp_path: Path) -> None:
    found, path = played(tmp_path)
    page = Page(make_report([path]).html)
    trees = {tree.id for tree in read_trees(path)}
    said = {code.removeprefix(f"ramet show {path} --tree ") for code in page.codes if " show " in code}
    assert said == trees
    assert {tree for record in found.records for tree in record.trees} == trees
    assert any("Timeline of tree clones." in text for text in [page.text])
