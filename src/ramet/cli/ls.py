"""`ramet ls`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramet.cli.options import Json


def ls(
    runs: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder with run directories.")] = Path("runs"),
    json: Json = False,
) -> None:
    """List the run directories of a folder, newest first: kind, steps or trees, success, when, size."""
    from ramet.terminal.listing import print_runs

    print_runs(runs, as_json=json)
