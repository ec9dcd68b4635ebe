"""Verdicts of checks that failed: the first of each kind is a line, all are counted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest

import ramet
from ramet.errors import TrainError
from ramet.tasks.jsonl import JsonLines
from ramet.tasks.unchecked import Unchecked
from ramet.train.loop import train
from ramet.types import Tree
from tests.tasks.test_jsonl import row, write
from tests.train import small

CHECK = """
def near(answer, row):
    if answer == "three":
        return row["tolerance"]
    return abs(float(answer) - float(row["answer"])) < 1
"""


@pytest.fixture
def taskset(tmp_path: Path) -> JsonLines:
    (tmp_path / "checks.py").write_text(CHECK)
    return JsonLines(file=write(tmp_path, row(answer="4")), check=f"{tmp_path / 'checks.py'}:near")


def trees(taskset: JsonLines, answers: Sequence[str]) -> list[Tree]:
    async def play(answer: str) -> Tree:
        engine = ramet.ScriptedEngine(lambda _: f"Answer: {answer}")
        return await ramet.play(taskset, taskset.task("all", 0), ramet.TreeOptions(engine=engine))

    return [anyio.run(play, answer) for answer in answers]


def test_failures_of_one_line_of_a_check_are_one_line_and_a_number(
    taskset: JsonLines, caplog: pytest.LogCaptureFixture
) -> None:
    unchecked = Unchecked()
    unchecked.add(trees(taskset, ["4", "four", "fore"]))
    unchecked.add(trees(taskset, ["three", "5", "for"]))
    unchecked.log_total()
    scores = "this scores 0, further ones of this kind are only counted"
    assert caplog.messages == [
        "jsonl:all/0 cannot be checked: ValueError in checks.py, line 5: could not convert string to float: 'four'; "
        + scores,
        f"jsonl:all/0 cannot be checked: KeyError in checks.py, line 4: 'tolerance'; {scores}",
        "4 answers could not be checked and score 0 (3 by ValueError in checks.py, line 5, 1 by KeyError in checks.py, "
        "line 4)",
    ]


def test_a_training_goes_on_and_counts_them_in_every_step(
    tmp_path: Path, taskset: JsonLines, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "checks.py").write_text("def near(answer, row):\n    return row['tolerance']\n")
    options = {"file": str(taskset.file), "check": taskset.check}
    config = replace(small.config(small.folder(tmp_path), "task=jsonl:all", "steps=2"), taskset=options)
    first, second = train(config, runs=tmp_path).metrics()
    assert min(first["unchecked"], second["unchecked"]) > 0
    (said,) = caplog.messages
    assert "cannot be checked: KeyError in checks.py, line 2: 'tolerance'; this scores 0" in said
    with pytest.raises(TrainError, match=r"nothing to learn from \(jsonl:all/0 cannot be checked: KeyError in"):
        train(replace(config, warm={"steps": 1}), runs=tmp_path / "none")
    assert list((tmp_path / "none").iterdir()) == []


def test_checks_that_work_are_not_mentioned(taskset: JsonLines, caplog: pytest.LogCaptureFixture) -> None:
    unchecked = Unchecked()
    unchecked.add(trees(taskset, ["4", "9"]))
    unchecked.log_total()
    assert caplog.messages == []


def test_an_evaluation_ends_with_their_number(taskset: JsonLines, caplog: pytest.LogCaptureFixture) -> None:
    engine = ramet.ScriptedEngine(lambda _: "Answer: four")
    with caplog.at_level(logging.WARNING):
        evaluation = anyio.run(partial(ramet.evaluate, [(taskset, "all")], engine=engine, methods=["single", "vote@2"]))
    assert [record.score for record in evaluation.records] == [0.0, 0.0]
    assert len(caplog.messages) == 2
    assert caplog.messages[1] == "3 answers could not be checked and score 0 (3 by ValueError in checks.py, line 5)"
