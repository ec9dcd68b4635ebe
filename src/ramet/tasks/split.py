"""Cut a task into parts by a fixed rule: the controls `split@K` and `chain` of an evaluation use it.

A taskset may have a rule of its own (`SplitsTask`). Otherwise the texts of a task are dealt out in equal parts, each
with the same question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from ramet.interfaces import Ask, Taskset, TaskWorld
from ramet.tasks.registry import TASKSETS, taskset_class
from ramet.types import Task

SHORTEST_PIECE = 200  # characters; shorter texts are not cut
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The parts of a task, and how their answers are put together. Without parts, the task cannot be cut.

    `steps` are the goals of a chain, with `{}` for the answer so far; None: the goals of the parts, followed by it.
    """

    parts: tuple[Ask, ...] = ()
    combine: str = ""
    steps: tuple[str, ...] | None = None
    texts: Mapping[str, str] | None = None  # by key, if texts were cut into pieces; None: those of the task


@runtime_checkable
class SplitsTask(Protocol):
    """A taskset with a rule that cuts its tasks into at most so many parts, without looking at the reference."""

    def split(self, task: Task, parts: int) -> Split: ...


def split_task(taskset: Taskset, task: Task, parts: int) -> Split:
    """The task in at most `parts` parts: by the rule of its taskset, else its texts dealt out."""
    if isinstance(taskset, SplitsTask):
        return taskset.split(task, parts)
    return deal_texts(task, parts, cut=type(taskset.world(task)) is TaskWorld)


def can_split(taskset: Taskset, task: Task) -> bool:
    """Whether there is a rule for such tasks."""
    return isinstance(taskset, SplitsTask) or bool(task.context)


def splittable() -> list[str]:
    """The names of the tasksets with a rule of their own."""
    return [name for name in TASKSETS if hasattr(taskset_class(name), "split")]


def chunks(weights: Sequence[float], parts: int) -> list[range]:
    """Places of consecutive items in at most `parts` chunks of nearly equal weight, none of them empty.

    Example:
        chunks([1, 1, 1, 1], 2)  # [range(0, 2), range(2, 4)]
        chunks([9, 1, 1], 2)     # [range(0, 1), range(1, 3)]
    """
    total = sum(weights)
    found: list[list[int]] = [[] for _ in range(parts)]
    before = 0.0
    for place, weight in enumerate(weights):
        middle = (before + weight / 2) / total if total else (place + 0.5) / len(weights)
        found[min(parts - 1, int(parts * middle))].append(place)
        before += weight
    return [range(group[0], group[-1] + 1) for group in found if group]


def deal_texts(task: Task, parts: int, *, cut: bool = True) -> Split:
    """The texts of a task in equal parts, each with the question. With `cut`, long texts are cut into pieces."""
    texts = cut_texts(task.context, parts) if cut else dict(task.context)
    keys = list(texts)
    groups = [[keys[place] for place in chunk] for chunk in chunks([len(texts[key]) for key in keys], parts)]
    if len(groups) < 2:
        return Split()
    asks = tuple(
        Ask(goal=part_goal(task.question, place, len(groups)), context=tuple(group))
        for place, group in enumerate(groups, start=1)
    )
    return Split(parts=asks, texts=texts if texts != dict(task.context) else None)


def part_goal(question: str, place: int, parts: int) -> str:
    """The goal of a clone that has one part of the texts."""
    more = "If it is not enough to answer, report what in it helps to answer."
    return f"{question}\n\nYou have part {place} of {parts} of the texts. {more}"


def cut_texts(texts: Mapping[str, str], parts: int) -> dict[str, str]:
    """At least `parts` texts, if they are long enough: the longest ones are cut into pieces between words.

    Example:
        list(cut_texts({"a": "x " * 200, "b": "y"}, 3))  # ["a (part 1 of 2)", "a (part 2 of 2)", "b"]
    """
    number = dict.fromkeys(texts, 1)
    while number and sum(number.values()) < parts:
        longest = max(number, key=lambda key: len(texts[key]) / number[key])
        if len(texts[longest]) / (number[longest] + 1) < SHORTEST_PIECE:
            break
        number[longest] += 1
    cut: dict[str, str] = {}
    for key, text in texts.items():
        pieces = _pieces(text, number[key])
        named = [key] if len(pieces) == 1 else [f"{key} (part {i} of {len(pieces)})" for i in range(1, len(pieces) + 1)]
        cut |= zip(named, pieces, strict=True)
    return cut


def _pieces(text: str, number: int) -> list[str]:
    """A text in pieces of nearly equal length, cut after white space."""
    if number == 1:
        return [text]
    words = text.splitlines(keepends=True) if text.count("\n") >= number else text.split(" ")
    glue = "" if text.count("\n") >= number else " "
    return [glue.join(words[place] for place in chunk) for chunk in chunks([len(word) + 1 for word in words], number)]
