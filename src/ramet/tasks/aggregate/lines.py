"""Lines to count over, in pages: requests with a topic, or turns of a transcript."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from ramet.types import Task

Kind = Literal["number", "label", "list"]
REQUEST = re.compile(r"Date: (\d{4}-\d\d)-\d\d \|\| User: (\d+) \|\| ")
TURN = re.compile(r"\[\d+\] ([^:]+):(.*)", re.DOTALL)
KEY = re.compile(r"lines (\d+)-(\d+)")
NAMED = re.compile(r"\blines? (\d{1,7}) ?(?:-|–|to) ?(\d{1,7})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Line:
    """One line and its topic, if known."""

    text: str
    topic: str = ""

    @property
    def month(self) -> str:
        match = REQUEST.match(self.text)
        return match[1] if match else ""

    @property
    def user(self) -> str:
        match = REQUEST.match(self.text)
        return match[2] if match else ""

    @property
    def speakers(self) -> list[str]:
        match = TURN.match(self.text)
        return [name.strip() for name in re.split(r",| - ", match[1])] if match else []

    @property
    def speech(self) -> str:
        match = TURN.match(self.text)
        return match[2] if match else ""


def pages(lines: Sequence[str], size: int) -> dict[str, str]:
    """The lines as texts by key: `lines 1-50`, `lines 51-100` and so on."""
    starts = range(0, len(lines), size)
    return {f"lines {a + 1}-{min(a + size, len(lines))}": "\n".join(lines[a : a + size]) for a in starts}


def numbered_in_pages(requests: Sequence[str], size: int) -> list[str]:
    """Each request after its number in its page: `1 play a waltz with piano`."""
    return [f"{place % size + 1} {request}" for place, request in enumerate(requests)]


def keys_of(task: Task, first: int, last: int) -> list[str]:
    """The keys of pages with any of these lines."""
    return [key for key in task.context if first <= bounds(key)[1] and bounds(key)[0] <= last]


def bounds(key: str) -> tuple[int, int]:
    """The first and the last line of a page."""
    match = KEY.fullmatch(key)
    if match is None:
        raise AssertionError(f"{key!r} is not a page")
    return int(match[1]), int(match[2])


def find_spans(goal: str) -> list[tuple[int, int]]:
    """The ranges of lines that a goal names, without repeats."""
    return sorted({(int(a), int(b)) for a, b in NAMED.findall(goal)})


def num_lines(task: Task) -> int:
    return bounds([*task.context][-1])[1]


def named_numbers(task: Task, goal: str) -> set[int]:
    """The numbers of the task's lines that a goal names; all of them if it names none."""
    last = num_lines(task)
    spans = find_spans(goal) or [(1, last)]
    return {number for a, b in spans for number in range(max(1, a), min(b, last) + 1)}


def page_lines(task: Task, key: str, topics: Sequence[str]) -> list[Line]:
    """The lines of a page, with their topics if known."""
    numbered = enumerate(task.context[key].split("\n"), start=bounds(key)[0])
    return [Line(text, topics[number - 1] if topics else "") for number, text in numbered]


def lines_in(task: Task, first: int, last: int, topics: Sequence[str]) -> list[Line] | None:
    """Lines first to last; None if the task has no such lines."""
    lines: list[Line] = []
    for key in keys_of(task, first, last):
        start = bounds(key)[0]
        lines += page_lines(task, key, topics)[max(0, first - start) : last - start + 1]
    return lines if first <= last and len(lines) == last - first + 1 else None


# The reference of a task.


def reference_of(task: Task) -> dict[str, Any]:
    return cast(dict[str, Any], task.reference)


def truth(task: Task) -> tuple[Kind, list[str]]:
    """The kind of the answer, and the right answer; for a list, its items."""
    answer: str = reference_of(task)["answer"]
    items = [item for item in answer.split(", ") if item != "none"]
    kind: Kind = reference_of(task)["kind"]
    return kind, items if kind == "list" else [answer]


def topics_of(task: Task) -> list[str]:
    return reference_of(task)["topics"]


def is_brief(task: Task) -> bool:
    """Whether questions and lines have the brief wording."""
    return bool(reference_of(task).get("brief"))


def labels_of(task: Task) -> list[str]:
    """The topic of every line; empty if unknown."""
    topics = topics_of(task)
    return [topics[label] for label in reference_of(task)["labels"]]


def named_lines(task: Task, goal: str) -> list[Line] | None:
    """The lines a goal names; None if some do not exist or are named twice."""
    named: list[Line] = []
    labels, end = labels_of(task), 0
    for first, last in find_spans(goal):
        lines = lines_in(task, first, last, labels) if first > end else None
        if lines is None:
            return None
        named, end = named + lines, last
    return named or None
