"""Plots of what nodes did during training."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.report.cumulative import SECONDS, TOKENS, cumulative_costs, short_number
from ramet.report.curves import look_up, overlaid_pictures, success_by_verdict, training_pictures
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
    assert "exact (n=8)" in drawn["verdicts"].svg
    assert "root (n=4)" in drawn["verdicts"].svg
    assert "depth 1" in drawn["granted"].svg


def test_success_on_held_out_tasks_looks_like_no_depth(tmp_path: Path) -> None:
    deep = {"success_by_depth": [0.5] * 5, "nodes_by_depth": [32] * 5, "eval_success": 0.25, "eval_trees": 32}
    five = pictures(tmp_path, **deep)["success"].svg
    shallow = pictures(tmp_path / "other", **deep | {"success_by_depth": [0.5] * 4})["success"].svg
    assert "var(--black)" in five
    assert "var(--grey)" in five
    assert "var(--black)" in shallow
    assert "var(--grey)" not in shallow


def test_updates_have_plots_of_what_was_logged(tmp_path: Path) -> None:
    update = {"entropy": 0.5, "grad_norm": 0.25, "learning_rate": 1e-5, "clip_fraction": 0.125, "kl": None}
    drawn = pictures(tmp_path, **update)
    assert list(drawn)[4:9] == ["entropy", "gradient-norm", "clipped", "learning-rate", "goals"]
    assert "all updates" in drawn["clipped"].svg
    assert "last update" not in drawn["clipped"].svg
    assert "kl" in pictures(tmp_path / "other", kl=0.01)


def test_a_run_without_trouble_has_no_plot_of_it(tmp_path: Path) -> None:
    calm = {"refusals": {"same_goal": 0.0}, "faults": 0.0, "stops": {"answered": 1.0, "window": 0.0}, "passed_on": 0.0}
    alone = {"nodes_by_verdict": {"exact": [2, 6], "root": [0, 0]}}
    assert not {"goals", "refusals", "stops", "verdicts"} & pictures(tmp_path, **calm, **alone).keys()


def test_a_curriculum_has_plots_of_its_levels(tmp_path: Path) -> None:
    levels = {"success_by_level": {"upto_2": 0.5, "upto_4": None}, "share_by_level": {"upto_2": 0.75, "upto_4": 0.25}}
    drawn = pictures(tmp_path, **levels)
    assert list(drawn)[-2:] == ["level-success", "level-share"]
    assert "upto_4" in drawn["level-share"].svg
    assert "upto_4" not in drawn["level-success"].svg  # never played
    assert "level-share" not in pictures(tmp_path / "other", success_by_level=3)


def test_success_by_size_is_drawn_in_the_order_of_sizes(tmp_path: Path) -> None:
    sizes = {"33-64": 0.25, "4": 0.5, "17-32": 0.5, "65-128": None}
    svg = pictures(tmp_path, success_by_size=sizes)["size-success"].svg
    assert svg.index(">17-32<") < svg.index(">33-64<")
    assert "65-128" not in svg  # no task of that size was played


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


# What steps cost.


def costly(number: int, *, trees: int, tokens: float, collect_s: float, **more: Any) -> dict[str, Any]:
    return step(number, trees=trees, tokens=tokens, collect_s=collect_s, learn_s=1.0, **more)


def test_costs_add_up_over_the_trees_of_all_steps() -> None:
    steps = [costly(0, trees=8, tokens=10.0, collect_s=2.0), costly(1, trees=4, tokens=20.0, collect_s=3.5)]
    assert cumulative_costs(steps, TOKENS) == {0.0: 80.0, 1.0: 160.0}
    assert cumulative_costs(steps, SECONDS) == {0.0: 3.0, 1.0: 7.5}


def test_a_step_that_was_repeated_after_a_resume_counts_once() -> None:
    killed = [costly(number, trees=1, tokens=10.0 + number, collect_s=1.0) for number in range(3)]
    again = [costly(number, trees=1, tokens=100.0, collect_s=2.0) for number in (1, 2, 3)]
    assert cumulative_costs([*killed, *again], TOKENS) == {0.0: 10.0, 1.0: 110.0, 2.0: 210.0, 3.0: 310.0}
    assert cumulative_costs([*killed, *again], SECONDS) == {0.0: 2.0, 1.0: 5.0, 2.0: 8.0, 3.0: 11.0}


def test_a_step_of_unknown_cost_ends_the_curve() -> None:
    steps = [costly(0, trees=1, tokens=10.0, collect_s=1.0), step(1), costly(2, trees=1, tokens=10.0, collect_s=1.0)]
    assert cumulative_costs(steps, SECONDS) == {0.0: 2.0}
    assert cumulative_costs([step(0)], TOKENS) == {}


def xs(axes: Any) -> list[list[float]]:
    return [list(line.get_xdata()) for line in axes.lines]


def overlaid(tmp_path: Path, **more: Any) -> dict[str, Picture]:
    clones = [costly(number, trees=2, tokens=500.0, collect_s=100.0, **more) for number in range(3)]
    single = [costly(number, trees=2, tokens=50.0, collect_s=10.0, **more) for number in range(3)]
    runs = [
        read_run(run_dir(tmp_path, name, kind="train", metrics=metrics))
        for name, metrics in (("clones", clones), ("single", single))
    ]
    with drawing():
        return {picture.name: picture for picture in overlaid_pictures(runs, name="")}


def test_two_runs_are_compared_by_step_by_token_and_by_second(tmp_path: Path) -> None:
    drawn = overlaid(tmp_path)
    assert list(drawn) == ["success", "success-by-tokens", "success-by-seconds", "delegated", "tokens"]
    axes = drawn["success-by-tokens"].figure.axes[0]
    assert xs(axes) == [[1000.0, 2000.0, 3000.0], [100.0, 200.0, 300.0]]
    assert axes.get_xlabel() == "generated tokens"
    axes = drawn["success-by-seconds"].figure.axes[0]
    assert xs(axes) == [[101.0, 202.0, 303.0], [11.0, 22.0, 33.0]]
    assert axes.get_xlabel() == "minutes"


def test_held_out_success_is_compared_too(tmp_path: Path) -> None:
    drawn = overlaid(tmp_path, eval_success=0.5)
    assert {"eval_success", "eval_success-by-tokens", "eval_success-by-seconds"} <= drawn.keys()


def test_a_single_run_has_its_success_by_cost(tmp_path: Path) -> None:
    drawn = pictures(tmp_path, trees=2, collect_s=1.0, learn_s=1.0)
    assert {"success-by-tokens", "success-by-seconds"} <= drawn.keys()
    assert "success-by-seconds" not in pictures(tmp_path / "older")


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (950, "950"), (80_000, "80k"), (1_500_000, "1.5M"), (2e9, "2G")])
def test_large_numbers_are_short(value: float, text: str) -> None:
    assert short_number(value) == text
