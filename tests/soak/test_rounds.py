"""One round of each kind that needs no training: the soak test itself works, and notices what is broken."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ramet.store import RunDir
from tests.soak.checks import check_evaluation
from tests.soak.evaluating import ITEMS, eval_killed
from tests.soak.processes import Ended, check_complaint
from tests.soak.rounds import Place, Report
from tests.soak.steady import Sample, check_flat
from tests.soak.trees import TREES, clock_jumps


def place(folder: Path) -> Place:
    def no_model() -> Path:
        raise AssertionError("this round needs no model")

    return Place(folder=folder, dice=random.Random(3), model=no_model)


def test_a_killed_evaluation_has_every_record_once_and_a_lost_or_doubled_one_is_noticed(tmp_path: Path):
    report = eval_killed(place(tmp_path))
    assert report.broken == []
    assert report.done["records checked"] == ITEMS
    trees = sorted((tmp_path / "run" / "trees").glob("*.parquet"))
    shutil.copy(trees[0], trees[0].with_name("chunk-000999.parquet"))
    again = Report()
    check_evaluation(again, tmp_path / "run", items=ITEMS + 1)
    assert [problem.partition(" ")[2] for problem in again.broken] == [
        f"of {ITEMS + 1} items have a record",
        f"trees are stored, and records name {RunDir.open(tmp_path / 'run') and len(_named(tmp_path / 'run'))}",
    ]


def _named(run: Path) -> set[str]:
    from ramet.evaluate.journal import read_records

    return {tree for record in read_records(run) for tree in record.trees}


def test_a_round_of_trees_whose_clock_jumps_holds_every_budget(tmp_path: Path):
    report = clock_jumps(place(tmp_path))
    assert report.broken == []
    assert report.done["trees checked"] == TREES
    assert report.done["clock jump (trees)"] > 0


@pytest.mark.parametrize(
    ("grown", "problems"),
    [
        ({}, []),
        ({"rss_mb": 40.0}, ["rss_mb grew from 110 to 150"]),
        ({"threads": 9, "files": 9}, ["threads grew from 8 to 17", "files grew from 50 to 59"]),
    ],
)
def test_a_server_whose_memory_threads_or_files_grow_is_noticed(grown: dict[str, float], problems: list[str]):
    """Growth in the first quarter is allowed: caches fill."""
    usual = {"rss_mb": 110.0, "threads": 8, "files": 50}
    start = Sample(seconds=0, requests=0, cpu_s=0, run_files=2, rss_mb=60.0, threads=1, files=10)
    middle = replace(start, **usual)
    end = replace(middle, **{name: usual[name] + more for name, more in grown.items()})
    report = Report()
    check_flat(report, [start] * 2 + [middle] * 4 + [end] * 2)
    assert report.broken == problems


@pytest.mark.parametrize(
    ("errors", "problems"),
    [
        ("ramet: the disk is full\n", 0),
        ("ramet: eval/1 (single) has no result: reset\nramet: eval/2 (single) has no result: reset\n", 0),
        ("ramet: eval/1 (single) has no result: reset\nTraceback (most recent call last):\nOSError\n", 1),
        ("Traceback (most recent call last):\nOSError\n", 1),
        ("", 1),
    ],
)
def test_a_traceback_and_a_silent_failure_are_noticed(errors: str, problems: int):
    report = Report()
    check_complaint(report, Ended(code=1, errors=errors))
    assert len(report.broken) == problems
