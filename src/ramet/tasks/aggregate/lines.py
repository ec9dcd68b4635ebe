"""Lines to count over, in pages: requests of a topic that only their words tell, or turns of a transcript."""

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
    """One line, and what is known of it."""

    text: str
    topic: str = ""

    @property
    def month(self) -> str:
        found = REQUEST.match(self.text)
        return found[1] if found else ""

    @property
    def user(self) -> str:
        found = REQUEST.match(self.text)
        return found[2] if found else ""

    @property
    def speakers(self) -> list[str]:
        found = TURN.match(self.text)
        return [name.strip() for name in re.split(r",| - ", found[1])] if found else []

    @property
    def said(self) -> str:
        found = TURN.match(self.text)
        return found[2] if found else ""


def pages(lines: Sequence[str], size: int) -> dict[str, str]:
    """The lines as texts by key: `lines 1-50`, `lines 51-100` and so on."""
    starts = range(0, len(lines), size)
    return {f"lines {a + 1}-{min(a + size, len(lines))}": "\n".join(lines[a : a + size]) for a in starts}


def keys_of(task: Task, first: int, last: int) -> list[str]:
    """The pages that hold any of these lines."""
    return [key for key in task.context if first <= bounds(key)[1] and bounds(key)[0] <= last]


def bounds(key: str) -> tuple[int, int]:
    found = KEY.fullmatch(key)
    if found is None:
        raise AssertionError(f"{key!r} is not a page")
    return int(found[1]), int(found[2])


def spans_in(goal: str) -> list[tuple[int, int]]:
    """The ranges of lines that a goal names, each once."""
    return sorted({(int(a), int(b)) for a, b in NAMED.findall(goal)})


def lines_of(task: Task, key: str, topics: Sequence[str]) -> list[Line]:
    """The lines of a page with their topics, if they are known."""
    numbered = enumerate(task.context[key].split("\n"), start=bounds(key)[0])
    return [Line(text, topics[number - 1] if topics else "") for number, text in numbered]


def lines_in(task: Task, first: int, last: int, topics: Sequence[str]) -> list[Line] | None:
    """Lines first to last; None when there are no such lines."""
    found: list[Line] = []
    for key in keys_of(task, first, last):
        at = bounds(key)[0]
        found += lines_of(task, key, topics)[max(0, first - at) : last - at + 1]
    return found if first <= last and len(found) == last - first + 1 else None


# What a task holds.


def held(task: Task) -> dict[str, Any]:
    return cast(dict[str, Any], task.reference)


def truth(task: Task) -> tuple[Kind, list[str]]:
    """What the answer is, and of which kind; for a list, its items."""
    answer: str = held(task)["answer"]
    items = [item for item in answer.split(", ") if item != "none"]
    kind: Kind = held(task)["kind"]
    return kind, items if kind == "list" else [answer]


def topics_of(task: Task) -> list[str]:
    return held(task)["topics"]


def labels_of(task: Task) -> list[str]:
    """The topic of every line, or nothing."""
    topics = topics_of(task)
    return [topics[label] for label in held(task)["labels"]]


def named_lines(task: Task, goal: str) -> list[Line] | None:
    """The lines a goal names, if they exist and none is named twice."""
    found: list[Line] = []
    labels, at = labels_of(task), 0
    for first, last in spans_in(goal):
        lines = lines_in(task, first, last, labels) if first > at else None
        if lines is None:
            return None
        found, at = found + lines, last
    return found or None
