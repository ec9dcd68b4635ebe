"""Tables of records made by hand. Expected numbers are worked out by hand."""

from __future__ import annotations

import io
from collections.abc import Sequence
from operator import itemgetter

import pytest
from rich.console import Console

from ramet.evaluate.cells import Cell, make_cells
from ramet.evaluate.format import points
from ramet.evaluate.record import Record
from ramet.evaluate.tables import Section, cell_facts, make_section, make_sections, section_facts
from ramet.evaluate.text import Column, as_text, fitted_table
from tests.evaluate.trees import record


def ten(method: str, right: int, **more: object) -> list[Record]:
    """Ten items, the first ones right."""
    return [record(method, f"t{i}", float(i < right), **more) for i in range(10)]


RECORDS = [
    *ten("single", 4, budget=100, generated=50),
    *ten("single", 5, budget=200, generated=150),
    *ten("clones", 3, budget=100, generated=60, nodes=3, delegated=True, concurrent=0.5),
    *ten("clones", 9, budget=200, generated=140, nodes=5, delegated=True, concurrent=1.0),
    *ten("best@4", 10, budget=200, generated=10, nodes=4),
]


def section(records: Sequence[Record] = RECORDS) -> Section:
    return make_section({"": records})


def cell(method: str, budget: int) -> Cell:
    (found,) = [one for one in section().cells if (one.method, one.budget) == (method, budget)]
    return found


def test_a_cell_averages_its_items() -> None:
    found = cell("clones", 200)
    assert (found.items, found.accuracy.value, found.generated) == (10, 0.9, 140.0)
    assert cell_facts(found)["nodes"] == 5.0
    assert (found.delegated, found.concurrent, found.dollars) == (1.0, 1.0, None)
    assert cell("single", 100).concurrent is None


def test_the_front_leaves_out_oracles() -> None:
    # 50 tokens: 40%; 60: 30%, beaten; 140: 90%; 150: 50%, beaten. The oracle at 10 tokens would beat all.
    assert [(one.method, one.budget) for one in section().cells if one.front] == [("single", 100), ("clones", 200)]
    assert cell("best@4", 200).oracle


def test_a_cell_with_nothing_right_is_on_no_front() -> None:
    cells = make_cells({"": [*ten("single", 0, generated=1), *ten("clones", 1)]})
    assert [one.front for one in cells] == [False, True]


@pytest.mark.parametrize("width", [200, 100, 80, 60])
def test_a_narrow_terminal_drops_columns_and_never_digits(width: int) -> None:
    lines = as_text([section()], width=width).splitlines()
    assert all(len(line) <= width for line in lines)
    (row,) = [line for line in lines if line.startswith("clones ") and " 200 " in line and "90%" in line]
    assert "90% [60, 98]" in row
    assert " 140" in row
    assert "…" not in row


def test_at_40_columns_words_are_wrapped_and_no_number_is_cut() -> None:
    text = as_text([section()], width=40)
    assert "…" not in text
    assert "90% [60, 98]" in text
    assert all(points(one.difference) in text for one in section().baseline_comparisons)


@pytest.mark.parametrize(
    ("width", "dropped"),
    [(200, []), (80, []), (59, []), (58, ["path"]), (51, ["path", "budget"]), (40, ["path", "budget"])],
)
def test_a_table_that_is_too_wide_drops_columns_then_wraps_words(width: int, dropped: list[str]) -> None:
    # 10 + 5 + 12 + 5 columns and at least 16 of the verdict, with 2 spaces after each, are 59.
    verdict = "cannot tell: about 1,240 items needed"
    cells = {"part": "arithmetic", "budget": "4,000", "clones − single": "+5 [-2, +11]", "path": "0.80×", "": verdict}
    columns: list[Column[dict[str, str]]] = [(name, itemgetter(name)) for name in cells]
    spare, words = ("path", "budget"), ("part", "")
    sink = io.StringIO()
    console = Console(file=sink, width=width, highlight=False)
    console.print(fitted_table(columns, [cells, cells], spare=spare, width=width, words=words))
    text = sink.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    for name, cell in cells.items():
        parts = cell.split() if name in words else [cell]
        assert all((part in text) == (name not in dropped) for part in parts)


def test_partly_right_is_not_right() -> None:
    (found,) = make_cells({"": [record("single", "a", 0.5), record("single", "b", 1.0)]})
    assert (found.accuracy.value, found.score, found.partly_right) == (0.5, 0.75, True)


def test_methods_are_compared_with_single_at_each_budget() -> None:
    found = {one.cell[1:]: one.difference for one in section().baseline_comparisons}
    assert set(found) == {("clones", 100), ("clones", 200), ("best@4", 200)}
    assert found["clones", 100].value == pytest.approx(-0.1)
    assert found["clones", 200].value == pytest.approx(0.4)
    # Four items of ten differ, all in one direction: too few, even though the interval excludes 0.
    assert (found["clones", 200].low > 0, found["clones", 200].significant) == (True, False)


def test_without_single_methods_are_compared_with_the_first() -> None:
    (found,) = section([*ten("vote@2", 2), *ten("clones", 3)]).baseline_comparisons
    assert (found.cell[1], found.other[1]) == ("clones", "vote@2")


def test_the_area_is_the_mean_accuracy_over_all_costs() -> None:
    # Up to 200 tokens: nothing below 60, 30% up to 140, 90% from there.
    areas = {one.method: one for one in section().areas}
    assert set(areas) == {"single", "clones"}
    assert areas["clones"].reference == 200
    assert areas["clones"].share.value == pytest.approx((0.3 * 80 + 0.9 * 60) / 200)


def test_buckets_beyond_training_are_marked() -> None:
    records = [
        *[record("single", f"a{i}", 1.0, bucket="12", size=12.0, beyond=True) for i in range(3)],
        *[record("single", f"b{i}", 0.0, bucket="3", size=3.0) for i in range(2)],
    ]
    sized = section(records)
    assert [(one.bucket, one.items, one.accuracy.value, one.beyond) for one in sized.bucket_cells()] == [
        ("3", 2, 0.0, 0.0),
        ("12", 3, 1.0, 1.0),
    ]
    (whole,) = sized.cells
    assert whole.beyond == pytest.approx(0.6)
    text = as_text([sized], width=120)
    assert "60% of the items are beyond training" in text
    rows = [line for line in text.splitlines() if line.startswith(("3 ", "12 "))]
    assert [line.rstrip().endswith("beyond training") for line in rows] == [False, True]


def test_several_splits_have_a_section_each() -> None:
    records = [record("single", "a", 1.0, bucket="x:y"), record("single", "b", 0.0, bucket="z:w")]
    first, second = make_sections(records, splits=["x:y", "z:w", "not:done"])
    assert (first.title, first.cells[0].accuracy.value, first.bucket_cells()) == ("x:y", 1.0, [])
    assert (second.title, second.cells[0].accuracy.value) == ("z:w", 0.0)


def test_an_oracle_is_marked_in_every_table() -> None:
    text = as_text([section()], width=160)
    shown = [line for line in text.splitlines() if "best@4" in line]
    assert len(shown) == 2
    assert all("best@4 (oracle)" in line for line in shown)


def test_facts_have_intervals_and_no_records() -> None:
    facts = section_facts(section())
    assert [(one["method"], one["budget"]) for one in facts["cells"][:2]] == [("single", 100), ("single", 200)]
    assert facts["cells"][0]["generated"] == {"value": 50.0, "low": 50.0, "high": 50.0}
    assert "records" not in facts["cells"][0]
    assert [(one["budget"], one["method"], one["against"]) for one in facts["comparisons"]] == [
        (100, "clones", "single"),
        (200, "clones", "single"),
        (200, "best@4", "single"),
    ]
    assert [one["method"] for one in facts["areas"]] == ["single", "clones"]


def test_clones_are_also_compared_with_votes_and_within_and_beyond_training() -> None:
    records = [
        record(method, f"t{i}", float(method == "clones" and i >= 10), beyond=i >= 10)
        for method in ("single", "vote@2", "clones")
        for i in range(20)
    ]
    found = {(one.cell[1], one.other[1], one.part): one.difference.value for one in section(records).method_comparisons}
    assert found["clones", "vote@2", "all items"] == 0.5
    assert found["clones", "single", "within training"] == 0.0
    assert found["clones", "single", "beyond training"] == 1.0
    assert len(found) == 3 * 3
