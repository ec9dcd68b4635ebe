"""`ramet ls`: the run directories of a folder, a line each."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ramet.draw import one_line
from ramet.store.listing import Listing, list_runs
from ramet.terminal.console import command, out, print_json, table_console

ABOUT_WIDTH = 40
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
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("run", "kind", "what", "done", "success", "when", "size"):
        table.add_column(name, justify="right" if name in ("done", "success", "size") else "left", no_wrap=True)
    for run in runs:
        table.add_row(*map(Text, row_of(run)))
    return table_console().print(table)


def row_of(run: Listing) -> list[str]:
    """The cells of one run."""
    if run.problem:
        return [str(run.path), "", one_line(run.problem, 2 * ABOUT_WIDTH), "", "", "", amount(run.size)]
    done = "" if run.trees is None else "1 tree" if run.trees == 1 else f"{run.trees:,} trees"
    if run.steps is not None:
        done = f"{run.steps:,} of {run.of_steps:,} steps" if run.of_steps is not None else f"{run.steps:,} steps"
    success = "" if run.success is None else f"{run.success:.0%}"
    return [
        str(run.path),
        run.kind,
        one_line(run.about, ABOUT_WIDTH),
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
