"""The traceback of a rewritten cell, in the lines that the model wrote."""

from __future__ import annotations

from functools import cache

from pydantic_monty import Frame, MontyRuntimeError, MontySyntaxError

from ramet.agent.cells.rewrite import Rewritten, prelude


def display(error: MontyRuntimeError | MontySyntaxError, cell: Rewritten) -> str:
    """What the interpreter would have shown for the original cell, without the frames of the prelude."""
    lines = ["Traceback (most recent call last):"]
    for frame in error.traceback():
        if _line(_prelude_lines(), frame.line) == _shown(frame):
            continue
        number, source = frame.line, _shown(frame)
        if _line(cell.code.split("\n"), number) == source:
            number = cell.lines.get(number, number)
            source = _line(cell.source, number)
        lines.append(f'  File "{frame.filename}", line {number}, in {frame.function_name or "<module>"}')
        lines.append(f"    {source}")
    message = error.display("type-msg").replace("KeyboardInterrupt", "asyncio.CancelledError")
    return "\n".join([*lines, message])


@cache
def _prelude_lines() -> tuple[str, ...]:
    return tuple(prelude().split("\n"))


def _line(lines: tuple[str, ...] | list[str], number: int) -> str:
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def _shown(frame: Frame) -> str:
    return (frame.source_line or "").strip()
