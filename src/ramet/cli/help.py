"""What the help of a command shows."""

from __future__ import annotations

from typing import Any

import typer


def hide_types_of_flags(command: Any) -> Any:
    """The command, and those below it, with flags that do not look as if they took a value (`--json <bool>`)."""
    context = typer.Context(command)
    for param in command.get_params(context):
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    for below in getattr(command, "commands", {}).values():
        hide_types_of_flags(below)
    return command
