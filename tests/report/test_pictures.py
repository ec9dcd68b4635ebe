"""What pictures show: fronts, sizes, running means, and the chain of work that made a tree take so long."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.evaluate.costs import critical_path
from ramet.report.curves import running_mean
from ramet.report.differences import gaps_picture
from ramet.report.numbers import compare
from ramet.report.plots import MOST_POINTS, grouped
from ramet.report.read import read_run
from ramet.report.style import drawing
from ramet.report.timeline import bars, critical_nodes, timeline
from ramet.types import Turn
from tests.report.made import Path, record, records, run_dir, tree


def test_the_critical_path_goes_through_the_clone_that_took_longest() -> None:
    grown = tree("t", split=True)
    assert critical_nodes(grown) == {0, 2}
    assert critical_path(grown) == 10 + 30 + 5


def test_clones_that_followed_one_another_are_all_on_the_critical_path() -> None:
    grown = tree("t", split=True)
    grown.nodes[1].started_s, grown.nodes[1].ended_s = 1.0, 2.0
    grown.nodes[2].started_s, grown.nodes[2].ended_s = 2.5, 4.0
    assert critical_nodes(grown) == {0, 1, 2}
    assert critical_path(grown) == 10 + 20 + 30 + 5


def test_bars_are_in_seconds_where_time_passed() -> None:
    found, clock = bars(tree("t", split=True))
    assert clock == "seconds"
    assert [(bar.start, bar.end, bar.writing) for bar in found] == [
        (0.0, 4.5, ((0.0, 1.0), (4.0, 4.5))),
        (1.0, 3.0, ((1.0, 3.0),)),
        (1.0, 4.0, ((1.0, 4.0),)),
    ]


def test_bars_are_in_tokens_where_no_time_passed() -> None:
    grown = tree("t", split=True)
    for node in grown.nodes:
        node.started_s = node.ended_s = 0.0
    found, clock = bars(grown)
    assert clock == "tokens"
    assert [(bar.start, bar.end) for bar in found] == [(0.0, 45.0), (10.0, 30.0), (10.0, 40.0)]
    assert found[0].writing == ((0.0, 10.0), (40.0, 45.0))
    assert max(bar.end for bar in found) == critical_path(grown)


def test_a_timeline_names_goals_and_says_how_to_read_it() -> None:
    grown = tree("t", question="Compare $this$ with <that>", split=True)
    with drawing():
        drawn = timeline(grown, name="t")
    assert "Compare $this$ with &lt;that&gt;" in drawn.svg
    assert "45 of 65 tokens" in drawn.caption


def test_a_tree_that_was_cut_off_still_has_a_timeline() -> None:
    grown = tree("t", split=True)
    grown.nodes[2].ended_s = None
    grown.nodes[2].turns = [Turn(tokens=3, finish="length", started_s=1.0, sampled_s=2.0)]
    found, _ = bars(grown)
    assert found[2].end == grown.seconds


def test_means_by_size() -> None:
    found = [record("clones", 9, number, 1.0, size=size, depth=depth) for number, (size, depth) in enumerate(
        [(1.0, 0), (1.0, 2), (4.0, 3)])]  # fmt: skip
    assert grouped(found, lambda one: one.depth) == [(1.0, 1.0), (4.0, 3.0)]


@given(st.lists(st.integers(min_value=0, max_value=60), min_size=1, max_size=80))
def test_many_sizes_are_put_together_and_no_item_is_lost(sizes: list[int]) -> None:
    found = [record("clones", 9, number, 1.0, size=float(size)) for number, size in enumerate(sizes)]
    points = grouped(found, lambda one: 1.0)
    assert 1 <= len(points) <= MOST_POINTS
    assert points == sorted(points)
    assert all(value == pytest.approx(1.0) for _, value in points)


def test_a_running_mean_reaches_as_far_to_both_sides() -> None:
    assert running_mean([0.0, 3.0, 6.0, 0.0], 1) == [0.0, 3.0, 3.0, 0.0]
    assert running_mean([1.0, 2.0, 3.0], 5) == [1.0, 2.0, 3.0]


def test_differences_are_drawn_with_the_line_they_are_measured_from(tmp_path: Path) -> None:
    found = records("single", 100, "0" * 10) + records("clones", 100, "1" * 10) + records("best@4", 100, "1" * 10)
    run = read_run(run_dir(tmp_path, "one", records=found))
    worse = records("single", 100, "0" * 10) + records("clones", 100, "0" * 10)
    other = read_run(run_dir(tmp_path, "two", records=worse))
    with drawing():
        methods = gaps_picture(compare([run]), name="methods")
        runs = gaps_picture(compare([run, other]), name="runs")
        alone = gaps_picture(compare([replace(run, records=tuple(found[:10]))]), name="alone")
    assert methods is not None
    assert "clones − single, 100" in methods.svg
    assert "best@4" not in methods.svg
    assert runs is not None
    assert "clones, two, 100" in runs.svg
    assert "minus the same in one" in runs.caption
    assert alone is None


def test_the_front_leaves_out_what_is_dearer_and_no_better(tmp_path: Path) -> None:
    found = [
        *records("single", 100, "1000", generated=50, critical_path=50),
        *records("vote@4", 100, "1000", generated=90, critical_path=20),
        *records("clones", 100, "1111", generated=80, critical_path=60),
        *records("best@4", 100, "1111", generated=10, critical_path=10),
    ]
    cells = compare([read_run(run_dir(tmp_path, "front", records=found))]).cells
    assert {cell.method for cell in cells if cell.front} == {"single", "clones"}
    assert {cell.method for cell in cells if cell.front_critical} == {"vote@4", "clones"}
