"""2Wiki rows: evidences become checked sub-questions, and pages of other rows can be mixed in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramet.errors import ConfigError
from ramet.interfaces import View
from ramet.tasks.multihop.evidences import comparison, evidence_steps, outline
from ramet.tasks.multihop.plans import row_accepts, row_reference
from ramet.tasks.multihop.taskset import Multihop


def page(title: str, text: str, *, supporting: bool = True) -> dict[str, Any]:
    return {"title": title, "text": text, "supporting": supporting}


DIED = "Which film has the director who died first, Sand Castle or Ice Castle?"
BRIDGE: dict[str, Any] = {
    "id": "2wiki-2",
    "question": DIED,
    "answer": "Ice Castle",
    "context": [
        page("Sand Castle (1951 film)", "A film by Jean Mot."),
        page("Eva Bo", "Eva Bo ( 1900 – May 7, 1950) made films."),
        page("Jean Mot (director)", "Jean Mot died on 3 May 1960."),
        page("Ice Castle", "Eva Boe directed it."),
        page("Tin Castle", "A toy.", supporting=False),
    ],
    "meta": {
        "type": "bridge_comparison",
        "evidences": [
            ["Sand Castle", "director", "Jean Mot"],
            ["Ice Castle", "director", "Eva Boe"],
            ["Jean Mot", "date of death", "3 May 1960"],
            ["Eva Boe", "date of death", "May 7, 1950"],
        ],
    },
}
LAND: dict[str, Any] = {
    "id": "2wiki-3",
    "question": "Are Aa and Bb in the same country?",
    "answer": "no",
    "context": [page("Aa", "Aa is in Chad."), page("Bb", "Bb is in Peru.")],
    "meta": {"type": "comparison", "evidences": [["Aa", "country", "Chad"], ["Bb", "country", "Peru"]]},
}


def changed(row: dict[str, Any], **meta: Any) -> dict[str, Any]:
    return row | {"meta": row["meta"] | meta}


def write_rows(folder: Path, *rows: dict[str, Any]) -> Path:
    (folder / "2wiki_eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_each_evidence_is_a_step_about_one_page():
    steps = evidence_steps(BRIDGE, "here")
    assert steps is not None
    assert [(step["title"], step["answer"], step["after"]) for step in steps] == [
        ("Sand Castle (1951 film)", "Jean Mot", []),
        ("Ice Castle", "Eva Boe", []),
        ("Jean Mot (director)", "3 May 1960", [0]),
        ("Eva Bo", "May 7, 1950", [1]),  # the only page left, under another name
    ]


@pytest.mark.parametrize(
    "row",
    [
        changed(BRIDGE, evidences=[]),
        changed(BRIDGE, type="comparison"),  # two evidences are wanted
        changed(BRIDGE, type="unheard of"),
        changed(LAND, evidences=[["Aa", "country", "Chad"], ["Bb", "country", "Mali"]]),  # not on its page
        changed(LAND, evidences=[["Cc", "country", "Chad"], ["Dd", "country", "Peru"]]),  # two pages for two subjects
        changed(LAND, evidences=[["Aa", "country", "Chad"], ["Aa", "country", "Chad"]]),
    ],
)
def test_rows_whose_evidences_do_not_fit_keep_their_supporting_pages(row: dict[str, Any]):
    assert evidence_steps(row, "here") is None
    assert "supporting" in row_reference(row, "here")


@pytest.mark.parametrize("evidences", ["Aa", [["Aa", "country"]], [["Aa", "country", 3]], ["Aa country Chad"]])
def test_malformed_evidences_are_refused(evidences: object):
    with pytest.raises(ConfigError, match=r"here: field 'meta\.evidences' must be a list of"):
        evidence_steps(changed(LAND, evidences=evidences), "here")


def test_clones_are_checked_on_their_step_and_never_by_the_answer_of_a_comparison():
    reference = row_reference(BRIDGE, "here")
    accepted = {step["goal"]: row_accepts(step["goal"], DIED, reference) for step in reference["steps"]}
    assert accepted == {
        "Who is the director of Sand Castle (1951 film)?": ("Jean Mot", "Jean Mot"),
        "Who is the director of Ice Castle?": ("Eva Boe", "Eva Bo"),  # the page has another spelling
        "What is the date of death of Jean Mot (director)?": ("3 May 1960",),
        "What is the date of death of Eva Bo?": ("May 7, 1950",),
    }
    assert row_accepts(DIED, DIED, reference) == ("Ice Castle",)


def test_a_comparison_names_both_sides_with_their_values():
    reference = row_reference(BRIDGE, "here")
    assert comparison(reference["steps"], "Ice Castle") == (
        "Sand Castle (1951 film): 3 May 1960. Ice Castle: May 7, 1950. May 7, 1950 is earlier."
    )
    steps = row_reference(LAND, "here")["steps"]
    assert comparison(steps, "no") == "Aa: Chad. Bb: Peru. Not the same."
    assert comparison(steps, "yes") == "Aa: Chad. Bb: Peru. The same."
    assert comparison(steps, "Aa") == "Aa: Chad. Bb: Peru."


@pytest.mark.parametrize(
    ("one", "other", "earlier"),
    [
        ("1951", "3 May 1950", "3 May 1950"),
        ("June 9, 1956", "May 10, 1956", "May 10, 1956"),
        ("9 May 1956", "May 10, 1956", "9 May 1956"),
        ("987", "1002", "987"),
    ],
)
def test_dates_are_compared_by_year_month_and_day(one: str, other: str, earlier: str):
    steps: list[dict[str, Any]] = [{"title": title, "answer": "", "after": []} for title in "AB"]
    for values in ((one, other), (other, one)):
        dated = [step | {"answer": value} for step, value in zip(steps, values, strict=True)]
        assert comparison(dated, "A").endswith(f". {earlier} is earlier.")


def test_an_outline_names_the_relations_in_order():
    assert outline([["director", "date of birth"]]) == "Plan: director, then date of birth."
    assert outline([["born"], ["born"]]) == "Plan: born of both, then compare."
    assert outline([["author", "born"], ["born"]]) == "Plan: author, then born; born, then compare."


def test_the_root_writes_its_plan_what_comes_next_and_what_it_compares(tmp_path: Path):
    taskset = Multihop(data=write_rows(tmp_path, BRIDGE), style="uniform")
    task = taskset.task("2wiki_eval", 0)
    oracle = taskset.oracle(task, delegate=True, seed=0)
    first = oracle.move(View(goal=DIED, depth=0))
    second = oracle.move(View(goal=DIED, depth=0, history=(("Jean Mot", "Eva Boe"),)))
    last = oracle.move(View(goal=DIED, depth=0, history=(("Jean Mot", "Eva Boe"), ("3 May 1960", "May 7, 1950"))))
    assert first.thought == "Plan: director, then date of death of both, then compare."
    assert second.thought == "Next: date of death."
    assert last.thought.endswith("May 7, 1950 is earlier.")
    assert last.answer == "Ice Castle"
    assert [ask.context for ask in (*first.asks, *second.asks)] == [
        ("Sand Castle (1951 film)",),
        ("Ice Castle",),
        ("Jean Mot (director)",),
        ("Eva Bo",),
    ]


def test_pages_of_other_rows_are_mixed_in_and_replace_none(tmp_path: Path):
    same = page("Aa", "Another text under the same title.")
    third = BRIDGE | {"context": [*BRIDGE["context"], same]}
    folder = write_rows(tmp_path, LAND, third)
    plain, more = (Multihop(data=folder, extra_pages=extra).task("2wiki_eval", 0) for extra in (0, 3))
    assert list(plain.context) == ["Aa", "Bb"]
    assert len(more.context) == 5
    assert {title: more.context[title] for title in plain.context} == plain.context
    assert set(more.context) - set(plain.context) <= {entry["title"] for entry in BRIDGE["context"]}
    assert more == Multihop(data=folder, extra_pages=3).task("2wiki_eval", 0)
    assert (plain.question, plain.reference) == (more.question, more.reference)
    with pytest.raises(ConfigError, match="has 5 pages of other rows; extra_pages is 6"):
        Multihop(data=folder, extra_pages=6).task("2wiki_eval", 0)
