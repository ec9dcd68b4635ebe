"""Texts that dialects share. Models read them: a change here changes what a trained model sees."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence

from ramet.interfaces import HostFunction, Remaining, Report
from ramet.types import Stop

ANSWER = re.compile(r"(?:final\s+)?answers?\s*:", re.IGNORECASE)
CLOSING_REASON = {
    Stop.BUDGET: "Your budget is almost used up.",
    Stop.TURNS: "This is your last turn.",
    Stop.WINDOW: "Your context window is almost full.",
    Stop.DEADLINE: "Time is almost up.",
}


def after_thoughts(text: str) -> str:
    """The text after the model's thinking."""
    return text.rpartition("</think>")[2]


def answer_in(text: str) -> str | None:
    """The text after the last `Answer:`, or the whole text. None when that is empty."""
    text = after_thoughts(text)
    marks = list(ANSWER.finditer(text))
    answer = text[marks[-1].end() :].strip() if marks else ""
    return answer or text.strip() or None


def cut(text: str, limit: int) -> str:
    """The text cut to `limit` bytes, with a mark that gives its full size."""
    data = text.encode()
    if len(data) <= limit:
        return text
    mark = f" … ({len(data):,} bytes in all)"
    head = data[: max(0, limit - len(mark.encode()))].decode(errors="ignore")
    return head + mark if head else mark.encode()[:limit].decode(errors="ignore")


def as_text(value: object) -> str:
    """A value as text: JSON where possible, else its repr."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return repr(value)


class _Plain:
    """A string annotation, shown without quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def signature(function: HostFunction) -> str:
    """A function's signature, the same whether its module has string annotations or not."""

    def plain(annotation: object) -> object:
        return _Plain(annotation) if isinstance(annotation, str) else annotation

    written = inspect.signature(function)
    parameters = [p.replace(annotation=plain(p.annotation)) for p in written.parameters.values()]
    return str(written.replace(parameters=parameters, return_annotation=plain(written.return_annotation)))


def describe(functions: Mapping[str, HostFunction]) -> str:
    """Signatures and docstrings of functions, for the system prompt."""
    lines: list[str] = []
    for name, function in functions.items():
        awaited = "async " if inspect.iscoroutinefunction(function) else ""
        lines.append(f"{awaited}{name}{signature(function)}")
        lines += [f"    {line.strip()}" for line in (inspect.getdoc(function) or "").splitlines()]
    return "\n".join(lines)


def report_text(report: Report, *, limit: int) -> str:
    """A child's result as its parent reads it. The child's answer is cut to `limit` bytes."""
    missing = f" (unknown context keys: {', '.join(report.missing)})" if report.missing else ""
    goal = f" [goal: {cut(report.goal, 80)}]"  # identifies a child without an answer
    if report.stop is None:
        return f"refused: {report.error}{goal}"
    if report.answer is None:
        why = f": {cut(report.error, 200)}" if report.error else ""
        return f"no answer, stopped by {report.stop}{why}{missing}{goal}"
    partial = "" if report.stop is Stop.ANSWERED else f"(partial, stopped by {report.stop}) "
    return partial + cut(report.answer, limit) + missing


def remaining_text(remaining: Remaining) -> str:
    """What a node may still spend, as a sentence."""
    parts = [f"{remaining.tokens:,} tokens", f"{remaining.turns} turns"]
    if remaining.levels > 0:
        parts += [f"{remaining.clones} clones", f"{remaining.levels} levels"]
    if remaining.seconds is not None:
        parts.append(f"{remaining.seconds:.0f} seconds")
    return f"You have left: {', '.join(parts)}."


def context_block(context: Mapping[str, str]) -> str:
    """Texts, each under its key."""
    return "\n\n".join(f"[{key}]\n{text}" for key, text in context.items())


def missing_note(missing: Sequence[str]) -> str:
    return f"Not available: {', '.join(missing)}" if missing else ""
