"""Words that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunPath = Annotated[Path, typer.Argument(help="A run directory, like runs/what-is-the-capital")]
DataPath = Annotated[str | None, typer.Option(help="Folder with task files, for tasksets that read some.")]
Options = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Options of the taskset, like taskset.operators=[3,5].")
]
ApiKey = Annotated[
    str | None, typer.Option(envvar=["RAMET_API_KEY", "OPENAI_API_KEY"], help="Never stored.", show_envvar=True)
]
Json = Annotated[bool, typer.Option("--json", help="Print facts for machines instead of tables.")]
Recipe = Annotated[
    str | None, typer.Argument(metavar="[RECIPE]", help="A TOML file with settings, or the name of one we ship.")
]
Settings = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Any setting, like steps=50 or loss.kind=ppo.")
]
Resume = Annotated[Path | None, typer.Option(help="Go on with this run where its newest checkpoint is.")]
Runs = Annotated[Path, typer.Option(help="Where run directories go.")]
