"""An evaluation in the terminal: its progress, its tables, and where its files are."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TypedDict

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from rich.text import Text

from ramet.draw import one_line
from ramet.evaluate.format import budget_label
from ramet.evaluate.run import OnProgress, Progress, ignore
from ramet.evaluate.session import Evaluation, OnStart
from ramet.evaluate.tables import Section
from ramet.evaluate.text import render_sections
from ramet.report.endings import ending_lines
from ramet.report.read import read_run
from ramet.store import RunDir
from ramet.terminal.console import command, out, print_json, table_console

LONGEST = 400  # characters of the line about settings of the training


class Callbacks(TypedDict):
    """The callbacks of `run_evaluation`."""

    on_start: OnStart
    on_progress: OnProgress


@contextmanager
def show_progress(*, as_json: bool = False, unit: str = "cell", taken_over: Sequence[str] = ()) -> Generator[Callbacks]:
    """Callbacks that print the run directory, then the progress: a bar on a terminal, else a line at every tenth.

    `taken_over` are settings of the model's training, which are printed too. An interrupted evaluation prints how to
    resume it. With `as_json` nothing is printed.
    """
    if as_json:
        yield {"on_start": ignore, "on_progress": ignore}
        return
    started: list[RunDir] = []
    bar = _bar() if out.is_terminal else None

    def on_start(run: RunDir) -> None:
        started.append(run)
        out.print(str(run.path), style="dim")
        if taken_over:
            out.print(one_line(f"from the training: {' '.join(taken_over)}", LONGEST), style="dim")
        if bar is not None:
            bar.start()

    try:
        yield {"on_start": on_start, "on_progress": _print_tenths(unit) if bar is None else _update(bar, unit)}
    except KeyboardInterrupt:
        if started:
            out.print("Finished items are kept. Run the same command again to resume.", style="dim")
        raise
    finally:
        if bar is not None:
            bar.stop()


def _bar() -> ProgressBar:
    columns = (
        TextColumn("{task.fields[cells]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    return ProgressBar(*columns, console=out, transient=True)


def _update(bar: ProgressBar, unit: str) -> OnProgress:
    """Cells and items done, items per second, time left."""
    task = bar.add_task("items", total=None, cells="", rate="")

    def on_progress(progress: Progress) -> None:
        speed = bar.tasks[0].speed
        bar.update(
            task,
            total=progress.total,
            completed=progress.done,
            cells=f"{unit} {min(progress.cells_done + 1, progress.cells)} of {progress.cells}",
            rate="" if speed is None else f"{speed:.2f} items/s",
        )

    return on_progress


def _print_tenths(unit: str) -> OnProgress:
    printed: set[int] = set()

    def on_progress(progress: Progress) -> None:
        tenth = 10 * progress.done // progress.total
        if tenth not in printed:
            printed.add(tenth)
            items = f"{progress.done:,} of {progress.total:,} items"
            out.print(f"{items}, {progress.cells_done} of {progress.cells} {unit}s", style="dim")

    return on_progress


def print_evaluation(evaluation: Evaluation, run: RunDir, *, as_json: bool) -> None:
    """Print the tables, write the report, and print where both are."""
    if as_json:
        print_json(evaluation.facts())
    else:
        console = table_console()
        sections = evaluation.sections()
        console.print(render_sections(sections, width=console.width))
        _print_endings(console, sections, run)
    hint = _write_report(run)
    if not as_json:
        if evaluation.failures:
            out.print(_missing(evaluation), style="yellow")
        out.print(f"{run.path}  ({command()} show {run.path} --tree ID)", style="dim")
        out.print(hint, style="dim")


def _missing(evaluation: Evaluation) -> str:
    """How many items have no result, and what that means for the numbers."""
    failed = len(evaluation.failures)
    total = f"{failed:,} of {failed + len(evaluation.records):,} items"
    return f"{total} failed and are not counted; run the same command again to retry them"


def _print_endings(console: Console, sections: Sequence[Section], run: RunDir) -> None:
    """How the trees of wrong answers ended, under the largest budget of each split."""
    read = read_run(run.path)
    for section in sections:
        lines = ending_lines(section, dict.fromkeys(section.runs, read))
        if lines:
            split = [f"on {section.title}"] if section.title else []
            budget = [f"at {budget_label(section.budgets[-1])} tokens"] if len(section.budgets) > 1 else []
            title = " ".join(["How wrong answers ended", *split, *budget])
            console.print(
                Text("\n".join(["", title, *(f"  {line}" for line in lines)]))
            )  # not markup: splits of a file


def _write_report(run: RunDir) -> str:
    """Write the report unless it is newer than the records; return its path, or what it needs."""
    if find_spec("matplotlib") is None:
        return "for a page with plots: pip install 'ramet[report]', then run the same command again"
    from ramet.report.page import update_report

    return str(update_report(run.path))
