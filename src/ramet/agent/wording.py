"""Texts that dialects share. Models read them: a change here changes what a trained model sees."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from ramet.agent.values import brief
from ramet.interfaces import CutAnswer, HostFunction, Remaining, Report, Result
from ramet.types import Stop, clean

THINK, END_THINK = "<think>", "</think>"
ANSWER = re.compile(r"(?:final\s+)?answers?\s*:", re.IGNORECASE)
CLOSING_REASON = {
    Stop.BUDGET: "Your budget is almost used up.",
    Stop.TURNS: "This is your last turn.",
    Stop.REPEATS: "The same turn gave the same results again.",
    Stop.WINDOW: "Your context window is almost full.",
    Stop.DEADLINE: "Time is almost up.",
}


def after_thoughts(text: str) -> str:
    """The text after the model's thinking; thoughts that did not end are all there is."""
    return text.lstrip().removeprefix(THINK) if is_thinking(text) else text.rpartition(END_THINK)[2]


def turn_text(given: str, text: str) -> str:
    """What a model wrote in a turn. Some chat templates end what it is given with `<think>`, which belongs to it."""
    return THINK + text if given.rstrip().endswith(THINK) else text


def is_thinking(text: str) -> bool:
    """Whether a text ends within the model's thinking, as one that was cut off may."""
    return text.lstrip().startswith(THINK) and END_THINK not in text


def answer_in(text: str) -> str | None:
    """The text after the last `Answer:`, or the whole text. None when that is empty."""
    text = after_thoughts(text)
    return _marked(text) or text.strip() or None


def answer_in_cut(text: str) -> CutAnswer | None:
    """The answer in a text that was cut off. None when the text is empty, or ends with the mark it begins with."""
    text = after_thoughts(text)
    marked, whole = _marked(text), text.strip()
    if marked:
        return CutAnswer(text=marked, marked=True)
    return None if not whole or ANSWER.fullmatch(whole) else CutAnswer(text=whole)


def _marked(text: str) -> str:
    """The text after the last `Answer:`; empty if there is none."""
    marks = list(ANSWER.finditer(text))
    return text[marks[-1].end() :].strip() if marks else ""


def cut(text: str, limit: int) -> str:
    """The text cut to `limit` bytes, with a mark that gives its full size."""
    text = clean(text)
    data = text.encode()
    if len(data) <= limit:
        return text
    mark = f" … ({len(data):,} bytes in all)"
    start = head(text, limit - num_bytes(mark))
    return start + mark if start else head(mark, limit)


def head(text: str, limit: int) -> str:
    """The first characters of a text, together at most `limit` bytes.

    Example:
        head("naïve", 3)  # "na"
    """
    limit = max(0, limit)
    return clean(text[:limit]).encode()[:limit].decode(errors="ignore")


def num_bytes(text: str) -> int:
    """The size of a text in UTF-8, with every lone surrogate replaced."""
    return len(clean(text).encode())


def cut_characters(text: str, limit: int) -> str:
    """The text cut to `limit` characters, with a mark that says how many were cut.

    Example:
        cut_characters("x" * 100, 40)  # "xxxxxxxxxxxxxxxxxx … (82 characters cut)"
    """
    if len(text) <= limit:
        return text
    for kept in range(limit, -1, -1):
        mark = f" … ({len(text) - kept:,} characters cut)"
        if kept + len(mark) <= limit:
            return text[:kept] + mark
    return text[:limit]


def shorten(results: Sequence[Result], limit: int | None) -> list[Result]:
    """The results of one call, cut to at most `limit` characters together: the longest ones first, to one length."""
    if limit is None or sum(len(result.text) for result in results) <= limit:
        return list(results)
    lengths, left = sorted(len(result.text) for result in results), limit
    for place, length in enumerate(lengths):
        most = left // (len(lengths) - place)
        if length > most:
            return [replace(result, text=cut_characters(result.text, most)) for result in results]
        left -= length
    return list(results)


def as_text(value: object) -> str:
    """A value as text: JSON where possible, else its repr, else what it is."""
    if isinstance(value, str):
        return clean(value)
    try:
        return clean(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return clean(repr(value))
    except (ValueError, RecursionError):  # a number of thousands of digits, a nesting of thousands of levels
        return brief(value)


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


def is_async(function: HostFunction) -> bool:
    """Whether a call has to be awaited, as far as that is known before it is made: a plain function may return one."""
    while isinstance(function, partial):
        function = cast(HostFunction, function.func)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def describe(functions: Mapping[str, HostFunction], *, awaited: bool) -> str:
    """Signatures and docstrings of functions, for the system prompt. With `awaited`, async ones are marked."""
    lines: list[str] = []
    for name, function in functions.items():
        mark = "async " if awaited and is_async(function) else ""
        lines.append(f"{mark}{name}{signature(function)}")
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


def too_many_calls(limit: int) -> str:
    """Why a call is not carried out, as text for the model."""
    return f"refused: one turn makes at most {limit} calls; make this one in your next turn"


def missing_note(missing: Sequence[str]) -> str:
    return f"Not available: {', '.join(missing)}" if missing else ""
