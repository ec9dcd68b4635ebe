"""Parts of a question in a file of JSON lines: smaller questions with their answers, which clones are asked.

    {"question": "Is Rome older than Oslo?", "answer": "yes",
     "parts": [{"question": "When was Rome founded?", "answer": "-753", "context": ["Rome"]},
               {"question": "When was Oslo founded?", "answer": "1048", "context": ["Oslo"]}]}

`context` are keys of the row's texts. The demonstrations of such a row delegate its parts, and a clone whose goal is a
part is graded by the part's answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ramet.interfaces import Ask, Move, View

FIELD = "parts"
MOST_PARTS = 8  # as many clones as one call may start


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A smaller question, its answer, and the keys of the texts that it needs."""

    question: str
    answer: str
    context: tuple[str, ...] = ()


def read_parts(row: Mapping[str, Any]) -> tuple[Part, ...]:
    """The parts of a row that has passed `parts_fault`."""
    listed = cast(list[dict[str, Any]], row.get(FIELD, []))
    return tuple(
        Part(question=part["question"].strip(), answer=part["answer"], context=tuple(part.get("context", ())))
        for part in listed
    )


def find_part(parts: Sequence[Part], goal: str) -> Part | None:
    """The part that is a goal; spaces do not count."""
    words = goal.split()
    return next((part for part in parts if part.question.split() == words), None)


def parts_fault(row: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    """What is wrong with the parts of a row, or None. `keys` are those of its texts."""
    listed: object = row.get(FIELD, [])
    wanted = f"field {FIELD!r} must be a list of at most {MOST_PARTS} objects with 'question' and 'answer'"
    if not isinstance(listed, list) or len(cast(list[object], listed)) > MOST_PARTS:
        return wanted
    for part in cast(list[object], listed):
        if not isinstance(part, dict):
            return wanted
        fields = cast(dict[str, object], part)
        if not all(isinstance(text := fields.get(name), str) and text.strip() for name in ("question", "answer")):
            return wanted
        named = fields.get("context", [])
        texts = cast(list[object], named) if isinstance(named, list) else [named]
        missing = [text for text in texts if text not in keys]
        if missing:
            return f"field {FIELD!r} names the text {missing[0]!r}, which the row does not have"
        if str(fields["question"]).split() == str(row["question"]).split():
            return f"field {FIELD!r} repeats the question: a part is a smaller one"
    return None


class Asker:
    """An oracle that asks clones for the parts, all at once, and then answers."""

    def __init__(self, parts: Sequence[Part], answer: str) -> None:
        self.parts, self.answer = parts, answer

    def move(self, view: View) -> Move:
        if view.depth > 0:
            part = find_part(self.parts, view.goal)
            return Move(answer=self.answer if part is None else part.answer)
        if view.turn == 0:
            return Move(asks=tuple(Ask(goal=part.question, context=part.context) for part in self.parts))
        return Move(answer=self.answer)
