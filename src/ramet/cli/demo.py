"""`ramet demo` and `ramet tour`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramet.cli.options import Runs, Settings
from ramet.errors import ConfigError


def demo(
    settings: Settings = None,
    runs: Runs = Path("runs"),
    num_tasks: Annotated[int, typer.Option("-n", help="Tasks per evaluation.", min=20)] = 200,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Also train with the credit rule as published, and a single agent."),
    ] = False,
) -> None:
    """Train a very small model from scratch to delegate, and evaluate it: about ten minutes on two CPU cores.

    Run the same command again to resume. --compare takes about three times as long.
    Settings override those of the recipe nano.
    """
    from ramet.demo.demo import demo as run_demo

    run_demo(runs, words=settings or [], num_tasks=num_tasks, compare=compare)


def tour(
    runs: Runs = Path("runs"),
    pace: Annotated[float, typer.Option(help="Real seconds per scripted second; 0 does not wait.")] = 1.0,
) -> None:
    """Run a scripted tree, without a model: delegation, parallel clones, a refused grant, a partial answer."""
    from ramet.demo.tour import tour as run_tour

    if not 0 <= pace < float("inf"):
        raise ConfigError(f"--pace is a number of seconds from 0 up; got {pace}")
    run_tour(runs, pace=pace)
