"""Questions over pages: every question has one answer, every clone can be checked, and nothing leaks."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.errors import ConfigError
from ramet.interfaces import TaskWorld, View
from ramet.tasks.check import normalise
from ramet.tasks.dice import Dice
from ramet.tasks.multihop.fiction import RELATIONS, Chain, Comparison, Fiction, ask, draw, invent, phrase
from ramet.tasks.multihop.fiction_words import FILLERS
from ramet.tasks.multihop.plans import key_sentence, row_accepts, row_reference
from ramet.tasks.multihop.taskset import Multihop
from ramet.tasks.play import demonstrate
from ramet.tasks.registry import find_task, load_taskset
from ramet.tasks.validate import validate
from ramet.types import Node, Task, Tree

MULTIHOP = Multihop()
INVENTED = ("train", "eval", "long")
WORLD = Fiction(
    {
        "The Pale Moth": {"author": "Orna Keld", "published": "1960"},
        "The Idle Bell": {"author": "Tam Rask", "published": "1960"},
        "Orna Keld": {"born": "1901", "employer": "Dalvox Works", "heir": "Tam Rask"},
        "Tam Rask": {"born": "1920", "birthplace": "Fenham"},
        "Dalvox Works": {"founded": "1955", "product": "straw hats", "founder": "Tam Rask"},
        "Fenham": {"settled": "1320"},
    }
)

# Rows in the schema of the data folder, one of each kind.
TWO_WIKI = {
    "id": "2wiki-1",
    "question": "Where did the director of film Sand Castle (1951 Film) die?",
    "answer": "Lille",
    "context": [
        {"title": "Other Castle", "text": "Other Castle is a ruin in Spain.", "supporting": False},
        {"title": "Sand Castle (1951 film)", "text": "A film. It was directed by Jean Mot.", "supporting": True},
        {"title": "Jean Mot", "text": "Jean Mot was a director. He died in Lille.", "supporting": True},
        {"title": "Jean Bot", "text": "Jean Bot died in Paris.", "supporting": False},
    ],
    "meta": {
        "dataset": "2wikimultihopqa",
        "type": "compositional",
        "evidences": [["Sand Castle", "director", "Jean Mot"], ["Jean Mot", "place of death", "Lille"]],
        "verify": "em_f1",
    },
}
MUSIQUE = {
    "id": "musique-1",
    "question": "When was the county settled where the spouse of the painter of Breech was born, next to Wend?",
    "answer": "in 1720",
    "aliases": ["1720", "1720 AD"],
    "context": [
        {"title": "Breech", "text": "Breech is a picture by Laura Kite.", "supporting": True},
        {"title": "Kite family", "text": "Laura Kite married Harold Ash of Ivel.", "supporting": True},
        {"title": "Wend", "text": "The Wend flows into the Oder.", "supporting": True},
        {"title": "Ivel County", "text": "Ivel County, on the Oder, was settled in 1720.", "supporting": True},
        {"title": "Breech", "text": "A breech can also be part of a gun.", "supporting": False},
    ],
    "meta": {
        "dataset": "musique",
        "hops": 4,
        "decomposition": [
            {"question": "Breech >> creator", "answer": "Laura Kite", "title": "Breech"},
            {"question": "where was #1 's husband from ?", "answer": "Ivel", "title": "Kite family"},
            {"question": "What river does Wend turn into?", "answer": "the Oder", "title": "Wend"},
            {"question": "When was #2 on #3 settled?", "answer": "in 1720", "title": "Ivel County"},
        ],
    },
}
HOTPOT = {
    "id": "hotpotqa-1",
    "question": "Are Ann Oak and Bob Elm both singers?",
    "answer": "yes",
    "context": [
        {"title": "Ann Oak", "text": "Ann Oak is one of the singers.", "supporting": True},
        {"title": "Tin Elm", "text": "An elm made of tin.", "supporting": False},
        {"title": "Bob Elm", "text": "Born 1950. Bob Elm leads the singers of Rome.", "supporting": True},
    ],
    "meta": {"dataset": "hotpotqa", "type": "comparison", "level": "hard"},
}
ROWS: dict[str, dict[str, Any]] = {"2wiki_eval": TWO_WIKI, "musique_eval": MUSIQUE, "hotpotqa_eval": HOTPOT}


def write_rows(folder: Path) -> Path:
    """A data folder with one row of each kind."""
    for name, row in ROWS.items():
        with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    return folder


def a_node(goal: str, answer: str | None, *, root: bool = False) -> Node:
    return Node(index=0 if root else 1, parent=None if root else 0, depth=0, path=(), goal=goal, grant=9, answer=answer)


def play_oracle(taskset: Any, task: Task, *, dialect: str = "tools", delegate: bool = True, seed: int = 0) -> Tree:
    return anyio.run(functools.partial(demonstrate, taskset, task, dialect=dialect, delegate=delegate, seed=seed))


# Questions about an invented world.


@pytest.mark.parametrize(
    ("goal", "accepted"),
    [
        ("Who wrote The Pale Moth?", ("Orna Keld",)),
        ("who wrote the pale moth", ("Orna Keld",)),
        ("Who wrote the book 'The Pale Moth'? Answer with a name only.", ("Orna Keld",)),
        ("Using the text, find out: in which year was Orna Keld born?", ("1901",)),
        ("In which year was the author of The Pale Moth born?", ("1901",)),
        ("In which year was the company that employs the author of The Pale Moth founded?", ("1955",)),
        ("What does the employer of the writer of The Pale Moth make?", ("straw hats",)),
        ("In which year was the birthplace of the heir of the author of The Pale Moth settled?", ("1320",)),
        ("Who was born earlier, Orna Keld or Tam Rask?", ("Orna Keld",)),
        ("Who was born later, Orna Keld or Tam Rask?", ("Tam Rask",)),
        ("Who was born later, Orna Keld or the founder of Dalvox Works?", ("Tam Rask", "the founder of Dalvox Works")),
    ],
)
def test_a_question_is_parsed_at_any_depth(goal: str, accepted: tuple[str, ...]):
    assert WORLD.accepted(WORLD.understand(goal)) == accepted


@pytest.mark.parametrize(
    "goal",
    [
        "Who wrote The Pale Moths?",  # there is no such book
        "Who wrote Orna Keld?",
        "In which town was Orna Keld born?",  # not on her page
        "In which year was she born?",
        "Who wrote The Pale Moth? Where was he born?",  # two questions
        "Who wrote The Pale Moth and who wrote The Idle Bell?",
        "Which was published earlier, The Pale Moth or The Idle Bell?",  # in the same year
        "Which was published earlier, The Pale Moth or Fenham?",
        "Read the page The Pale Moth",
        "?",
        "",
        "Who is the heir of " + "the heir of " * 100_000 + "Orna Keld?",
    ],
)
def test_other_goals_have_no_verdict(goal: str):
    assert WORLD.understand(goal) is None


@pytest.mark.parametrize("relation", RELATIONS)
def test_every_wording_of_a_question_is_parsed(relation: str):
    asked = RELATIONS[relation]
    world = Fiction({"Ada Belk": {relation: "Corla", "heir": "Ada Belk"}})
    for way in asked.asks:
        assert world.understand(way.format("Ada Belk")) == Chain("Ada Belk", (relation,))
        assert world.understand(way.format("the heir of Ada Belk")) == Chain("Ada Belk", ("heir", relation))
    further = Fiction({"Ada Belk": {relation: "Corla"}, "Corla": {"river": "Elm"}})
    for way in asked.phrases:
        assert further.understand(f"On which river does {way.format('Ada Belk')} lie?") == Chain(
            "Ada Belk", (relation, "river")
        )


def test_every_relation_and_kind_has_its_wordings():
    assert len(RELATIONS) == 22
    assert {relation.kind for relation in RELATIONS.values()} == set(FILLERS)
    for relation in RELATIONS.values():
        assert all(way.count("{}") == 2 for way in relation.says)
        assert all(way.count("{}") == 1 for way in (*relation.asks, *relation.phrases))
        assert bool(relation.phrases) == (relation.value in FILLERS)  # only values with pages have phrases
        assert all(way.endswith("{}") for way in relation.phrases)


# The generator.


def facts_on(page: str) -> dict[str, str]:
    """The facts on a page, parsed from its sentences."""
    found: dict[str, str] = {}
    for sentence in re.findall(r"[^.]+\.", page):
        for name, relation in RELATIONS.items():
            for way in relation.says:
                before, middle, after = map(re.escape, way.split("{}"))
                said = re.fullmatch(f"{before}.+?{middle}(.+){after}", sentence.strip())
                if said and said.group(1)[0].isupper() == (relation.value in (*FILLERS, "river")):
                    found[name] = said.group(1)
    return found


@settings(max_examples=20)
@given(st.integers(), st.integers(8, 30))
def test_a_page_states_the_facts_of_its_entity_and_no_others(seed: int, pages: int):
    facts, texts = invent(Dice("test", seed), pages)
    assert len(texts) == pages == len({normalise(title) for title in texts})
    for title, text in texts.items():
        assert text.startswith(title)
        assert 2 <= text.count(".") <= 5
        assert facts_on(text) == facts[title]
        assert len(facts[title]) >= 2
        others = {one for one in texts if one != title and one in text}
        assert others <= {*facts[title].values()}  # no page names an entity without a fact about it
    seats = [known["capital"] for known in facts.values() if "capital" in known]
    assert len(set(seats)) == len(seats)
    for title, known in facts.items():
        if "capital" in known:  # a capital lies in its province
            assert facts[known["capital"]].get("province", title) == title


@settings(max_examples=40)
@given(st.integers(), st.integers(2, 5), st.booleans())
def test_a_question_needs_one_page_per_hop(seed: int, hops: int, compare: bool):
    dice = Dice("test", seed)
    facts, texts = invent(dice, 24)
    world = Fiction(facts)
    query = next(found for _ in range(2000) if (found := draw(world, dice, hops, compare=compare)))
    assert world.understand(ask(query)) == world.understand(ask(query, dice)) == query
    sides = query.sides if isinstance(query, Comparison) else (query,)
    assert isinstance(query, Comparison) == compare
    walks = [world.walk(side) for side in sides]
    read = [place for walk in walks for place in walk[:-1]]
    assert len(set(read)) == len(read) == hops
    for side, walk in zip(sides, walks, strict=True):
        assert not any(walk[-1] in texts[place] for place in walk[:-2])
        for relation in side.path:  # another page has the same relation
            assert any(relation in known for name, known in facts.items() if name not in walk)


def test_statistics_of_the_splits_are_as_documented():
    compares = 0
    for split, hops, pages in (("train", (2, 3), 16), ("eval", (2, 3), 16), ("long", (4, 5, 6), 32)):
        tasks = [MULTIHOP.task(split, index) for index in range(400)]
        counted = Counter(task.reference["hops"] for task in tasks)  # type: ignore[index]
        assert tuple(sorted(counted)) == hops
        assert min(counted.values()) > 0.75 * 400 / len(hops)
        compares += sum(" or " in task.question for task in tasks)
        assert {len(task.context) for task in tasks} == {pages}
        words = [len(text.split()) for task in tasks for text in task.context.values()]
        assert 25 < sum(words) / len(words) < 29
        assert len({task.question for task in tasks}) > 395
    assert 0.26 < compares / 1200 < 0.34  # three in ten are comparisons


def test_train_and_evaluation_share_no_question():
    questions = {split: {MULTIHOP.task(split, index).question for index in range(300)} for split in INVENTED}
    assert not questions["train"] & questions["eval"]
    assert not questions["long"] & (questions["train"] | questions["eval"])
    other = Multihop(seed=7)
    assert not questions["eval"] & {other.task("train", index).question for index in range(300)}


@pytest.mark.parametrize(
    ("split", "pinned"),
    [
        ("train", "2957b818d8b7b98c"),
        ("eval", "871229b6bd10b2dc"),
        ("long", "ea827cd006c38ad7"),
    ],
)
def test_tasks_are_the_same_on_every_machine(split: str, pinned: str):
    digest = hashlib.sha256()
    for index in range(50):
        task = MULTIHOP.task(split, index)
        digest.update(repr((task.id, task.question, task.reference, dict(task.context))).encode())
    assert digest.hexdigest()[:16] == pinned


def test_options_reach_the_generator():
    small = load_taskset("multihop", hops=4, pages=20, seed=3)
    task = small.task("train", 0)
    assert (task.reference["hops"], len(task.context)) == (4, 20)  # type: ignore[index]
    assert task != Multihop(hops=4, pages=20, seed=4).task("train", 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hops": 1}, "hops must be a range from 2 up"),
        ({"hops": [3, 2]}, "hops must be a range"),
        ({"pages": 7}, "pages must be a range from 8 up"),
        ({"pages": [8, 9]}, "pages must be one whole number up to 2000; got [8, 9]"),
        ({"pages": 2001}, "pages must be one whole number up to 2000"),
        ({"extra_pages": -1}, "extra_pages is a whole number, 0 or more; got -1"),
        ({"metric": "bleu"}, "metric must be one of em, f1, judge; got 'bleu'"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_taskset("multihop", **options)


def test_too_many_hops_for_the_pages_are_refused():
    with pytest.raises(ConfigError, match="8 pages are too few for questions of 9 hops"):
        Multihop(hops=9, pages=8).task("train", 0)


# Verdicts.


def test_the_root_is_scored_by_the_metric_with_its_f1_as_the_reason():
    task = Task(question="Who?", reference={"answer": "Harold Ash", "aliases": ["H. Ash"], "hops": 2, "facts": {}})
    for metric, answer, score, reason in (
        ("em", "harold ash.", 1.0, "F1 1.00"),
        ("em", "H Ash", 1.0, "F1 1.00"),
        ("em", "Harold", 0.0, "F1 0.67"),
        ("f1", "Harold", 2 / 3, "F1 0.67"),
        ("f1", None, 0.0, "F1 0.00"),
        ("em", None, 0.0, "F1 0.00"),
    ):
        verdict = Multihop(metric=metric).verdict(task, TaskWorld(task), a_node("Who?", answer, root=True))
        assert verdict is not None
        assert (verdict.score, verdict.how, verdict.reason) == (pytest.approx(score), "exact", reason)


def test_a_clone_is_scored_on_its_own_question():
    facts = {name: dict(known) for name, known in WORLD.facts.items()}
    task = Task(question="?", reference={"answer": "1955", "aliases": [], "hops": 3, "facts": facts})
    scores = {
        ("Who wrote The Pale Moth?", "Orna Keld"): 1.0,
        ("Who wrote The Pale Moth?", "Tam Rask"): 0.0,
        ("Who wrote The Pale Moth?", None): 0.0,
        ("Who wrote The Idle Bell?", "Tam Rask"): 1.0,  # not needed for the answer, but a valid question
        ("Say something.", "Orna Keld"): None,
    }
    for metric in ("em", "f1"):
        for (goal, answer), score in scores.items():
            verdict = Multihop(metric=metric).verdict(task, TaskWorld(task), a_node(goal, answer))
            assert (verdict and verdict.score) == score


def test_with_the_metric_judge_no_node_has_an_exact_verdict():
    taskset = Multihop(metric="judge")
    task = taskset.task("train", 0)
    for root in (True, False):
        assert taskset.verdict(task, TaskWorld(task), a_node(task.question, "x", root=root)) is None
    assert taskset.self_check(task) == (1.0, 0.0)


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.sampled_from(INVENTED))
def test_every_fact_of_a_world_can_be_asked_and_checked(index: int, split: str):
    task = MULTIHOP.task(split, index)
    reference: Any = json.loads(json.dumps(task.reference))  # as stored in a run directory
    kept = Task(id=task.id, question=task.question, context=task.context, reference=reference)
    for name, known in reference["facts"].items():
        for relation, value in known.items():
            node = a_node(ask(Chain(name, (relation,))), value)
            verdict = MULTIHOP.verdict(kept, TaskWorld(kept), node)
            assert verdict is not None
            assert verdict.score == 1.0


# Rows of data files.


def test_a_decomposition_becomes_self_contained_questions():
    steps = row_reference(MUSIQUE, "here")["steps"]
    assert [step["goal"] for step in steps] == [
        "Who is the creator of Breech?",
        "where was Laura Kite's husband from?",
        "What river does Wend turn into?",
        "When was Ivel on the Oder settled?",
    ]
    assert [step["after"] for step in steps] == [[], [0], [], [1, 2]]
    assert steps[0]["written"] == "Breech >> creator"


@pytest.mark.parametrize(
    ("written", "question"),
    [
        ("Rome >> capital of", "What is Rome capital of?"),
        ("Rome >> country", "What is the country of Rome?"),
        ("Rome >> owned by", "What is Rome owned by?"),
        ("Rome >> located in the administrative territorial entity", "In which place is Rome located?"),
        ("Ann >> member of sports team", "Which sports team is Ann a member of?"),
        ("Ann >> mother", "Who is the mother of Ann?"),
    ],
)
def test_relations_are_spelled_out(written: str, question: str):
    step = {"question": written, "answer": "x", "title": "Breech"}
    row = MUSIQUE | {"meta": {"decomposition": [step]}}
    assert row_reference(row, "here")["steps"][0]["goal"] == question


@pytest.mark.parametrize(
    ("goal", "accepted"),
    [
        ("Who is the creator of Breech?", ("Laura Kite",)),
        ("Breech >> creator", ("Laura Kite",)),
        ("From the text: who is the creator of Breech? Be brief.", ("Laura Kite",)),
        ("When was Ivel on the Oder settled?", ("in 1720", "1720", "1720 AD")),  # the last step has the aliases
        (MUSIQUE["question"], ("in 1720", "1720", "1720 AD")),
        (f"What helps to answer: {MUSIQUE['question']}", ()),
        ("Who is the creator of Breech? What river does Wend turn into?", ()),
        ("Who is the creator of Breeches?", ()),
        ("Do something.", ()),
    ],
)
def test_a_clone_is_checked_if_its_goal_is_one_step(goal: str, accepted: tuple[str, ...]):
    assert row_accepts(goal, str(MUSIQUE["question"]), row_reference(MUSIQUE, "here")) == accepted


def test_the_key_sentence_has_the_answer_or_a_name_or_words_of_the_question():
    text = "The river is long. It is deep.\nAnn was born in Rome! Who knows."
    assert key_sentence(text, "How long is the river?", "no") == "The river is long."
    assert key_sentence(text, "How long is the river?", "Rome") == "Ann was born in Rome!"
    assert key_sentence(text, "How long is the river?", "no", ["Oder", "Ann"]) == "Ann was born in Rome!"
    assert key_sentence("", "Why?", "no") == "Nothing."
    assert len(key_sentence("word " * 1000, "Why?", "no")) == 400


def test_initials_and_titles_do_not_end_a_sentence():
    whole = "The film was directed by B. Reeves Eason and Dr. Mary St. John."
    text = f"Rain fell. {whole} Mrs. Lane ran. He left for TV. It rained."
    assert key_sentence(text, "Why?", "Mary St. John") == whole
    assert key_sentence(text, "Why?", "Mrs. Lane") == "Mrs. Lane ran."
    assert key_sentence(text, "Why?", "TV") == "He left for TV."


def test_rows_become_tasks(tmp_path: Path):
    taskset, task = find_task("multihop:musique_eval/0", {"data": write_rows(tmp_path)})
    assert (task.id, taskset.size("musique_eval"), taskset.size("train")) == ("multihop:musique_eval/0", 1, None)
    assert task.question == MUSIQUE["question"]
    assert task.context["Breech"] == "Breech is a picture by Laura Kite.\nA breech can also be part of a gun."
    assert list(task.context) == ["Breech", "Kite family", "Wend", "Ivel County"]
    with pytest.raises(ConfigError, match="has tasks 0 to 0, not 1"):
        taskset.task("musique_eval", 1)


def test_rows_need_a_data_folder():
    with pytest.raises(ConfigError, match="multihop reads 2wiki_eval from a data folder: give --data PATH"):
        MULTIHOP.task("2wiki_eval", 0)


def changed(row: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return row | fields


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({name: value for name, value in TWO_WIKI.items() if name != "answer"}, "line 1: field 'answer' is missing"),
        (changed(TWO_WIKI, context=None), "line 1: field 'context' is NoneType"),
        (changed(TWO_WIKI, context=[{"title": 3, "text": "x"}]), "line 1: entries of field 'context' must have"),
        (changed(TWO_WIKI, meta=[]), "line 1: field 'meta' is list"),
        (changed(TWO_WIKI, aliases="Lille"), "row 1: field 'aliases' must be a list of texts"),
        (
            changed(TWO_WIKI, context=[{"title": "A", "text": "x"}]),
            "row 1: field 'context' marks no entry as supporting",
        ),
        (changed(TWO_WIKI, meta={"decomposition": []}), "row 1: field 'meta.decomposition' must be a list of steps"),
        (
            changed(TWO_WIKI, meta={"decomposition": [{"question": "q", "answer": 4, "title": "Jean Mot"}]}),
            "row 1: field 'meta.decomposition', step 1: question, answer and title must be texts",
        ),
        (
            changed(TWO_WIKI, meta={"decomposition": [{"question": "q", "answer": "a", "title": "Nobody"}]}),
            "row 1: field 'meta.decomposition', step 1: the title must be in the context",
        ),
        (
            changed(TWO_WIKI, meta={"decomposition": [{"question": "q #1", "answer": "a", "title": "Jean Mot"}]}),
            "row 1: field 'meta.decomposition', step 1: the title must be in the context, and # must",
        ),
    ],
)
def test_a_malformed_row_names_file_place_and_field(tmp_path: Path, row: dict[str, Any], message: str):
    file = tmp_path / "2wiki_eval.jsonl"
    file.write_text(json.dumps(row))
    with pytest.raises(ConfigError, match=re.escape(f"{file}, {message}")):
        Multihop(data=tmp_path).task("2wiki_eval", 0)


# The oracle.


@pytest.mark.parametrize("split", INVENTED)
def test_the_oracle_is_right_on_invented_worlds(split: str):
    report = anyio.run(functools.partial(validate, MULTIHOP, split, num_tasks=12))
    assert report.faults == []
    assert report.delegating == report.trees // 2


@pytest.mark.parametrize("split", ROWS)
def test_the_oracle_is_right_on_rows(tmp_path: Path, split: str):
    taskset = Multihop(data=write_rows(tmp_path))
    for seed in range(6):
        report = anyio.run(functools.partial(validate, taskset, split, seed=seed))
        assert report.faults == []
        assert report.delegating == 3


def test_budgets_are_large_enough():
    for split in INVENTED:
        for index in range(8):
            task = MULTIHOP.task(split, index)
            for dialect in ("tools", "python"):
                tree = play_oracle(MULTIHOP, task, dialect=dialect)
                used, budget = tree.usage, tree.budget
                assert 2 * used.tokens < budget.tokens
                assert 2 * used.peak_window < budget.window
                assert 2 * len(tree.nodes) < budget.nodes
                assert 2 * max(len(node.turns) for node in tree.nodes) < budget.turns


def test_the_splits_of_the_oracle_vary():
    task = MULTIHOP.task("long", 2)
    trees = [play_oracle(MULTIHOP, task, seed=seed) for seed in range(12)]
    assert len({tuple(node.goal for node in tree.nodes) for tree in trees}) >= 6
    assert {tree.depth for tree in trees} >= {1, 2}  # clones sometimes delegate
    assert len({node.pieces[0].text for tree in trees for node in tree.nodes[1:]}) > 20  # passed pages vary


def test_clones_pass_on_only_pages_they_were_given():
    for index in range(25):
        for node in play_oracle(MULTIHOP, MULTIHOP.task("long", index)).nodes:
            assert "Not available" not in node.pieces[0].text


def test_comparisons_are_delegated_in_parallel():
    tasks = (MULTIHOP.task("train", index) for index in range(50))
    task = next(one for one in tasks if " or " in one.question and one.reference["hops"] == 2)  # type: ignore[index]
    tree = play_oracle(MULTIHOP, task)
    assert [len(turn.children) for turn in tree.root.turns] == [2, 0]


def test_pages_that_the_question_names_are_read_first(tmp_path: Path):
    row = TWO_WIKI | {"meta": {"type": "compositional"}}  # no evidences: no sub-questions
    (tmp_path / "2wiki_eval.jsonl").write_text(json.dumps(row))
    task = Multihop(data=tmp_path).task("2wiki_eval", 0)
    oracle = Multihop().oracle(task, delegate=True, seed=0)
    first = oracle.move(View(goal=task.question, depth=0)).asks
    then = oracle.move(View(goal=task.question, depth=0, history=(("x",),))).asks
    assert [ask.goal for ask in first + then] == [
        f"According to the text, what is known about {title} that helps to answer: {task.question}"
        for title in ("Sand Castle (1951 film)", "Jean Mot")
    ]
    answered = [oracle.move(View(goal=ask.goal, depth=1)).answer for ask in first + then]
    assert answered == ["It was directed by Jean Mot.", "He died in Lille."]


def test_uniform_demonstrations_pass_only_the_pages_that_are_needed():
    taskset = Multihop(style="uniform")
    for index in range(10):
        task = taskset.task("train", index)
        oracle = taskset.oracle(task, delegate=True, seed=0)
        asks = oracle.move(View(goal=task.question, depth=0)).asks
        world = Fiction(task.reference["facts"])  # type: ignore[index]
        for part in asks:
            query = world.understand(part.goal)
            assert isinstance(query, Chain)
            assert part.context == world.walk(query)[:-1]


def test_steps_wait_only_for_steps_they_depend_on(tmp_path: Path):
    taskset = Multihop(data=write_rows(tmp_path))
    trees = [play_oracle(taskset, taskset.task("musique_eval", 0), seed=seed) for seed in range(10)]
    shapes = {tuple(len(turn.children) for turn in tree.root.turns) for tree in trees}
    assert shapes == {(1, 1, 1, 1, 0), (2, 1, 1, 0)}
    assert all(node.verdict and node.verdict.how == "exact" for tree in trees for node in tree.nodes)


# Nothing of the reference reaches a prompt.


def opening(tree: Tree) -> str:
    return tree.root.pieces[0].text


@pytest.mark.parametrize("dialect", ["tools", "python"])
@pytest.mark.parametrize("split", INVENTED)
def test_the_root_sees_the_question_and_the_titles(split: str, dialect: str):
    for index in range(10):
        task = MULTIHOP.task(split, index)
        seen = opening(play_oracle(MULTIHOP, task, dialect=dialect))
        assert task.question in seen
        assert all(title in seen for title in task.context)
        assert not any(text in seen for text in task.context.values())
        hidden = task.reference["answer"]  # type: ignore[index]
        assert hidden not in seen.replace(task.question, "") or hidden in task.context


def test_clones_see_their_goal_and_the_pages_passed_to_them():
    for index in range(10):
        task = MULTIHOP.task("long", index)
        for node in play_oracle(MULTIHOP, task).nodes[1:]:
            shown = node.pieces[0].text.partition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
            goal, *pages = shown.split("\n\n")
            assert goal == node.goal
            assert all(task.context[title[1:-1]] == text for title, text in (page.split("\n") for page in pages))


@pytest.mark.parametrize("split", ROWS)
def test_nothing_of_a_rows_meta_is_ever_shown(tmp_path: Path, split: str):
    taskset = Multihop(data=write_rows(tmp_path))
    task = taskset.task(split, 0)
    for dialect in ("tools", "python"):
        for delegate in (False, True):
            tree = play_oracle(taskset, task, dialect=dialect, delegate=delegate)
            given_text = "".join(piece.text for node in tree.nodes for piece in node.pieces if not piece.sampled)
            for word in (
                "supporting",
                "decomposition",
                "evidences",
                "verify",
                ">>",
                "1720 AD",
                "compositional",
                "hard",
            ):
                assert word not in given_text
            assert task.reference["answer"] not in re.findall(r"\w+", opening(tree))  # type: ignore[index]


def test_phrases_nest():
    assert (
        phrase(Chain("The Pale Moth", ("author", "employer"))) == "the company that employs the author of The Pale Moth"
    )


def test_the_self_check_tells_right_from_wrong(tmp_path: Path):
    taskset = Multihop(data=write_rows(tmp_path), metric="f1")
    for split in (*INVENTED, *ROWS):
        right, wrong = taskset.self_check(taskset.task(split, 0))
        assert (right, wrong) == (1.0, 0.0)
