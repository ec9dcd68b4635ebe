"""Sub-questions of a 2WikiMultihopQA row, from its evidences: facts as (subject, relation, value).

Each evidence becomes one step: a question about one supporting page, with its answer. Rows whose evidences do not match
their pages have no steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ramet.errors import ConfigError
from ramet.tasks.check import normalise

Reference = dict[str, Any]
Evidence = tuple[str, str, str]

# By type of question, the earlier steps whose values each step needs.
AFTER: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "compositional": ((), (0,)),
    "inference": ((), (0,)),
    "comparison": ((), ()),
    "bridge_comparison": ((), (), (0,), (1,)),
}
MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
YEAR = re.compile(r"\b\d{3,4}\b")
DAY = re.compile(r"\b\d{1,2}\b")


def evidence_steps(row: Mapping[str, Any], where: str) -> list[Reference] | None:
    """The steps of a row, without their questions; None if it has no evidences or they do not match its pages."""
    kind = row["meta"].get("type")
    evidences, after = _evidences(row, where), AFTER.get(kind) if isinstance(kind, str) else None
    pages = {entry["title"]: entry["text"] for entry in row["context"] if entry.get("supporting") is True}
    if not evidences or after is None or len(evidences) != len(after):
        return None
    titles = _titles([subject for subject, _, _ in evidences], list(pages))
    if titles is None or not all(_states(pages[title], fact[2]) for title, fact in zip(titles, evidences, strict=True)):
        return None
    return [
        {"title": title, "relation": relation, "answer": value, "after": list(needed)}
        for title, (_, relation, value), needed in zip(titles, evidences, after, strict=True)
    ]


def _evidences(row: Mapping[str, Any], where: str) -> list[Evidence]:
    values: object = row["meta"].get("evidences") or []
    wrong = ConfigError(f"{where}: field 'meta.evidences' must be a list of [subject, relation, value], all texts")
    if not isinstance(values, list):
        raise wrong
    evidences: list[Evidence] = []
    for value in cast(list[object], values):
        fact = cast(list[object], value) if isinstance(value, list) else []
        if len(fact) != 3 or not all(isinstance(text, str) for text in fact):
            raise wrong
        evidences.append(cast(Evidence, tuple(fact)))
    return evidences


def _titles(subjects: Sequence[str], titles: Sequence[str]) -> list[str] | None:
    """The page of each subject: by name, and the last page for a subject with another name; None if unclear."""
    found = [next((title for title in titles if _name(title) == _name(subject)), None) for subject in subjects]
    left = [title for title in titles if title not in found]
    named = [left.pop() if title is None and len(left) == 1 else title for title in found]
    known = [title for title in named if title is not None]
    return known if len(set(known)) == len(subjects) else None


def _name(title: str) -> str:
    """A title without what is in brackets at its end: `Sand Castle (1951 film)` is `Sand Castle`."""
    return normalise(title.partition(" (")[0])


def _states(text: str, value: str) -> bool:
    return f" {normalise(value)} " in f" {normalise(text)} "


def comparison(steps: Sequence[Reference], answer: str) -> str:
    """What a comparison concludes from its last two steps: each side with its value, and how they compare.

    Example:
        Sand Castle: 3 May 1951. Ice Castle: 1948. 1948 is earlier.
    """
    last = steps[-2:]
    sides = [_side(step, steps) for step in last]
    listed = " ".join(f"{side}: {step['answer']}." for side, step in zip(sides, last, strict=True))
    if normalise(answer) in ("yes", "no"):
        return f"{listed} {'The same' if normalise(answer) == 'yes' else 'Not the same'}."
    first, second = (_date(step["answer"]) for step in last)
    if first is None or second is None or first == second:
        return listed
    return f"{listed} {last[first > second]['answer']} is earlier."


def _side(step: Reference, steps: Sequence[Reference]) -> str:
    """The side of a comparison that a last step belongs to: the page with which it begins."""
    needed: list[int] = step["after"]
    return (steps[needed[0]] if needed else step)["title"]


def _date(text: str) -> tuple[int, int, int] | None:
    """Year, month and day of a date; 0 for what it does not state."""
    year, words = YEAR.search(text), normalise(text).split()
    day = DAY.search(YEAR.sub("", text))
    month = next((MONTHS.index(word) + 1 for word in words if word in MONTHS), 0)
    return None if year is None else (int(year.group()), month, int(day.group()) if day else 0)


def outline(paths: Sequence[Sequence[str]]) -> str:
    """The relations of a question in the order in which they are followed, one path per side of a comparison.

    Example:
        outline([["director", "date of birth"]])  # "Plan: director, then date of birth."
        outline([["born"], ["born"]])             # "Plan: born of both, then compare."
    """
    chains = [", then ".join(path) for path in paths]
    if len(chains) == 1:
        return f"Plan: {chains[0]}."
    both = f"{chains[0]} of both" if chains[0] == chains[1] else "; ".join(chains)
    return f"Plan: {both}, then compare."
