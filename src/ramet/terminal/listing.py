"""`ramet ls`: the run directories of a folder, a line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from ramet.draw import one_line
from ramet.evaluate.format import share
from ramet.plugins import shortened
from ramet.store.listing import Listing, list_runs
from ramet.terminal.console import command, out, print_json, table_console

COLUMNS = ("run", "kind", "what", "done", "success", "when", "size")
TO_THE_RIGHT = ("done", "success", "size")
WHAT = COLUMNS.index("what")  # the column that gives way where the terminal is narrow
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
    """The rows in columns: the third, then the first, are cut to the width, the others never."""
    widths = [max(map(cell_len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    left = width - sum(widths) + widths[WHAT] - GAP * (len(COLUMNS) - 1)
    shown = [place for place in range(len(COLUMNS)) if place != WHAT or left >= min(MIN_ABOUT, widths[WHAT])]
    room = max(MIN_ABOUT, left + widths[0] + GAP) if WHAT not in shown else widths[0]  # for the name
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place in shown:
        least = None if place in (0, WHAT) else widths[place]
        justify = "right" if COLUMNS[place] in TO_THE_RIGHT else "left"
        table.add_column(
            COLUMNS[place], justify=justify, min_width=least, max_width=room if place == 0 else None, no_wrap=True
        )
    for row in rows:
        cells = [one_line(cell, left) if place == WHAT else cell for place, cell in enumerate(row)]
        table.add_row(*(Text(cells[place]) for place in shown))
    return table


def row_of(run: Listing) -> list[str]:
    """The cells of one run."""
    if run.problem:
        return [str(run.path), "", one_line(run.problem, 2 * ABOUT_WIDTH), "", "", "", amount(run.size)]
    done = "" if run.trees is None else "1 tree" if run.trees == 1 else f"{run.trees:,} trees"
    if run.steps is not None:
        done = f"{run.steps:,} of {run.of_steps:,} steps" if run.of_steps is not None else f"{run.steps:,} steps"
    success = "" if run.success is None else share(run.success)
    return [
        str(run.path),
        run.kind,
        one_line(shortened(run.about), ABOUT_WIDTH),
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
