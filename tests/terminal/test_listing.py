"""`ramet ls` in terminals of any width: only the names of runs and what they are about are cut."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ramet.terminal.listing import table_of

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


@pytest.mark.parametrize("width", [70, 85, 100, 200])
def test_only_the_name_and_what_a_run_is_about_are_cut(width: int) -> None:
    head, first, second = lines(width)
    assert head.split()[-4:] == ["done", "success", "when", "size"]
    assert first.split()[-5:] == ["1", "tree", "now", "21.4", "kB"]
    assert second.split()[-7:] == ["of", "3", "steps", "100%", "then", "11.5", "MB"]
    assert ("what" in head) == (width > 85)


def test_what_a_run_is_about_is_cut_before_its_name() -> None:
    _, first, _ = lines(100)
    assert first.startswith("runs/a-question-that-is-rather-long  run")
    assert "…" in first
    assert "rather long, too" in lines(200)[1]
