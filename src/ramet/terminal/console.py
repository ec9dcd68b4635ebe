"""The console that every command prints to."""

from __future__ import annotations

import json
import shutil
import sys

from rich.console import Console

PIPED_WIDTH = 100_000  # columns: rows written to a file or a pipe are never wrapped or cut

out = Console(highlight=False, soft_wrap=True, markup=False)


def table_console() -> Console:
    """The console for tables: as wide as the terminal, or as wide as needed when piped."""
    return out if out.is_terminal else Console(width=PIPED_WIDTH, highlight=False, markup=False)


def command(*, program: str | None = None, path: str | None = None) -> str:
    """The command to suggest in hints: `ramet` if it is on the path, else the way this process was started."""
    if shutil.which("ramet", path=path):
        return "ramet"
    program = sys.argv[0] if program is None else program
    return "python -m ramet" if program.endswith("__main__.py") else program


def print_json(facts: object) -> None:
    """Print JSON on standard output, indented and in Unicode."""
    sys.stdout.write(json.dumps(facts, ensure_ascii=False, indent=1, default=str) + "\n")
