"""`ramet ls`: the run directories of a folder, a line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from ramet.draw import counted, one_line
from ramet.evaluate.format import share
from ramet.plugins import shortened_each
from ramet.store.listing import Listing, list_runs
from ramet.terminal.console import command, out, print_json, table_console

COLUMNS = ("run", "kind", "what", "done", "success", "when", "size")
TO_THE_RIGHT = ("done", "success", "size")
LEFT_OUT = ("what", "size", "when", "success", "done", "kind")  # where the terminal is narrow, in this order
WHAT = COLUMNS.index("what")
ABOUT_WIDTH, MIN_ABOUT = 40, 8
GAP = 2  # spaces between columns
UNITS = ("B", "kB", "MB", "GB", "TB")


def print_runs(folder: Path, *, as_json: bool) -> None:
    """Print every run directory of a folder, newest first."""
    if not as_json and folder == Path("runs") and not folder.exists():
        return out.print(f"no runs yet: {command()} tour makes one")
    runs = list(list_runs(folder))
    if as_json:
        return print_json([asdict(run) | {"path": str(run.path)} for run in runs])
    if not runs:
        return out.print(f"there are no run directories in {folder}")
    console = table_console()
    return console.print(table_of([row_of(run) for run in runs], width=console.width))


def table_of(rows: Sequence[Sequence[str]], *, width: int) -> Table:
    """The rows in columns. In a narrow terminal the third is cut, then columns are left out; paths are never cut."""
    widths = [max(map(cell_len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    shown, about = _fitting(widths, width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place in shown:
        justify = "right" if COLUMNS[place] in TO_THE_RIGHT else "left"
        least = about if place == WHAT else min(widths[place], width)
        table.add_column(COLUMNS[place], justify=justify, min_width=least, no_wrap=place > 0, overflow="fold")
    for row in rows:
        cells = [one_line(cell, about) if place == WHAT else cell for place, cell in enumerate(row)]
        table.add_row(*(Text(cells[place]) for place in shown))
    return table


def _fitting(widths: Sequence[int], width: int) -> tuple[list[int], int]:
    """The columns that fit, and the room for the one that may be cut."""
    shown = list(range(len(COLUMNS)))
    about = width - sum(widths) + widths[WHAT] - GAP * (len(COLUMNS) - 1)
    if about >= min(MIN_ABOUT, widths[WHAT]):
        return shown, min(about, widths[WHAT])
    for name in LEFT_OUT:
        shown.remove(COLUMNS.index(name))
        if sum(widths[place] + GAP for place in shown) - GAP <= width:
            break
    return shown, 0


def row_of(run: Listing) -> list[str]:
    """The cells of one run."""
    if run.problem:
        return [str(run.path), "", one_line(run.problem, 2 * ABOUT_WIDTH), "", "", "", amount(run.size)]
    done = "" if run.trees is None else counted(run.trees, "tree")
    if run.steps is not None:
        word = "supervised step" if run.supervised else "step"
        done = counted(run.steps, word) if run.of_steps is None else f"{run.steps:,} of {counted(run.of_steps, word)}"
    success = "" if run.success is None else share(run.success)
    return [
        str(run.path),
        run.kind,
        one_line(shortened_each(run.about), ABOUT_WIDTH),
        done,
        success,
        when(run.created),
        amount(run.size),
    ]


def when(created: str) -> str:
    """A UTC time in the time zone of this machine; as it is written if it cannot be parsed."""
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return one_line(created, 20)
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return moment.astimezone().strftime("%Y-%m-%d %H:%M")


def amount(size: int) -> str:
    """A number of bytes.

    Example:
        amount(512)        # "512 B"
        amount(1_234_567)  # "1.2 MB"
    """
    value, unit = float(size), UNITS[0]
    for unit in UNITS:
        if value < 1000 or unit == UNITS[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
