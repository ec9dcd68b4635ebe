"""Results of SQL queries as tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

import ramet
from ramet.terminal.console import make_console
from ramet.terminal.query import MAX_WRAPPED, Rows, fit, print_long_table, print_query, print_records, print_table

ROWS: Rows = [(1, "short", None), (20, "日本語", 0.5), (300, "two  words", ""), (4, "ü" * 9, True)]
Print = Callable[[Sequence[str], Rows, Console], None]


def lines(printing: Print, rows: Rows, *, width: int) -> list[str]:
    text = StringIO()
    printing(["number", "text", "x"], rows, make_console(file=text, width=width))
    return text.getvalue().splitlines()


def test_a_long_table_that_fits_looks_like_a_short_one() -> None:
    assert lines(print_long_table, ROWS, width=80) == lines(print_table, ROWS, width=80)


def test_a_long_table_has_one_line_per_row_that_fits_the_terminal() -> None:
    rows = [(place, f"line {place}\n" * 20 + "日本語" * 20, "y" * place) for place in range(60)]
    printed = lines(print_long_table, rows, width=50)
    assert {cell_len(line) for line in printed} == {50}
    assert len(printed) == len(rows) + 4  # the frame and the names


def test_a_long_table_prints_no_control_characters() -> None:
    assert any("\\x1b[2J" in line for line in lines(print_long_table, [(1, "a\x1b[2J", "")], width=80))


def test_many_rows_are_printed_as_a_long_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ramet.RunDir.create(tmp_path, "rows")
    print_query(run.path, f"select range as number, repeat('x', 30) as text from range({2 * MAX_WRAPPED + 7})")
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in printed[3:-1]] == [str(number) for number in range(2 * MAX_WRAPPED + 7)]


def test_many_columns_without_a_row_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    print_records(["tree", "node"], [])
    assert capsys.readouterr().out == "no rows; columns: tree, node\n"


def test_columns_share_the_room_that_narrow_ones_leave() -> None:
    assert fit([3, 20, 40], room=30) == [3, 13, 13]
    assert fit([3, 20, 40], room=63) == [3, 20, 40]
    assert fit([3, 3], room=1) == [1, 1]


def test_columns_with_the_same_name_stay_apart_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ramet.RunDir.create(tmp_path, "run")
    print_query(run.path, "select 1 as a, 2 as a, map{date '2020-01-01': 'nan'::double} as m", as_json=True)
    assert json.loads(capsys.readouterr().out) == [{"a": 1, "a_2": 2, "m": {"2020-01-01": None}}]


def test_a_fraction_has_six_digits_for_people_and_all_of_them_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ramet.RunDir.create(tmp_path, "run")
    query = "select 0.1::double + 0.2::double as a, 2.0::double as b, 123456789.5::double as c"
    print_query(run.path, query)
    assert "│ 0.3 │ 2.0 │ 123456789.5 │" in capsys.readouterr().out
    print_query(run.path, query, as_json=True)
    assert json.loads(capsys.readouterr().out) == [{"a": 0.1 + 0.2, "b": 2.0, "c": 123456789.5}]
