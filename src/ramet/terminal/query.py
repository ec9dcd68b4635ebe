"""Print the result of a SQL query: as a table, as one line per value, or as JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import cast

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ramet.draw import counted, one_line
from ramet.store import RunDir, query
from ramet.terminal.console import out, print_json, table_console, warn
from ramet.train.stored_credit import credit_table
from ramet.types import printable

READABLE = 8  # characters: a column of a table is not narrower, unless its name is
MAX_RECORDS, LONG_VALUE = 20, 1000  # rows of a query that are printed value by value; characters too long for a table
MAX_WRAPPED = 500  # rows: Rich needs half a millisecond for each, and prints nothing before it has seen all of them
CHUNK = 1000  # rows of a long table that are written at a time
READS_CREDIT = re.compile(r"(?:\bfrom|\bjoin|,)\s+credit\b", re.IGNORECASE)

Rows = Sequence[Sequence[object]]


def print_query(path: Path, sql: str, *, as_json: bool = False) -> None:
    """Print the rows that a SQL query returns."""
    run = RunDir.open(path)
    tables = {"credit": credit_table(run, warn)} if READS_CREDIT.search(sql) else None
    names, rows = query(run, sql, on_problem=warn, tables=tables)
    if as_json:
        keys = _unique(names)
        return print_json([dict(zip(keys, map(_as_json, row), strict=True)) for row in rows])
    console = table_console()
    wide = sum(min(len(name), READABLE) + 3 for name in names) > console.width
    if wide or any(len(str(value)) > LONG_VALUE for row in rows for value in row):
        return print_records(names, rows)
    if len(rows) > MAX_WRAPPED:
        return print_long_table(names, rows, console)
    return print_table(names, rows, console)


def _unique(names: Sequence[str]) -> list[str]:
    """Names of columns of which each occurs once.

    Example:
        _unique(["a", "b", "a"])  # ["a", "b", "a_2"]
    """
    unique: list[str] = []
    for name in names:
        free = (name if number == 1 else f"{name}_{number}" for number in count(1))
        unique.append(next(one for one in free if one not in unique))
    return unique


def _as_json(value: object) -> object:
    """A value that JSON has: keys of maps are texts, and a float that is no finite number is null."""
    if isinstance(value, dict):
        return {str(key): _as_json(inner) for key, inner in cast(dict[object, object], value).items()}
    if isinstance(value, list | tuple):
        return [_as_json(inner) for inner in cast(Sequence[object], value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_records(names: Sequence[str], rows: Rows) -> None:
    """Rows with more columns than fit beside each other: a line for each value."""
    if not rows:
        return out.print(f"no rows; columns: {', '.join(names)}")
    longest = max(map(len, names))
    for number, row in enumerate(rows[:MAX_RECORDS], start=1):
        out.rule(f"row {number:,} of {len(rows):,}", align="left")
        for name, value in zip(names, row, strict=True):
            text = one_line(_text(value)[:LONG_VALUE], max(20, out.width - longest - 2))
            out.print(Text.assemble((f"{name:<{longest}}  ", "dim"), text))
    hidden = len(rows) - MAX_RECORDS
    if hidden > 0:
        out.print(f"… and {counted(hidden, 'more row')}", style="dim")
    return out.print("Long values are cut: name fewer columns, or give --json.", style="dim")


def print_table(names: Sequence[str], rows: Rows, console: Console) -> None:
    """A table in which long values are wrapped."""
    table = Table(*names)
    for row in rows:
        table.add_row(*map(_text, row))
    console.print(table)


def print_long_table(names: Sequence[str], rows: Rows, console: Console) -> None:
    """The same table with one line per row, for many rows: where it is too wide, values are cut instead of wrapped."""
    cells = [[_cell(value) for value in row] for row in rows]
    head = [_cell(name) for name in names]
    natural = [max(map(cell_len, column)) for column in zip(head, *cells, strict=True)]
    widths = fit(natural, room=console.width - 3 * len(names) - 1)
    lines = _table_lines(head, cells, widths, console)
    while chunk := list(islice(lines, CHUNK)):
        console.file.write("\n".join(chunk) + "\n")


def _table_lines(
    head: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int], console: Console
) -> Iterator[str]:
    frame = box.HEAVY_HEAD.substitute(console.options)
    padded = [width + 2 for width in widths]
    yield frame.get_top(padded)
    yield _line(head, widths, frame.head_left, frame.head_vertical, frame.head_right)
    yield frame.get_row(padded, "head")
    for row in cells:
        yield _line(row, widths, frame.mid_left, frame.mid_vertical, frame.mid_right)
    yield frame.get_bottom(padded)


def _line(texts: Sequence[str], widths: Sequence[int], left: str, between: str, right: str) -> str:
    shown = (_sized(text, width) for text, width in zip(texts, widths, strict=True))
    return f"{left} {f' {between} '.join(shown)} {right}"


def _text(value: object) -> str:
    """A value for people: a fraction has six digits, and what is missing is empty.

    Example:
        _text(0.1 + 0.2)  # "0.3"
    """
    if isinstance(value, float) and not value.is_integer() and abs(value) < 1e6:
        return f"{value:.6g}"
    return "" if value is None else str(value)


def _cell(value: object) -> str:
    text = _text(value)
    return text if text.isprintable() else printable(" ".join(text.split()))


def _sized(text: str, width: int) -> str:
    """The text in exactly this many columns of the terminal, cut with a mark if it is longer."""
    if text.isascii() and len(text) <= width:
        return text.ljust(width)
    return set_cell_size(text, width) if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def fit(widths: Sequence[int], *, room: int) -> list[int]:
    """Widths of columns that fit into `room` together: the widest are cut, to the same width.

    Example:
        fit([3, 20, 40], room=30)  # [3, 13, 13]
    """
    widest = max(widths)
    cut = next((cut for cut in range(widest, 1, -1) if sum(min(width, cut) for width in widths) <= room), 1)
    return [min(width, cut) for width in widths]
