"""The console that every command prints to."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment

from ramet.errors import OutputClosed
from ramet.types import NOT_PRINTED, printable

PIPED_WIDTH = 100_000  # columns: rows written to a file or a pipe are never wrapped or cut


class Terminal(Console):
    """A console for which a closed output is an error like others, so that what runs ends in order."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        raise output_closed() from None


def output_closed() -> OutputClosed:
    """The error for output that nothing reads. What is still written to it, and at exit, goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OutputClosed("standard output was closed")


class Printable:
    """Anything that can be printed, without the control characters in its text: models and servers write some."""

    def __init__(self, renderable: ConsoleRenderable) -> None:
        self.renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


class PrintableHook(RenderHook):
    """Makes a console print nothing but printable text."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [Printable(renderable) for renderable in renderables]


def make_console(**how: Any) -> Console:
    """A console whose text is printed as it is: no markup, no emoji for `:x:`, no control characters."""
    console = Terminal(highlight=False, markup=False, emoji=False, **how)
    console.push_render_hook(PrintableHook())
    return console


out = make_console(soft_wrap=True)


def table_console() -> Console:
    """The console for tables: as wide as the terminal, or as wide as needed when piped."""
    return out if out.is_terminal else make_console(width=PIPED_WIDTH)


def command(*, program: str | None = None, path: str | None = None) -> str:
    """The command to suggest in hints: `ramet` if it is on the path, else the way this process was started."""
    if shutil.which("ramet", path=path):
        return "ramet"
    program = sys.argv[0] if program is None else program
    return "python -m ramet" if program.endswith("__main__.py") else program


def warn(message: str) -> None:
    """One line on standard error about something that is left out."""
    sys.stderr.write(f"ramet: {printable(' '.join(message.split()))}\n")


def print_json(facts: object, *, indent: int | None = 1) -> None:
    """Print JSON on standard output, in Unicode and indented; with `indent=None` on one line, at once."""
    text = json.dumps(facts, ensure_ascii=False, indent=indent, default=str)
    try:
        sys.stdout.write(NOT_PRINTED.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise output_closed() from None
