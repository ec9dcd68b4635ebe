"""When a run learnt to delegate: counted from its trees, in words and as a picture."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramet
from ramet.report.delegation import Counts, Delegation, SizeRow, delegation_by_size, size_ranges
from ramet.report.learnt import FELL, GREW, SAME, direction, learnt, settled
from ramet.report.lines import FEW as FEW_NODES
from ramet.report.lines import line_picture, make_line
from ramet.report.page import make_report, write_report
from ramet.report.read import read_run
from ramet.report.style import drawing
from ramet.report.viewer import export_file
from ramet.report.when import FEW, LOW, TALL, when_picture
from tests.report.page_parser import Page
from tests.report.samples import codes_run, record, run_dir, step, tree

LARGE, SMALL = "11????10", "1111110?"  # 16 codes and 2


def row(size: float, delegated: Sequence[int], *, trees: int = 20) -> SizeRow:
    by_step = {number: Counts(trees=trees, delegated=hits, right=trees) for number, hits in enumerate(delegated)}
    return SizeRow(low=size, high=size, by_step=by_step)


def delegation(*rows: SizeRow, unit: str = "codes") -> Delegation:
    return Delegation(steps=tuple(rows[0].by_step), rows=rows, unit=unit)


def test_trees_are_counted_by_size_and_step(tmp_path: Path) -> None:
    found = delegation_by_size(read_run(codes_run(tmp_path, {LARGE: (4, 10), SMALL: (5, 0)})))
    assert found is not None
    assert (found.unit, found.steps) == ("codes", (0, 1))
    assert [one.low for one in found.rows] == [2.0, 16.0]
    assert found.rows[1].by_step == {
        0: Counts(trees=10, delegated=4, right=4),
        1: Counts(trees=10, delegated=10, right=10),
    }
    assert found.first_and_last(found.rows[0])[1] == Counts(trees=10, delegated=0, right=0)


def test_a_run_without_stored_trees_is_counted_from_its_metrics(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"trees_by_size": {"2": 8, "17-32": 4}, "success_by_size": {"2": 1.0, "17-32": None}}
    later = sizes | {"delegated_by_size": {"2": 0.0, "17-32": 1.0}}
    first = sizes | {"delegated_by_size": {"2": 0.5, "17-32": 0.25}}
    path = run_dir(tmp_path, "training", kind="train", metrics=[step(0, **first), step(1, **later)])
    found = delegation_by_size(read_run(path))
    assert found is not None
    assert [one.label for one in found.rows] == ["2", "17-32"]
    assert found.rows[0].by_step[0] == Counts(trees=8, delegated=4, right=8)
    assert found.rows[1].by_step[1] == Counts(trees=4, delegated=4, right=0)


def test_a_run_whose_trees_are_partly_missing_is_counted_from_its_metrics(tmp_path: Path) -> None:
    path = codes_run(tmp_path, {LARGE: (4, 10)})  # trees of two steps
    metrics = [
        step(0, trees_by_size={"16": 5}, delegated_by_size={"16": 0.4}, success_by_size={"16": 0.2}),
        step(1, trees_by_size={"2": 5}, delegated_by_size={"2": 0.0}, success_by_size={"2": 1.0}),
        step(2, trees_by_size={"2": 5, "16": 5}, delegated_by_size={"2": 0.0, "16": 1.0}, success_by_size={}),
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in metrics))
    found = delegation_by_size(read_run(path))
    assert found is not None
    assert found.steps == (0, 1, 2)
    assert [one.label for one in found.rows] == ["2", "16"]
    # At both ends of a row are the first and the last step that have trees of its size.
    first, last = found.first_and_last(found.rows[0])
    assert (first.right, first.trees, last.trees) == (5, 5, 5)
    assert [one.delegated for one in found.first_and_last(found.rows[1])] == [2, 5]


def test_a_size_is_settled_from_a_step_on_that_has_such_trees() -> None:
    always = {step: Counts(trees=10, delegated=10) for step in (4, 5, 9)}
    found = Delegation(steps=tuple(range(10)), rows=(SizeRow(low=6, high=6, by_step=always),), unit="")
    assert settled(found, found.rows[0]) == 4  # not 2, whose neighbour it is


def test_there_is_no_picture_without_sizes_steps_or_delegation(tmp_path: Path) -> None:
    assert delegation_by_size(read_run(codes_run(tmp_path / "alone", {LARGE: (0, 0)}))) is None
    assert delegation_by_size(read_run(run_dir(tmp_path, "plain", kind="train", metrics=[step(0), step(1)]))) is None
    unknown = codes_run(tmp_path / "unknown", {LARGE: (1, 2)})
    (unknown / "config.toml").write_text('task = "no-such-taskset:train"\n')
    assert delegation_by_size(read_run(unknown)) is None


def test_the_sentence_says_which_sizes_and_from_which_step_on() -> None:
    large = row(16, [10] * 10 + [20] * 10)
    small = row(2, [10] * 10 + [0] * 10)
    # A step is counted with two neighbours on each side: at step index 11, 90 of 100 trees delegate.
    assert settled(delegation(small, large), large) == 11
    assert learnt(delegation(small, large)) == (
        "It learnt to delegate large tasks (16 codes: 50% → 100% of trees, from step 12 on) and to do small ones "
        "alone (2 codes: 50% → 0% of trees, from step 12 on)."
    )
    assert learnt(delegation(large, unit="")) == (
        "It learnt to delegate tasks of size 16 (50% → 100% of trees, from step 12 on)."
    )
    assert learnt(delegation(small)) == (
        "It learnt not to delegate tasks of 2 codes (50% → 0% of trees, from step 12 on)."
    )


def test_a_change_that_may_be_chance_is_not_learnt() -> None:
    few = delegation(row(2, [1, 3], trees=4))
    assert direction(few, few.rows[0]) == SAME
    assert learnt(few) == (
        "At no size did the share of trees that delegate change by 10% or more beyond chance "
        "(all sizes: 25%, then 75%)."
    )
    many = delegation(row(2, [100, 300], trees=400), row(4, [300, 100], trees=400))
    assert [direction(many, one) for one in many.rows] == [GREW, FELL]
    assert settled(many, many.rows[0]) is None  # 75% is neither always nor never


@given(st.lists(st.integers(1, 200), min_size=1, max_size=60))
def test_sizes_are_joined_to_ranges_that_hold_each_of_them_once(sizes: list[int]) -> None:
    ranges = size_ranges(Counter(sizes))
    assert len(ranges) <= 8
    assert all(sum(low <= size <= high for low, high in ranges) == 1 for size in sizes)


def test_ranges_of_sizes_hold_about_as_many_trees_whatever_their_number() -> None:
    assert size_ranges({1: 2, 2: 1, 3: 1, 4: 2}, most=3) == [(1, 1), (2, 3), (4, 4)]
    assert size_ranges({1: 0, 2: 5}) == [(2, 2)]
    assert size_ranges(dict.fromkeys(range(12), 10**18), most=4) == [(0, 2), (3, 5), (6, 8), (9, 11)]


def test_the_picture_has_every_size_with_its_number_and_low_cells_for_few_trees() -> None:
    known = delegation(row(2, [0] * FEW), row(4, [3] * FEW, trees=FEW - 1))
    with drawing():
        picture = when_picture(known, name="when")
    assert "n=160" in picture.svg  # 8 steps of 20 trees
    assert "Low cells have fewer than 8 trees." in picture.caption
    assert "4 codes" in picture.narrow
    heights = {
        round(float(path.vertices[2, 1] - path.vertices[0, 1]), 6)
        for patch in picture.figure.axes[0].patches
        for path in [patch.get_path()]
    }
    assert heights == {TALL, LOW}


def test_the_page_begins_with_it(tmp_path: Path) -> None:
    report = make_report([codes_run(tmp_path, {LARGE: (4, 30), SMALL: (15, 0)}, trees=30)])
    assert report.headline[0].startswith("It learnt to delegate large tasks (16 codes: 13% → 100% of trees")
    assert report.pictures[0].name == "when-to-delegate"
    assert report.html.index("It learnt to delegate") < report.html.index('class="lead')
    page = Page(report.html)
    assert len(set(page.ids)) == len(page.ids)


def test_a_second_run_has_its_picture_in_its_own_part(tmp_path: Path) -> None:
    runs = [codes_run(tmp_path / name, {LARGE: (1, 30)}, trees=30) for name in ("a", "b")]
    report = make_report(runs, names=["ours", "theirs"])
    assert report.headline[0].startswith("ours: It learnt")
    assert "theirs: It learnt" in report.html
    assert {"when-to-delegate", "theirs-when-to-delegate"} <= {picture.name for picture in report.pictures}


# Links into the viewer.


def fake_export(runs: Sequence[Path], trees: Sequence[str]) -> str:
    return f"{[run.name for run in runs]} {list(trees)}"


def test_drawn_trees_link_to_an_export_beside_the_page(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "my run", kind="run", trees=[tree("a/1"), tree("b", split=True)])
    into = tmp_path / "page"
    page = Page(write_report([run], into, export=fake_export).read_text(encoding="utf-8"))
    links = [link for link in page.links if link.startswith("trees-")]
    assert [link.partition("#")[2] for link in links] == [f"/run/{run.name}/tree/a%2F1", f"/run/{run.name}/tree/b"]
    file = into / export_file(read_run(run))
    assert file.read_text(encoding="utf-8") == f"['{run.name}'] ['a/1', 'b']"


def test_without_a_viewer_there_are_no_links(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "run", kind="run", trees=[tree("a")])
    page = Page(write_report([run], tmp_path / "page").read_text(encoding="utf-8"))
    assert not [link for link in page.links if link.startswith("trees-")]
    assert not list((tmp_path / "page").glob("trees-*"))


def test_a_right_answer_stands_beside_a_wrong_one(tmp_path: Path) -> None:
    items = [
        record("single", 500, 0, 0.0, answer="5"),
        record("clones", 500, 0, 1.0, answer="4"),
        record("single", 500, 1, 0.0, answer=None),
        record("clones", 500, 1, 0.0, answer="8"),
    ]
    page = Page(make_report([run_dir(tmp_path, "run", records=items)]).html)
    wrong = page.table("problem size small: 2 items, 0%")
    assert [line[:4] for line in wrong.rows[1:]] == [
        ["sums:eval/0", "0", "5", "4"],
        ["sums:eval/1", "0", "no answer", "not known"],
    ]
    apart = page.table("clones against single at 500 tokens")
    assert apart.rows[1][:5] == ["sums:eval/0", "1", "0", "4", "5"]


def test_the_reference_is_the_right_answer_if_no_method_found_it(tmp_path: Path) -> None:
    grown = tree("single-500-000", answer="5", score=0.0)
    grown.task = ramet.Task(question="2 + 2", id="sums:eval/0", reference={"answer": 4})
    run = run_dir(tmp_path, "run", records=[record("single", 500, 0, 0.0, answer="5")], trees=[grown])
    assert Page(make_report([run]).html).table("problem size small").rows[1][:4] == ["sums:eval/0", "0", "5", "4"]


@pytest.mark.parametrize("width", [1, 3])
def test_thin_points_are_pale_and_the_number_is_in_the_legend(tmp_path: Path, width: int) -> None:
    metrics = [{"step": number, "a": 0.5, "b": 0.5, "n": 100, "m": width} for number in range(4)]
    lines = [
        make_line(metrics, lambda record: record["a"], "many", 0, count=lambda record: record["n"]),
        make_line(metrics, lambda record: record["b"], "few", 1, count=lambda record: record["m"]),
    ]
    with drawing():
        picture = line_picture(lines, name="x", title="X", caption="")
    assert picture is not None
    assert "many (n=100)" in picture.svg
    assert f"few (n={width})" in picture.svg
    assert f"below {FEW_NODES}, lines are pale" in picture.caption
    alphas = {line.get_alpha() for line in picture.figure.axes[0].lines}
    assert alphas == {None, 0.4}
