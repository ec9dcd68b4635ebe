"""Small pieces of text that dialects share."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence

from ramet.interfaces import HostFunction, Left, Report
from ramet.types import Stop

ANSWER = re.compile(r"(?:final\s+)?answers?\s*:", re.IGNORECASE)
WHY = {
    Stop.BUDGET: "Your budget is almost used up.",
    Stop.TURNS: "This is your last turn.",
    Stop.WINDOW: "Your context window is almost full.",
    Stop.DEADLINE: "Time is almost up.",
}


def after_thoughts(text: str) -> str:
    """What follows the model's thinking."""
    return text.rpartition("</think>")[2]


def answer_in(text: str) -> str | None:
    """The text behind the last `Answer:`, or all of it. None when nothing is left."""
    text = after_thoughts(text)
    marks = list(ANSWER.finditer(text))
    answer = text[marks[-1].end() :].strip() if marks else ""
    return answer or text.strip() or None


def cut(text: str, limit: int) -> str:
    """At most `limit` bytes of it, with a mark that says how much is missing."""
    data = text.encode()
    if len(data) <= limit:
        return text
    mark = f" … ({len(data):,} bytes in all)"
    head = data[: max(0, limit - len(mark.encode()))].decode(errors="ignore")
    return head + mark if head else mark.encode()[:limit].decode(errors="ignore")


def as_text(value: object) -> str:
    """A value as a parent reads it."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return repr(value)


class _Plain:
    """An annotation written as text, shown without its quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def signature(function: HostFunction) -> str:
    """A function's parameters as a reader writes them, however its module spells annotations."""

    def plain(annotation: object) -> object:
        return _Plain(annotation) if isinstance(annotation, str) else annotation

    found = inspect.signature(function)
    parameters = [one.replace(annotation=plain(one.annotation)) for one in found.parameters.values()]
    return str(found.replace(parameters=parameters, return_annotation=plain(found.return_annotation)))


def describe(functions: Mapping[str, HostFunction]) -> str:
    """Signatures and docstrings, as the model reads them."""
    lines: list[str] = []
    for name, function in functions.items():
        awaited = "async " if inspect.iscoroutinefunction(function) else ""
        lines.append(f"{awaited}{name}{signature(function)}")
        lines += [f"    {line.strip()}" for line in (inspect.getdoc(function) or "").splitlines()]
    return "\n".join(lines)


def report_text(report: Report, *, limit: int) -> str:
    """What a parent is told about one child, at most `limit` bytes of it the child's own words."""
    missing = f" (unknown context keys: {', '.join(report.missing)})" if report.missing else ""
    goal = f" [goal: {cut(report.goal, 80)}]"  # a child that came to nothing is named by its goal
    if report.stop is None:
        return f"refused: {report.error}{goal}"
    if report.answer is None:
        why = f": {cut(report.error, 200)}" if report.error else ""
        return f"no answer, stopped by {report.stop}{why}{missing}{goal}"
    partial = "" if report.stop is Stop.ANSWERED else f"(partial, stopped by {report.stop}) "
    return partial + cut(report.answer, limit) + missing


def left_text(left: Left) -> str:
    """What a node may still spend."""
    parts = [f"{left.tokens:,} tokens", f"{left.turns} turns"]
    if left.levels > 0:
        parts += [f"{left.clones} clones", f"{left.levels} levels"]
    if left.seconds is not None:
        parts.append(f"{left.seconds:.0f} seconds")
    return f"You have left: {', '.join(parts)}."


def context_block(context: Mapping[str, str]) -> str:
    """Handed-over texts, each under its key."""
    return "\n\n".join(f"[{key}]\n{text}" for key, text in context.items())


def missing_note(missing: Sequence[str]) -> str:
    return f"Not available: {', '.join(missing)}" if missing else ""
