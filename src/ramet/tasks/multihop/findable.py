"""Whether the pages of a row can be found by their titles, which are all that a root sees of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ramet.tasks.check import normalise

SHORTEST = 4  # characters of an answer that is looked for inside a title


def is_findable(question: str, reference: Mapping[str, Any]) -> bool:
    """Whether the title of every step's page is in the question, or is the answer of a step that it needs.

    Titles count without what is in brackets or after a comma; an answer may also be a part of the title. Rows without
    steps are not findable.

    Example:
        is_findable("Who is the spouse of the author of Emma?", {"steps": [...]})
        # True with the pages Emma (novel) and Jane Austen, if the first step answers Jane Austen
    """
    steps = cast(Sequence[dict[str, Any]], reference.get("steps", []))
    asked = normalise(question)

    def is_named(step: dict[str, Any]) -> bool:
        needed: list[int] = step["after"]
        return _is_named(step["title"], asked, [normalise(steps[place]["answer"]) for place in needed])

    return bool(steps) and all(map(is_named, steps))


def _is_named(title: str, question: str, answers: Sequence[str]) -> bool:
    plain = title.partition(" (")[0]
    whole, names = normalise(plain), {normalise(plain), normalise(plain.partition(", ")[0])}
    if any(name and _has(question, name) for name in names):
        return True
    return any(answer in names or (len(answer) >= SHORTEST and _has(whole, answer)) for answer in answers)


def _has(text: str, words: str) -> bool:
    return f" {words} " in f" {text} "
