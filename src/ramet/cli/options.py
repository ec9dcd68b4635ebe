"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunPath = Annotated[Path, typer.Argument(help="A run directory, like runs/what-is-the-capital.")]
DataPath = Annotated[str | None, typer.Option(help="Folder with task files, for tasksets that read files.")]
TasksetName = Annotated[str, typer.Argument(help="Name of a taskset; `ramet tasks` lists them.")]
TasksetOptions = Annotated[
    list[str] | None,
    typer.Argument(metavar="[taskset.KEY=VALUE]...", help="Options of the taskset, like taskset.operators=[3,5]."),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar=["RAMET_API_KEY", "OPENAI_API_KEY"], help="API key of the server; never stored.", show_envvar=True
    ),
]
ConfigFile = Annotated[Path | None, typer.Option(help="TOML file with settings.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Recipe = Annotated[
    str | None, typer.Argument(metavar="[RECIPE]", help="A TOML file with settings, or the name of a built-in recipe.")
]
Settings = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Any setting, like steps=50 or loss.kind=ppo.")
]
Resume = Annotated[Path | None, typer.Option(help="Resume this run from its newest checkpoint.")]
Runs = Annotated[Path, typer.Option(help="Folder for run directories.")]
ShowBudget = Annotated[bool | None, typer.Option(help="Show the model its remaining budget.")]
Temperature = Annotated[float | None, typer.Option(help="Sampling temperature; 0 is greedy (default: 0.7).")]
