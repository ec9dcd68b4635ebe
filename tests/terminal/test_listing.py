"""`ramet ls` in terminals of any width: only the names of runs and what they are about are cut."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

import ramet
from ramet.evaluate.settings import EvaluateConfig
from ramet.store.listing import look_at
from ramet.terminal.listing import row_of, table_of
from tests.evaluate.trees import answered

ROWS = [
    [
        "runs/a-question-that-is-rather-long",
        "run",
        "A question that is rather long, too",
        "1 tree",
        "",
        "now",
        "21.4 kB",
    ],
    ["runs/mine", "train", "codes:train", "3 of 3 steps", "100%", "then", "11.5 MB"],
]


def lines(width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(table_of(ROWS, width=width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (200, "run kind what done success when size"),
        (100, "run kind what done success when size"),
        (85, "run kind done success when size"),
        (75, "run kind done success when"),
        (66, "run kind done success"),
        (58, "run kind done"),
        (42, "run kind"),
        (35, "run"),
    ],
)
def test_columns_are_left_out_and_paths_are_never_cut(width: int, columns: str) -> None:
    head, first, second = lines(width)
    assert head.split() == columns.split()
    assert first.startswith("runs/a-question-that-is-rather-long")
    assert second.startswith("runs/mine")
    assert max(map(len, (head, first, second))) <= width


def test_a_training_in_its_supervised_start_shows_the_steps_of_that(tmp_path: Path) -> None:
    run = ramet.RunDir.create(tmp_path, "mine", kind="train")
    start = ramet.RunDir.create(run.path, "warm", kind="warmstart")
    for _ in range(3):
        start.log({"loss": 1.0})
    assert row_of(look_at(run.path))[3] == "3 supervised steps"
    run.log({"success": 0.5})
    assert row_of(look_at(run.path))[3] == "1 step"


@pytest.mark.parametrize(("methods", "shown"), [(["clones"], "50%"), (["single", "clones"], "")])
def test_an_evaluation_of_several_methods_has_no_success(tmp_path: Path, methods: list[str], shown: str) -> None:
    config = EvaluateConfig(tasks=("codes:eval",), methods=tuple(methods))
    run = ramet.RunDir.create(tmp_path, "mine", kind="eval", config=config)
    run.write([answered("5", score=score, name=str(score)) for score in (0.0, 1.0)])
    assert row_of(look_at(run.path))[4] == shown


def test_a_path_longer_than_the_terminal_is_wrapped() -> None:
    assert [line.strip() for line in lines(20)] == ["run", "runs/a-question-that", "-is-rather-long", "runs/mine"]


def test_what_a_run_is_about_is_cut_before_its_name() -> None:
    _, first, _ = lines(100)
    assert first.startswith("runs/a-question-that-is-rather-long  run")
    assert "…" in first
    assert "rather long, too" in lines(200)[1]
