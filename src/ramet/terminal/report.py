"""A report in the terminal: its headline, its tables, and where the page is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ramet.evaluate.cells import Cell
from ramet.evaluate.format import budget_label, method_label, percent, share
from ramet.evaluate.tables import Section
from ramet.evaluate.text import Column, fitted_table
from ramet.report.facts import parse_named_run, report_facts, report_folder
from ramet.report.format import amount
from ramet.report.page import Report, make_report, save_report
from ramet.report.page_tables import front_marks
from ramet.report.viewer import Export
from ramet.terminal.console import out, print_json, table_console


def print_report(words: Sequence[str], *, into: Path | None, as_json: bool, png: bool = False) -> None:
    """Write the page of these runs (`RUN` or `NAME=RUN`) and print its headline and tables."""
    named = [parse_named_run(word) for word in words]
    paths = [path for _, path in named]
    folder = report_folder(paths, into)
    with nullcontext() if as_json or not out.is_terminal else out.status("reading and drawing"):
        report = make_report(paths, names=[name for name, _ in named], export=find_export())
        page = save_report(report, folder, png=png)
    if as_json:
        return print_json(report_facts(report) | {"page": str(page)})
    return _print_tables(report, page)


def find_export() -> Export | None:
    """The export of the viewer, if it is installed: `pip install 'ramet[view]'`."""
    try:
        return import_module("ramet.view.export").export
    except ModuleNotFoundError:
        return None


def _print_tables(report: Report, page: Path) -> None:
    for line in report.headline:
        out.print(Text(line, style="bold"))
    for section in report.sections:
        out.print()
        console = table_console()
        console.print(_cell_table(section, width=console.width))
    for run in report.runs:
        for note in run.notes:
            out.print(Text(f"{run.name}: {note}", style="yellow"))
    out.print()
    out.print(f"{page}  (open it in a browser)", style="dim")


def _cell_table(section: Section, *, width: int) -> Table:
    """One line per cell."""
    run: list[Column[Cell]] = [("run", lambda cell: cell.run)] if section.several_runs else []
    columns: list[Column[Cell]] = [
        *run,
        ("method", lambda cell: method_label(cell.method)),
        ("budget", lambda cell: budget_label(cell.budget)),
        ("accuracy", lambda cell: percent(cell.accuracy)),
        ("tokens", lambda cell: amount(cell.generated)),
        ("path", lambda cell: amount(cell.critical_path)),
        ("delegated", lambda cell: share(cell.delegated)),
        ("front", front_marks),
    ]
    spare = ("front", "delegated", "path", "tokens")
    table = fitted_table(columns, section.cells, spare=spare, width=width, words=("run", "method", "front"))
    table.title, table.title_justify = section.title or None, "left"
    return table
