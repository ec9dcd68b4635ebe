"""Plots: fronts, sizes, running means, timelines."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.evaluate.cells import on_front
from ramet.evaluate.costs import critical_path
from ramet.evaluate.tables import Section, make_section
from ramet.report.differences import difference_picture
from ramet.report.lines import running_mean
from ramet.report.plots import MAX_POINTS, evaluation_pictures, mean_by_size, series_looks
from ramet.report.read import Run, read_run
from ramet.report.style import canvas, drawing
from ramet.report.timeline import node_bars, timeline
from ramet.types import Turn
from tests.report.samples import Path, record, records, run_dir, tree


def compare(*runs: Run) -> Section:
    return make_section({run.name: run.records for run in runs})


def test_the_timeline_marks_the_longest_clone_as_critical() -> None:
    bars, _ = node_bars(tree("t", split=True))
    assert [bar.critical for bar in bars] == [True, False, True]


def test_clones_that_ran_one_after_the_other_are_all_critical() -> None:
    grown = tree("t", split=True)
    grown.nodes[1].started_s, grown.nodes[1].ended_s = 1.0, 2.0
    grown.nodes[2].started_s, grown.nodes[2].ended_s = 2.5, 4.0
    assert [bar.critical for bar in node_bars(grown)[0]] == [True, True, True]
    assert critical_path(grown).tokens == 10 + 20 + 30 + 5


def test_bars_are_in_seconds_if_time_passed() -> None:
    bars, unit = node_bars(tree("t", split=True))
    assert unit == "seconds"
    assert [(bar.start, bar.end, bar.generating) for bar in bars] == [
        (0.0, 4.5, ((0.0, 1.0), (4.0, 4.5))),
        (1.0, 3.0, ((1.0, 3.0),)),
        (1.0, 4.0, ((1.0, 4.0),)),
    ]


def test_bars_are_in_tokens_if_no_time_passed() -> None:
    grown = tree("t", split=True)
    for node in grown.nodes:
        node.started_s = node.ended_s = 0.0
    bars, unit = node_bars(grown)
    assert unit == "tokens"
    assert [(bar.start, bar.end) for bar in bars] == [(0.0, 45.0), (10.0, 30.0), (10.0, 40.0)]
    assert bars[0].generating == ((0.0, 10.0), (40.0, 45.0))
    assert max(bar.end for bar in bars) == critical_path(grown).tokens


def test_a_timeline_shows_goals_and_its_critical_path() -> None:
    grown = tree("t", question="Compare $this$ with <that>", split=True)
    with drawing():
        drawn = timeline(grown, name="t")
    assert "Compare $this$ with &lt;that&gt;" in drawn.svg
    assert "45 of 65 tokens" in drawn.caption


def test_an_interrupted_tree_has_a_timeline() -> None:
    grown = tree("t", split=True)
    grown.nodes[2].ended_s = None
    grown.nodes[2].turns = [Turn(tokens=3, finish="length", started_s=1.0, sampled_s=2.0)]
    bars, _ = node_bars(grown)
    assert bars[2].end == grown.seconds


def test_the_axis_of_depths_begins_at_the_root(tmp_path: Path) -> None:
    items = [record("clones", 9, number, 1.0, size=float(number % 2), depth=0) for number in range(20)]
    section = compare(read_run(run_dir(tmp_path, "run", records=items)))
    with drawing():
        drawn = {picture.title: picture.svg for picture in evaluation_pictures(section, name="")}
    assert "\N{MINUS SIGN}0" not in drawn["Depth by problem size"]
    assert ">1.0<" in drawn["Depth by problem size"]


def test_traits_are_averaged_by_size() -> None:
    items = [record("clones", 9, number, 1.0, size=size, depth=depth) for number, (size, depth) in enumerate(
        [(1.0, 0), (1.0, 2), (4.0, 3)])]  # fmt: skip
    assert mean_by_size(items, lambda one: one.depth) == [(1.0, 1.0, 2), (4.0, 3.0, 1)]


@given(st.lists(st.integers(min_value=0, max_value=60), min_size=1, max_size=80))
def test_many_sizes_are_merged_and_no_item_is_lost(sizes: list[int]) -> None:
    items = [record("clones", 9, number, 1.0, size=float(size)) for number, size in enumerate(sizes)]
    points = mean_by_size(items, lambda one: 1.0)
    assert 1 <= len(points) <= MAX_POINTS
    assert points == sorted(points)
    assert all(value == pytest.approx(1.0) for _, value, _ in points)
    assert sum(number for *_, number in points) == len(sizes)


def test_a_running_mean_is_symmetric() -> None:
    assert running_mean([0.0, 3.0, 6.0, 0.0], 1) == [0.0, 3.0, 3.0, 0.0]
    assert running_mean([1.0, 2.0, 3.0], 5) == [1.0, 2.0, 3.0]


def test_the_plot_of_differences_names_what_is_compared(tmp_path: Path) -> None:
    items = records("single", 100, "0" * 10) + records("clones", 100, "1" * 10) + records("best@4", 100, "1" * 10)
    run = read_run(run_dir(tmp_path, "one", records=items))
    worse = records("single", 100, "0" * 10) + records("clones", 100, "0" * 10)
    other = read_run(run_dir(tmp_path, "two", records=worse))
    with drawing():
        methods = difference_picture(compare(run), name="methods")
        runs = difference_picture(compare(run, other), name="runs")
        alone = difference_picture(compare(replace(run, records=tuple(items[:10]))), name="alone")
    assert methods is not None
    assert "clones − single, 100" in methods.svg
    assert "best@4" not in methods.svg
    assert runs is not None
    assert "clones, two, 100" in runs.svg
    assert "minus the same in one" in runs.caption
    assert alone is None


def test_long_names_in_the_plot_of_differences_leave_room_for_it(tmp_path: Path) -> None:
    items = records("single", 100, "0" * 10) + records("clones", 100, "1" * 10)
    named = [
        replace(read_run(run_dir(tmp_path, name, records=items[part])), name=f"{name}-after-40-more-steps")
        for name, part in (("with-clones", slice(10, 20)), ("without-them", slice(10)))
    ]
    with drawing(), warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns where labels take all of the width
        drawn = difference_picture(compare(*named), name="runs")
    assert drawn is not None
    assert "(n=10, 10 differ)" in drawn.svg


def test_cells_that_cost_more_and_are_no_better_are_not_on_the_front(tmp_path: Path) -> None:
    items = [
        *records("single", 100, "1000", generated=50, critical_path=50),
        *records("vote@4", 100, "1000", generated=90, critical_path=20),
        *records("clones", 100, "1111", generated=80, critical_path=60),
        *records("best@4", 100, "1111", generated=10, critical_path=10),
    ]
    cells = compare(read_run(run_dir(tmp_path, "front", records=items))).cells
    assert {cell.method for cell in cells if cell.front} == {"single", "clones"}
    assert {cell.method for cell in cells if cell.front_critical_path} == {"vote@4", "clones"}


def test_where_methods_read_ten_times_what_they_generate_reading_is_a_cost_of_its_own(tmp_path: Path) -> None:
    short = records("single", 100, "1000", generated=50, prompt=500)
    long = records("clones", 100, "1111", generated=80, prompt=400)
    sections = [
        compare(read_run(run_dir(tmp_path, name, records=items))) for name, items in (("one", short), ("two", long))
    ]
    longer = compare(
        read_run(run_dir(tmp_path, "three", records=records("single", 100, "1000", generated=50, prompt=501) + long))
    )
    with drawing():
        names = [{picture.name for picture in evaluation_pictures(section, name="")} for section in [*sections, longer]]
    assert [sorted(name for name in own if "processed" in name) for own in names] == [[], [], ["accuracy-processed"]]
    assert [cell.processed for cell in longer.cells] == [551, 480]
    assert on_front(longer.cells, lambda cell: cell.processed) == {("three", "clones", 100)}
    assert on_front(longer.cells, lambda cell: cell.generated) == {("three", "single", 100), ("three", "clones", 100)}


def test_markers_distinguish_four_runs_where_there_are_no_lines() -> None:
    section = make_section({f"run {number}": records("clones", 100, "1100") for number in range(4)})
    drawn = [look.line() for look in series_looks(section).values()]
    assert len({(line.get("fillstyle"), line["markerfacecolor"]) for line in drawn}) == 4
    with drawing():
        figure, axes = canvas()
        for place, line in enumerate(drawn):
            axes.plot([place], [1], **line)
        figure.canvas.draw()
