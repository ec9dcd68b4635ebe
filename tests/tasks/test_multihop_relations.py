"""Invented worlds with many relations, demonstrations that follow one hop per clone, and rows with findable pages."""

from __future__ import annotations

import functools
import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

from ramet.errors import ConfigError
from ramet.tasks.check import normalise
from ramet.tasks.dice import Dice
from ramet.tasks.multihop.fiction import ALL, FEW, MANY, RELATIONS, Chain, Fiction, ask, draw, invent, phrase, say
from ramet.tasks.multihop.findable import is_findable
from ramet.tasks.multihop.taskset import Multihop
from ramet.tasks.play import demonstrate
from ramet.tasks.registry import load_taskset
from ramet.tasks.validate import validate

MANY_HOPS = Multihop(pages=32, hops=(2, 4), relations="many", style="uniform", one_hop=True)


# Relations.


def test_many_relations_are_the_few_and_more() -> None:
    assert FEW.relations == RELATIONS
    assert list(MANY.relations)[: len(RELATIONS)] == list(RELATIONS)
    assert len(ALL) == 100
    kinds = Counter(relation.kind for relation in ALL.values())
    assert min(kinds.values()) >= 10
    for name, relation in RELATIONS.items():  # so that canonical wordings do not depend on the grammar
        assert (ALL[name].asks[0], ALL[name].says, ALL[name].phrases) == (
            relation.asks[0],
            relation.says,
            relation.phrases,
        )


def test_no_two_relations_share_a_wording() -> None:
    for words in (
        [normalise(text) for relation in ALL.values() for text in relation.asks],
        [normalise(text) for relation in ALL.values() for text in relation.phrases],
    ):
        assert [text for text, times in Counter(words).items() if times > 1] == []


def test_every_question_with_many_relations_is_parsed_to_its_query() -> None:
    dice, asked = Dice("many"), Counter[str]()
    for _ in range(6):
        facts, _ = invent(dice, 32, MANY)
        world = Fiction(facts, MANY)
        for entity, known in facts.items():
            for relation in known:
                query = Chain(entity, (relation,))
                for wording in (ask(query), *(ask(query, dice, MANY) for _ in range(3))):
                    assert world.understand(wording) == query, wording
                asked[relation] += 1
        for hops in (2, 3, 4):
            query = draw(world, dice, hops, compare=False)
            if query is not None:
                assert world.understand(ask(query, dice, MANY)) == query
    assert len(asked) > 60


def test_a_world_has_a_few_of_the_relations_of_each_kind() -> None:
    facts, pages = invent(Dice("one world"), 32, MANY)
    used = {relation for known in facts.values() for relation in known}
    by_kind = Counter(ALL[relation].kind for relation in used)
    assert max(by_kind.values()) <= 5
    other = {relation for known in invent(Dice("another"), 32, MANY)[0].values() for relation in known}
    assert used != other
    for name, known in facts.items():
        assert all(value in pages[name] for value in known.values())


def test_phrases_of_nouns_nest() -> None:
    assert phrase(Chain("Selram Fox", ("first mate", "tutor"))) == "the tutor of the first mate of Selram Fox"
    assert ask(Chain("Selram Fox", ("first mate", "died"))) == "When did the first mate of Selram Fox die?"
    assert say("Selram Fox", "first mate", "Orna Keld") == "Selram Fox has Orna Keld as its first mate."


def test_with_few_relations_a_noun_of_the_others_is_not_understood() -> None:
    facts = {"Orna Keld": {"heir": "Tam Rask"}, "Tam Rask": {"born": "1920"}}
    assert Fiction(facts).understand("Who is the tutor of Orna Keld?") is None
    assert Fiction(facts, MANY).understand("Who is the tutor of Orna Keld?") is None  # not a fact
    assert Fiction(facts).understand("When was Tam Rask born?") is None  # a question of the many
    assert Fiction(facts, MANY).understand("When was Tam Rask born?") == Chain("Tam Rask", ("born",))


@pytest.mark.parametrize("split", ["train", "eval", "long"])
def test_the_oracle_is_right_with_many_relations(split: str) -> None:
    report = anyio.run(functools.partial(validate, MANY_HOPS, split, num_tasks=3))
    assert report.faults == []


def test_the_share_of_comparisons_can_be_chosen() -> None:
    compared = re.compile(r" (earlier|later), .* or ")
    for share, least, most in ((0.0, 0, 0), (1.0, 20, 20)):
        taskset = Multihop(comparisons=share)
        found = sum(bool(compared.search(taskset.task("train", index).question)) for index in range(20))
        assert least <= found <= most


# One hop per clone.


def test_with_one_hop_a_root_passes_only_pages_whose_titles_it_has_read() -> None:
    lengths: set[int] = set()
    for index in range(20):
        task = MANY_HOPS.task("train", index)
        tree = anyio.run(functools.partial(demonstrate, MANY_HOPS, task, seed=index))
        read = normalise(task.question)
        for turn in tree.root.turns:
            for child in turn.children:
                (page,) = tree.nodes[child].texts
                assert normalise(page) in read
            read += " " + " ".join(normalise(tree.nodes[child].answer or "") for child in turn.children)
        lengths.add(len(tree.root.turns))
        assert tree.root.verdict is not None
        assert tree.root.verdict.score == 1.0
    assert {3, 4, 5} <= lengths  # two, three and four hops, and the answer


def test_without_one_hop_the_second_half_of_three_hops_needs_a_title_that_no_clone_has_named() -> None:
    taskset = Multihop(hops=3, comparisons=0.0, style="uniform")
    tree = anyio.run(functools.partial(demonstrate, taskset, taskset.task("train", 0)))
    assert [len(tree.nodes[turn.children[0]].texts) for turn in tree.root.turns if turn.children] == [1, 2]


# Rows.


def step(title: str, answer: str, *after: int) -> dict[str, Any]:
    return {"title": title, "answer": answer, "after": list(after)}


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([step("Emma (novel)", "Jane Austen"), step("Jane Austen", "Bath", 0)], True),
        ([step("Emma (novel)", "Jane Austen"), step("Jane Austen, novelist", "Bath", 0)], True),
        ([step("Emma (novel)", "Notus"), step("Notus Valley", "Bath", 0)], True),
        ([step("Emma (novel)", "Jane Austen"), step("Bath society", "Bath", 0)], False),  # never named
        ([step("English novels", "Jane Austen"), step("Jane Austen", "Bath", 0)], False),
        ([step("Emma (novel)", "Jane Austen"), step("Jane Austen", "Bath")], False),  # does not use that answer
        ([step("Emma (novel)", "a"), step("A town", "Bath", 0)], False),  # too short to be looked for
        ([], False),
    ],
)
def test_pages_are_findable_by_the_question_and_earlier_answers(steps: list[dict[str, Any]], *, found: bool) -> None:
    assert is_findable("Where did the author of Emma live?", {"steps": steps}) is found


def write_row(first: str, second: str) -> str:
    pages = [("Emma", "Emma is by Jane Austen."), (second, "Jane Austen lived in Bath.")]
    steps = [("Emma >> author", "Jane Austen", "Emma"), ("#1 >> residence", "Bath", second)]
    row = {
        "id": first,
        "question": f"Where did the author of Emma live, {first}?",
        "answer": "Bath",
        "context": [{"title": title, "text": text, "supporting": True} for title, text in pages],
        "meta": {"decomposition": [dict(zip(("question", "answer", "title"), entry, strict=True)) for entry in steps]},
    }
    return json.dumps(row) + "\n"


def test_a_split_can_have_only_its_findable_rows(tmp_path: Path) -> None:
    rows = [
        write_row("one", "Town life"),
        write_row("two", "Jane Austen"),
        write_row("three", "Jane Austen (novelist)"),
    ]
    with gzip.open(tmp_path / "musique_eval.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(rows)
    assert Multihop(data=tmp_path).size("musique_eval") == 3
    taskset = Multihop(data=tmp_path, findable=True)
    assert taskset.size("musique_eval") == 2
    assert [taskset.task("musique_eval", index).question.split()[-1] for index in range(2)] == ["two?", "three?"]
    with pytest.raises(ConfigError, match="has tasks 0 to 1, not 2"):
        taskset.task("musique_eval", 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relations": "mnay"}, "multihop has no relations 'mnay'"),
        ({"comparisons": 1.5}, "multihop: comparisons is a share from 0 to 1; got 1.5"),
        ({"one_hop": 1}, "multihop: one_hop is true or false; got 1"),
        ({"findable": "yes"}, "multihop: findable is true or false; got 'yes'"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_taskset("multihop", **options)
