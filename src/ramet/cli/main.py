"""The `ramet` command: one module per verb, each of which parses and calls. Heavy imports wait until a verb runs."""

from __future__ import annotations

import errno
import io
import logging
import sys
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
from ramet.cli.train import train, warmstart
from ramet.cli.view import view
from ramet.errors import RametError
from ramet.types import printable

# Base class of every error about arguments. typer may bundle its own click; the class is in the same place in both.
CliError = cast(type[Exception], typer.BadParameter.__mro__[2])

INTERRUPTED = 130
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # a full disk, a quota, a disk that cannot be written to
RENAMED_FLAGS = {"--context": "--window", "--file": "--context", "--stdin": "-"}  # only errors use them

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
    try:
        command = hide_types_of_flags(typer.main.get_command(app))
        code = command(args=sys.argv[1:] or ["--help"], standalone_mode=False)
        if code == INTERRUPTED:  # typer may turn Ctrl-C into an exit code
            _fail("interrupted")
    except CliError as error:
        message = cast(typer.BadParameter, error).format_message() + _hint(error)
        code = _fail(message) if message else 0  # without one it has printed the help of a group of commands
    except RametError as error:
        code = _fail(str(error))
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        code = _fail(f"cannot write{f' to {error.filename}' if error.filename else ''}: {error.strerror}")
    except (KeyboardInterrupt, typer.Abort):
        code = _fail("interrupted", code=INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


class LoggedLines(logging.Handler):
    """Prints what the package logs, such as notes about a server, on standard error: a line each."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(_line(record.getMessage()))


def _hint(error: Any) -> str:
    """What to write instead of an unknown command or a renamed option."""
    context, option = getattr(error, "ctx", None), getattr(error, "option_name", None)
    if option in RENAMED_FLAGS:
        return f" Did you mean {RENAMED_FLAGS[option]}?"
    if context is None or not str(error).startswith("No such command"):
        return ""
    return f" Commands: {', '.join(context.command.list_commands(context))}."


def _fail(message: str, *, code: int = 2) -> int:
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


for verb in (run, serve, show, view, sql, ls, fork, demo, tour, train, warmstart):
    app.command()(verb)
app.command("eval")(evaluate)
app.command("report")(report)
app.add_typer(tasks.app, name="tasks")
app.add_typer(bench.app, name="bench")
app.add_typer(backend.app, name="backend")
