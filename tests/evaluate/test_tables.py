"""Tables: every number worked out by hand from records made by hand."""

from __future__ import annotations

import pytest

from ramet.evaluate.record import Record
from ramet.evaluate.statistics import Difference
from ramet.evaluate.tables import Cell, areas_of, cells_of, comparisons_of, section_of, sections_of
from ramet.evaluate.text import as_text, said
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


def cell(method: str, budget: int) -> Cell:
    (found,) = [one for one in cells_of(RECORDS) if (one.method, one.budget) == (method, budget)]
    return found


def test_a_cell_averages_its_items() -> None:
    found = cell("clones", 200)
    assert (found.items, found.accuracy.value, found.generated.value, found.nodes) == (10, 0.9, 140.0, 5.0)
    assert (found.delegated, found.concurrent, found.dollars) == (1.0, 1.0, None)
    assert cell("single", 100).concurrent is None


def test_the_front_goes_over_all_methods_but_oracles() -> None:
    # 50 tokens: 40 %; 60: 30 %, beaten; 140: 90 %; 150: 50 %, beaten. The oracle at 10 tokens would beat all.
    assert [(one.method, one.budget) for one in cells_of(RECORDS) if one.front] == [("single", 100), ("clones", 200)]
    assert cell("best@4", 200).oracle


def test_who_got_nothing_right_is_on_no_front() -> None:
    assert [one.front for one in cells_of([*ten("single", 0, generated=1), *ten("clones", 1)])] == [False, True]


@pytest.mark.parametrize("width", [200, 100, 80, 60])
def test_a_narrow_terminal_loses_columns_and_never_digits(width: int) -> None:
    lines = as_text([section_of(RECORDS, title="")], width=width).splitlines()
    assert all(len(line) <= width for line in lines)
    (row,) = [line for line in lines if line.startswith("clones ") and " 200 " in line and "90%" in line]
    assert "90% [60, 98]" in row
    assert " 140" in row
    assert "…" not in row


def test_partly_right_is_not_right() -> None:
    (found,) = cells_of([record("single", "a", 0.5), record("single", "b", 1.0)])
    assert (found.accuracy.value, found.score.value) == (0.5, 0.75)


def test_methods_are_compared_with_single_at_each_budget() -> None:
    found = {(one.method, one.budget): one.difference for one in comparisons_of(RECORDS)}
    assert set(found) == {("clones", 100), ("clones", 200), ("best@4", 200)}
    assert found["clones", 100].value == pytest.approx(-0.1)
    assert found["clones", 200].value == pytest.approx(0.4)
    # Four items of ten differ, all one way: too few to tell, whatever the interval says.
    assert (found["clones", 200].low > 0, found["clones", 200].told_apart) == (True, False)


def test_without_single_the_first_method_is_what_others_are_compared_with() -> None:
    (found,) = comparisons_of([*ten("vote@2", 2), *ten("clones", 3)])
    assert (found.method, found.against) == ("clones", "vote@2")


def test_an_area_is_a_share_of_all_that_could_be_had() -> None:
    # Up to 200 tokens: nothing below 60, 30 % up to 140, 90 % from there.
    areas = {one.method: one for one in areas_of(RECORDS)}
    assert set(areas) == {"single", "clones"}
    assert areas["clones"].reference == 200
    assert areas["clones"].share.value == pytest.approx((0.3 * 80 + 0.9 * 60) / 200)


def test_parts_by_size_say_which_are_beyond() -> None:
    records = [
        *[record("single", f"a{i}", 1.0, bucket="12", size=12.0, beyond=True) for i in range(3)],
        *[record("single", f"b{i}", 0.0, bucket="3", size=3.0) for i in range(2)],
    ]
    section = section_of(records, title="")
    assert [(one.bucket, one.items, one.accuracy.value, one.beyond) for one in section.buckets] == [
        ("3", 2, 0.0, 0.0),
        ("12", 3, 1.0, 1.0),
    ]
    (whole,) = section.cells
    assert whole.beyond == pytest.approx(0.6)
    text = as_text([section], width=120)
    assert "60% of the items are beyond what was trained on" in text
    assert [line.split()[0] for line in text.splitlines() if line.rstrip().endswith("beyond")] == ["12"]


def test_several_splits_have_a_section_each() -> None:
    records = [record("single", "a", 1.0, bucket="x:y"), record("single", "b", 0.0, bucket="z:w")]
    first, second = sections_of(records, splits=["x:y", "z:w", "not:done"])
    assert (first.title, first.cells[0].accuracy.value, first.buckets) == ("x:y", 1.0, [])
    assert (second.title, second.cells[0].accuracy.value) == ("z:w", 0.0)


def test_an_oracle_is_marked_wherever_it_is_shown() -> None:
    text = as_text([section_of(RECORDS, title="")], width=160)
    shown = [line for line in text.splitlines() if "best@4" in line]
    assert len(shown) == 2
    assert all("best@4 (oracle)" in line for line in shown)


@pytest.mark.parametrize(
    ("gap", "words"),
    [
        (Difference(0.2, 0.1, 0.3, 90, 30, None), "better"),
        (Difference(-0.2, -0.3, -0.1, 90, 30, None), "worse"),
        (Difference(0.1, -0.1, 0.3, 20, 8, 1234), "cannot tell: about 1,234 items would be needed"),
        (Difference(0.0, 0.0, 0.0, 20, 0, None), "cannot tell: no difference seen"),
    ],
)
def test_a_comparison_in_words(gap: Difference, words: str) -> None:
    assert said(gap) == words
