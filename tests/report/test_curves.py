"""Plots of what nodes did during training."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.report.curves import look_up, success_by_verdict, training_pictures
from ramet.report.figures import Picture
from ramet.report.read import read_run
from ramet.report.style import drawing
from ramet.report.training import training_table
from tests.report.samples import Path, run_dir, step

BEHAVIOUR: dict[str, Any] = {
    "passed_on": 0.25,
    "impossible": None,
    "unearned": 0.0,
    "refused": 1.5,
    "refusals": {"same_goal": 1.5, "tokens": 0.0},
    "faults": 0.5,
    "repairs": 0.0,
    "stops": {"answered": 0.5, "window": 0.5, "budget": 0.0},
    "root_stops": {"answered": 0.25, "window": 0.75},
    "success_by_verdict": {"exact": [0.5, 1.0], "judge": [None, None], "root": [None, 0.0]},
    "nodes_by_verdict": {"exact": [2, 6], "judge": [0, 0], "root": [0, 4]},
    "nodes_by_depth": [2, 10],
    "granted_by_depth": [900.0, 100.0],
    "used_by_depth": [50.0, 25.0],
}


def pictures(tmp_path: Path, **more: Any) -> dict[str, Picture]:
    run = run_dir(tmp_path, "run", kind="train", metrics=[step(number, **(BEHAVIOUR | more)) for number in range(3)])
    with drawing():
        return {picture.name: picture for picture in training_pictures(read_run(run), name="")}


def test_every_behaviour_has_a_plot_and_lines_that_stay_at_zero_are_left_out(tmp_path: Path) -> None:
    drawn = pictures(tmp_path)
    assert list(drawn)[4:] == ["goals", "refusals", "stops", "verdicts", "nodes", "granted", "used"]
    refusals = drawn["refusals"].svg
    assert "refused: same goal" in refusals
    assert "faults" in refusals
    assert "refused: tokens" not in refusals
    assert "exact (8 nodes per step)" in drawn["verdicts"].svg
    assert "root (4 nodes per step)" in drawn["verdicts"].svg
    assert "depth 1" in drawn["granted"].svg


def test_a_run_without_trouble_has_no_plot_of_it(tmp_path: Path) -> None:
    calm = {"refusals": {"same_goal": 0.0}, "faults": 0.0, "stops": {"answered": 1.0, "window": 0.0}, "passed_on": 0.0}
    alone = {"nodes_by_verdict": {"exact": [2, 6], "root": [0, 0]}}
    assert not {"goals", "refusals", "stops", "verdicts"} & pictures(tmp_path, **calm, **alone).keys()


def test_success_by_verdict_is_weighted_by_nodes() -> None:
    assert success_by_verdict(BEHAVIOUR, how="exact") == pytest.approx((0.5 * 2 + 1.0 * 6) / 8)
    assert success_by_verdict(BEHAVIOUR, how="root") == 0.0
    assert success_by_verdict(BEHAVIOUR, how="judge") is None
    assert success_by_verdict({"success_by_verdict": 3, "nodes_by_verdict": {"exact": "many"}}, how="exact") is None


def test_numbers_inside_tables_and_lists_are_found_and_wrong_ones_are_not() -> None:
    assert look_up(BEHAVIOUR, "root_stops/window") == 0.75
    assert look_up(BEHAVIOUR, "nodes_by_depth/1") == 10
    for key in ("none", "stops/none", "passed_on/0", "nodes_by_depth/9", "nodes_by_depth/x", "impossible/0"):
        assert look_up(BEHAVIOUR, key) is None


def test_the_table_has_the_most_important_of_them(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "run", kind="train", metrics=[step(number, **BEHAVIOUR) for number in range(3)])
    table = str(training_table(read_run(run)))
    for label in ("clones with their parent", "refused clones per tree", "roots whose window was full"):
        assert label in table
    assert "cannot be met" not in table  # this taskset does not know
