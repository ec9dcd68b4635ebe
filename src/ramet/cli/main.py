"""The `ramet` command: one module per verb, each of which parses and calls. Heavy imports wait until a verb runs."""

from __future__ import annotations

import errno
import io
import logging
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, cast

import typer

from ramet.cli import backend, bench, tasks
from ramet.cli.demo import demo, tour
from ramet.cli.evaluate import evaluate
from ramet.cli.fork import fork
from ramet.cli.help import hide_types_of_flags
from ramet.cli.ls import ls
from ramet.cli.report import report
from ramet.cli.run import run, show, sql
from ramet.cli.serve import serve
from ramet.cli.signals import ended_like_ctrl_c
from ramet.cli.train import train, warmstart
from ramet.cli.view import view
from ramet.errors import OutputClosed, RametError
from ramet.types import printable

# Base class of every error about arguments. typer may bundle its own click; the class is in the same place in both.
CliError = cast(type[Exception], typer.BadParameter.__mro__[2])

INTERRUPTED = 130
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # a full disk, a quota, a disk that cannot be written to
OTHER_FLAGS = {"--context": "--window", "--file": "--context", "--stdin": "-"}  # guesses; only errors use them
SETTINGS_OF = {  # commands that take any setting as KEY=VALUE
    "run": "ramet.inputs.settings:RunConfig",
    "serve": "ramet.serve.settings:ServeConfig",
    "train": "ramet.train.settings:TrainConfig",
    "warmstart": "ramet.train.settings:WarmConfig",
    "eval": "ramet.evaluate.settings:EvaluateConfig",
}

app = typer.Typer(
    help="Train and run language models that split their work among clones of themselves, under hard budgets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def main() -> None:
    """Entry point. An expected error is one line on standard error and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")  # a locale without these characters: ? in their place
    logging.getLogger("ramet").addHandler(LoggedLines())
    with ended_like_ctrl_c() as received:
        code = _run_command()
        if code == INTERRUPTED:
            code = _fail(*_interrupted(received))
    sys.exit(code)


def _run_command() -> int:
    try:
        command = hide_types_of_flags(typer.main.get_command(app))
        code = command(args=sys.argv[1:] or ["--help"], standalone_mode=False)
    except CliError as error:
        message = cast(typer.BadParameter, error).format_message() + _given(error) + _hint(error)
        code = _fail(message) if message else 0  # without one it has printed the help of a group of commands
    except OutputClosed:
        code = 1
    except RametError as error:
        code = _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED  # typer may turn Ctrl-C into this code too
    except Exception as error:
        message = _expected(error)
        if message is None:
            raise
        code = _fail(message)
    return code if isinstance(code, int) else 0


def _interrupted(received: Sequence[int]) -> tuple[str, int]:
    """What is printed, and the exit code: that of Ctrl-C, or of the signal that had its effect."""
    return (
        (f"interrupted by {signal.Signals(received[0]).name}", 128 + received[0])
        if received
        else ("interrupted", INTERRUPTED)
    )


def _expected(error: Exception) -> str | None:
    """The message of an error that is not ours: of the disk, or of a taskset, rule or engine of the user's own."""
    from ramet.plugins import mistake

    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        return f"cannot write{f' to {error.filename}' if error.filename else ''}: {error.strerror}"
    return mistake(error)


class LoggedLines(logging.Handler):
    """Prints what the package logs, such as notes about a server, on standard error: a line each."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(_line(record.getMessage()))


def _given(error: Any) -> str:
    """The value that is none of its option's type, which typer leaves out."""
    from pydantic import ValidationError

    wrong = error.__cause__
    return f"; got {wrong.errors()[0]['input']!r:.60}" if isinstance(wrong, ValidationError) else ""


def _hint(error: Any) -> str:
    """What to write instead of an unknown command or option."""
    context, option = getattr(error, "ctx", None), getattr(error, "option_name", None)
    if option in OTHER_FLAGS:
        return f" Did you mean {OTHER_FLAGS[option]}?"
    if option and context is not None and context.info_name in SETTINGS_OF:
        return _setting_hint(context.info_name, option)
    if context is None or not str(error).startswith("No such command"):
        return ""
    return f" Commands: {', '.join(context.command.list_commands(context))}."


def _setting_hint(verb: str, option: str) -> str:
    """`--steps 5` is written `steps=5`."""
    from ramet.config import find_settings

    module, _, kind = SETTINGS_OF[verb].partition(":")
    config, name = getattr(import_module(module), kind), option.lstrip("-").replace("-", "_")
    meant = [name] if name in config.__dataclass_fields__ and name != "budget" else find_settings(config, name)
    return f"; settings have no dashes: write {meant[0]}=VALUE" if meant else ""


def _fail(message: str, code: int = 2) -> int:
    sys.stderr.write(_line(message))
    return code


def _line(message: str) -> str:
    return f"ramet: {printable(' '.join(message.split()))}\n"


def _version(wanted: bool) -> None:
    if wanted:
        import ramet

        typer.echo(f"ramet {ramet.__version__}")
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


for panel, verbs in {
    "Start here": (tour, demo),
    "Run trees": (run, serve, fork),
    "Train and evaluate": (train, warmstart, evaluate),
    "Look at runs": (show, view, sql, ls, report),
}.items():
    for verb in verbs:
        app.command("eval" if verb is evaluate else None, rich_help_panel=panel)(verb)
for name, group in {"tasks": tasks.app, "bench": bench.app, "backend": backend.app}.items():
    app.add_typer(group, name=name, rich_help_panel="More")
