"""`ramet report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramet.cli.options import Json


def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="[NAME=]RUN", help="Run directories; NAME labels a run instead of its own name."),
    ],
    into: Annotated[
        Path | None,
        typer.Option(help="Folder for the page (default: RUN/report; for several runs, next to the first)."),
    ] = None,
    png: Annotated[bool, typer.Option("--png", help="Also write every plot as a PNG file, beside the page.")] = False,
    json: Json = False,
) -> None:
    """Write a page with tables, plots and trees of one or more runs: evaluations, trainings, single questions.

    Example: ramet report before=runs/eval-craft-1 after=runs/eval-craft-2 runs/my-training --into report
    """
    from ramet.terminal.report import print_report

    print_report(runs, into=into, as_json=json, png=png)
