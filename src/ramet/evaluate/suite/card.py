"""The card of a model: what a suite found, as plain data that can be published and compared.

A card has the score of every item, so two models are compared item by item. Cards of another suite, size, dialect or
hash are not compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import ramet
from ramet.errors import ConfigError
from ramet.evaluate.format import points, share, verdict
from ramet.evaluate.record import Record
from ramet.evaluate.statistics import Difference, difference
from ramet.evaluate.tables import cell_facts, make_section
from ramet.store.atomic import write_text
from ramet.types import is_right

if TYPE_CHECKING:
    from ramet.evaluate.session import Evaluation
    from ramet.evaluate.suite.definition import Part
    from ramet.evaluate.suite.run import SuiteRun

VERSION = 1  # of the format
CARD = "card.json"
SAME = ("card", "suite", "size", "dialect", "hash")  # in which two cards must agree
DELEGATING, ALONE = "clones", "single"
PAYS, COSTS, UNKNOWN = "pays", "does not pay", "cannot tell"
FEW = "few items differ"


def make_card(
    plan: SuiteRun, finished: Sequence[tuple[Part, Evaluation]], skipped: Mapping[str, str], *, model: Mapping[str, Any]
) -> dict[str, Any]:
    """The card of a suite."""
    parts = [_part(part, evaluation) for part, evaluation in finished]
    records = [record for _, evaluation in finished for record in evaluation.records]
    return {
        "card": VERSION,
        "suite": plan.suite.name,
        "about": plan.suite.about,
        "size": plan.size,
        "dialect": plan.dialect,
        "hash": plan.hash,
        "complete": not skipped,
        "model": dict(model),
        "ramet": ramet.__version__,
        "date": datetime.now(UTC).date().isoformat(),
        "parts": parts,
        "skipped": [{"name": name, "reason": reason} for name, reason in skipped.items()],
        "overall": _comparisons(_largest_budgets(records)) if records else [],
    }


def _part(part: Part, evaluation: Evaluation) -> dict[str, Any]:
    section = make_section({"": evaluation.records})
    return {
        "name": part.name,
        "about": part.about,
        "task": part.task,
        "items": len({record.task for record in evaluation.records}),
        "cells": [cell_facts(cell) for cell in section.cells],
        "comparisons": [
            {"budget": budget, **fact}
            for budget in section.budgets
            for fact in _comparisons([record for record in evaluation.records if record.budget == budget])
        ],
        "scores": _scores(evaluation.records),
    }


def _scores(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The score of every item, by method and budget."""
    found: dict[tuple[str, int | None], dict[str, float]] = {}
    for record in records:
        found.setdefault((record.method, record.budget), {})[record.task] = record.score
    return [{"method": method, "budget": budget, "items": items} for (method, budget), items in found.items()]


def _largest_budgets(records: Sequence[Record]) -> list[Record]:
    """The records under the largest budget of each part, for a comparison over all of them."""
    largest: dict[str, int] = {}
    for record in records:
        largest[record.task] = max(largest.get(record.task, 0), record.budget or 0)
    return [record for record in records if (record.budget or 0) == largest[record.task]]


def _comparisons(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Delegation against every other method on the same items: accuracy, verdict, and what it costs in comparison."""
    by_method: dict[str, list[Record]] = {}
    for record in records:
        by_method.setdefault(record.method, []).append(record)
    own = by_method.pop(DELEGATING)
    return [
        {"against": method, **_difference_facts(_right(own), _right(others)), "cost": _cost_ratios(own, others)}
        for method, others in by_method.items()
    ]


def _right(records: Sequence[Record]) -> dict[str, float]:
    return {record.task: float(record.is_right) for record in records}


def _difference_facts(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, Any]:
    gap = difference(first, second)
    if gap is None:
        raise AssertionError("both methods have the same items")
    return {"difference": asdict(gap), "points": points(gap), "verdict": verdict(gap), "pays": _pays(gap)}


def _pays(gap: Difference) -> str:
    return {1: PAYS, -1: COSTS, 0: UNKNOWN}[gap.direction]


def _cost_ratios(own: Sequence[Record], others: Sequence[Record]) -> dict[str, float | None]:
    """How many times as much delegation costs: below 1 it is cheaper. None where the other cost is 0 or unknown."""
    ratios: dict[str, float | None] = {}
    for name in ("generated", "prompt", "critical_path", "seconds", "dollars"):
        ours = [getattr(record, name) for record in own]
        theirs = [getattr(record, name) for record in others]
        known = None not in ours and None not in theirs and sum(theirs) > 0
        ratios[name] = sum(ours) / sum(theirs) if known else None
    return ratios


def conclusion(fact: Mapping[str, Any]) -> str:
    """What a comparison shows, in a few words: its verdict without the number of items that would be needed.

    Pages, tables and sentences all have it from here, so that they agree.

    Example:
        conclusion({"verdict": "only 5 items differ: about 350 items needed"})  # "only 5 items differ"
    """
    return str(fact["verdict"]).partition(":")[0]


def headline(card: Mapping[str, Any]) -> list[str]:
    """The findings in sentences: where delegation pays, where it does not, and where that cannot be said."""
    lines = {
        "better": "Delegation pays in {}.",
        "worse": "Delegation makes {} worse.",
        UNKNOWN: "No difference can be shown in {}.",
        FEW: "Too few items differ to tell in {}.",
    }
    groups: dict[str, list[str]] = {kind: [] for kind in lines}
    for part in card["parts"]:
        fact = against_alone(part)
        groups[_kind(fact)].append(f"{part['name']} ({fact['points']} points)")
    found = [lines[kind].format(_listed(names)) for kind, names in groups.items() if names]
    overall = next((fact for fact in card["overall"] if fact["against"] == ALONE), None)
    if overall is not None and len(card["parts"]) > 1:
        found.insert(0, f"Over all {overall['difference']['items']} items {_overall(overall)}.")
    return [*found, f"Where it was allowed to, the model delegated in {share(_delegated(card))} of the items."]


def _overall(fact: Mapping[str, Any]) -> str:
    why = f" ({conclusion(fact)})" if _kind(fact) == FEW else ""
    result = {"better": "delegation pays", "worse": "delegation does not pay"}.get(
        _kind(fact), f"no difference can be shown{why}"
    )
    return f"{result}: {fact['points']} points"


def _kind(fact: Mapping[str, Any]) -> str:
    """`better`, `worse`, `UNKNOWN` or `FEW`: the conclusion without its p."""
    kind = conclusion(fact).partition(" (")[0]
    return kind if kind in ("better", "worse", UNKNOWN) else FEW


def _delegated(card: Mapping[str, Any]) -> float:
    """The share of items in which anything was delegated, of those in which it could be."""
    cells = [cell for part in card["parts"] for cell in part["cells"] if cell["method"] == DELEGATING]
    return sum(cell["delegated"] * cell["items"] for cell in cells) / max(1, sum(cell["items"] for cell in cells))


def against_alone(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """The comparison of delegation with one agent alone, under the largest budget."""
    facts = [fact for fact in part["comparisons"] if fact["against"] == ALONE]
    return max(facts, key=lambda fact: fact.get("budget") or 0)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# Files.


def write_card(card: Mapping[str, Any], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(card, indent=1, ensure_ascii=False) + "\n")


def read_card(file: Path | str) -> dict[str, Any]:
    """A card from its file, or from the directory that a suite was run in."""
    if Path(file).is_dir():
        if not (Path(file) / CARD).is_file():
            accepted = f"give the {CARD} that ramet eval suite:NAME wrote, or its directory"
            raise ConfigError(f"{file} is a directory without {CARD}: {accepted}")
        file = Path(file) / CARD
    try:
        found: object = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON: {error}") from None
    if not isinstance(found, dict) or any(name not in found for name in (*SAME, "model", "parts")):
        raise ConfigError(f"{file} is not a card of a suite: ramet eval suite:NAME writes one, {CARD}")
    return cast(dict[str, Any], found)


# Two cards.


def compare_cards(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The second card minus the first, by part, method and budget, item by item. Unlike cards are refused."""
    for name in SAME:
        if first[name] != second[name]:
            values = f"{_short(first[name])} and {_short(second[name])}"
            raise ConfigError(f"these cards cannot be compared: their {name} differs ({values})")
    others = {part["name"]: part for part in second["parts"]}
    rows = [
        row for part in first["parts"] if part["name"] in others for row in _compare_part(part, others[part["name"]])
    ]
    if not rows:
        raise ConfigError("these cards cannot be compared: no part is on both")
    return rows


def _compare_part(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    after = {(cell["method"], cell["budget"]): cell["items"] for cell in second["scores"]}
    rows: list[dict[str, Any]] = []
    for cell in first["scores"]:
        items, others = cell["items"], after.get((cell["method"], cell["budget"]))
        if others is None or set(items) != set(others):
            raise ConfigError(f"these cards cannot be compared: {first['name']} has other items")
        before = {task: float(is_right(score)) for task, score in items.items()}
        now = {task: float(is_right(score)) for task, score in others.items()}
        shares = {"first": sum(before.values()) / len(before), "second": sum(now.values()) / len(now)}
        named = {"part": first["name"], "method": cell["method"], "budget": cell["budget"], "items": len(before)}
        facts = _difference_facts(now, before)
        rows.append({**named, **shares, **{key: facts[key] for key in ("difference", "points", "verdict")}})
    return rows


def _short(value: object) -> str:
    return str(value)[:12]
