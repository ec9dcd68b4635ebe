"""The words of `ramet report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramet.cli.options import Json


def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="[NAME=]RUN...", help="Run directories, each under its own name or one you give it."),
    ],
    into: Annotated[
        Path | None, typer.Option(help="Where the page goes: RUN/report for one run, unless given.")
    ] = None,
    json: Json = False,
) -> None:
    """Write a page with tables, pictures and trees of one or more runs: evaluations, trainings, single questions.

    Example: ramet report before=runs/eval-craft-1 after=runs/eval-craft-2 runs/my-training --into report
    """
    from ramet.cli import report_commands

    report_commands.report(runs, into=into, as_json=json)
