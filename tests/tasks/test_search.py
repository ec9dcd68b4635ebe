"""Searching and reading: the same results everywhere, and an oracle that finds every page."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.errors import ConfigError
from ramet.interfaces import World
from ramet.tasks.multihop.fiction import Chain, Fiction, ask
from ramet.tasks.play import demonstrate
from ramet.tasks.registry import load_taskset
from ramet.tasks.search import Corpus, Library, Search, invented_corpus, row_corpus
from ramet.tasks.validate import validate
from ramet.types import Node, Task, Tree
from tests.tasks.test_multihop import INVENTED, MUSIQUE, ROWS, TWO_WIKI, a_node, write_rows

SEARCH = Search()
PAGES = {
    "Zebra": "A zebra has stripes. It runs.",
    "Apple": "An apple is a fruit.",
    "Pear": "A pear is a fruit.",
    "Big Zebra Farm": "Many animals live on the farm.",
    "New  York": "A city.",
    "Empty": "",
}
WORDS = st.sampled_from(["zebra", "fruit", "farm", "the", "a", "stripes", "qqq", "pear"])


def library() -> Library:
    return Library(Corpus(PAGES))


def corpus_of(split: str) -> Corpus:
    world = SEARCH.world(SEARCH.task(split, 0))
    assert isinstance(world, Library)
    return world.corpus


def fiction_of(split: str) -> Fiction:
    fiction = corpus_of(split).fiction
    assert fiction is not None
    return fiction


def play_oracle(taskset: Search, task: Task, *, dialect: str = "tools", delegate: bool, seed: int = 0) -> Tree:
    return anyio.run(functools.partial(demonstrate, taskset, task, dialect=dialect, delegate=delegate, seed=seed))


# The corpus.


def test_the_best_page_comes_first():
    assert library().search("zebra stripes")[0] == "Zebra"
    assert library().search("FARM!")[0] == "Big Zebra Farm"
    assert library().search("zebra") == ["Zebra", "Big Zebra Farm"]


def test_ties_are_sorted_by_title():
    assert library().search("fruit") == ["Apple", "Pear"]
    turned = Library(Corpus(dict(reversed(PAGES.items()))))
    assert turned.search("fruit") == ["Apple", "Pear"]


def test_unknown_words_find_nothing():
    assert library().search("xylophone") == []
    assert library().search("") == []
    assert library().search("?!") == []


def test_a_search_returns_at_most_five_titles():
    many = Library(Corpus({f"Page {number}": "the same text" for number in range(12)}))
    assert many.search("same") == ["Page 0", "Page 1", "Page 10", "Page 11", "Page 2"]


@settings(max_examples=40)
@given(st.lists(WORDS, max_size=6).map(" ".join))
def test_the_order_of_pages_does_not_change_a_search(query: str):
    turned = Library(Corpus(dict(sorted(PAGES.items()))))
    assert library().search(query) == turned.search(query)


def test_reading_ignores_case_and_spaces():
    assert library().read("Zebra") == "A zebra has stripes. It runs."
    assert library().read(" zEBRA ") == "A zebra has stripes. It runs."
    assert library().read("New York") == "A city."


def test_reading_a_missing_page_names_near_ones():
    assert library().read("Zebra stripes") == ("There is no page of this title. Near are: Zebra; Big Zebra Farm")
    assert library().read("Xylophone") == "There is no page of this title. Use search."


def test_paragraphs_of_a_title_are_one_page(tmp_path: Path):
    twice = {"title": "Jean Mot", "text": "Jean  Mot was\na director. He died in Lille.", "supporting": True}
    more = {"title": "Jean Mot", "text": "He liked tea.", "supporting": False}
    rows: list[dict[str, Any]] = [TWO_WIKI, TWO_WIKI | {"context": [twice, more]}]
    file = tmp_path / "2wiki_eval.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    corpus = row_corpus(file)
    assert list(corpus.pages) == ["Other Castle", "Sand Castle (1951 film)", "Jean Mot", "Jean Bot"]
    assert corpus.pages["Jean Mot"] == "Jean Mot was a director. He died in Lille. He liked tea."
    assert row_corpus(file) is corpus


def test_a_corpus_is_built_once(capfd: pytest.CaptureFixture[str]):
    assert invented_corpus(0, "train", 300) is corpus_of("train")
    assert capfd.readouterr() == ("", "")  # no progress bars


@pytest.mark.parametrize(("split", "pages"), [("train", 300), ("eval", 300), ("long", 600)])
def test_every_invented_page_is_found_by_its_title(split: str, pages: int):
    corpus = corpus_of(split)
    assert len(corpus.pages) == pages
    assert all(corpus.best(title)[0] == title for title in corpus.pages)
    assert not any("\n" in text for text in corpus.pages.values())


def test_without_its_library_search_names_what_to_install():
    code = "\n".join(
        [
            "import sys",
            "sys.modules['bm25s'] = None",
            "from ramet.errors import ConfigError",
            "from ramet.tasks.search import Search",
            "task = Search().task('train', 0)",
            "try: Search().world(task)",
            "except ConfigError as error: sys.exit(str(error))",
        ]
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "search needs bm25s: pip install 'ramet[tasks]'"


# The tasks.


def test_a_task_has_no_context():
    for split in INVENTED:
        task = SEARCH.task(split, 3)
        assert task.context == {}
        assert SEARCH.world(task).context == {}
        assert list(SEARCH.world(task).functions) == ["search", "read"]


def test_statistics_of_the_splits_are_as_documented():
    compares = 0
    for split, hops in (("train", (2, 3)), ("eval", (2, 3)), ("long", (4, 5, 6))):
        tasks = [SEARCH.task(split, index) for index in range(300)]
        counted = Counter(task.reference["hops"] for task in tasks)  # type: ignore[index]
        assert tuple(sorted(counted)) == hops
        assert min(counted.values()) > 0.75 * 300 / len(hops)
        compares += sum(" or " in task.question for task in tasks)
        assert len({task.question for task in tasks}) > 250  # one world: some questions repeat
    assert 0.25 < compares / 900 < 0.35


def test_train_and_evaluation_share_neither_questions_nor_pages():
    questions = {split: {SEARCH.task(split, index).question for index in range(200)} for split in INVENTED}
    texts = {split: set(corpus_of(split).pages.values()) for split in INVENTED}
    for one, other in (("train", "eval"), ("train", "long"), ("eval", "long")):
        assert not questions[one] & questions[other]
        assert not texts[one] & texts[other]
    elsewhere = {Search(seed=1).task("train", index).question for index in range(200)}
    assert not questions["eval"] & elsewhere


@pytest.mark.parametrize(
    ("split", "pinned"),
    [
        ("train", "882922dc0a2aa878"),
        ("eval", "e262fca261530c99"),
        ("long", "56a85aba461fdbf4"),
    ],
)
def test_tasks_and_searches_are_the_same_on_every_machine(split: str, pinned: str):
    corpus = corpus_of(split)
    digest = hashlib.sha256(repr(dict(corpus.pages)).encode())
    for index in range(50):
        task = SEARCH.task(split, index)
        digest.update(repr((task.id, task.question, task.reference, corpus.best(task.question))).encode())
    assert digest.hexdigest()[:16] == pinned


def test_options_reach_the_generator():
    small = load_taskset("search", hops=[2, 2], pages=60, seed=5)
    task = small.task("eval", 1)
    assert task.reference["hops"] == 2  # type: ignore[index]
    world = small.world(task)
    assert isinstance(world, Library)
    assert len(world.corpus.pages) == 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hops": 1}, "hops must be a range from 2 up"),
        ({"pages": 3}, "pages must be a range from 8 up"),
        ({"metric": "accuracy"}, "metric must be one of em, f1, judge"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        load_taskset("search", **options)


def test_too_many_hops_for_the_pages_are_refused():
    with pytest.raises(ConfigError, match="8 pages are too few for questions of 9 hops"):
        Search(hops=9, pages=8).task("train", 0)


def test_rows_need_a_data_folder():
    with pytest.raises(ConfigError, match="search reads musique_eval from a data folder: give --data PATH"):
        SEARCH.task("musique_eval", 0)


def test_a_malformed_row_names_file_line_and_field(tmp_path: Path):
    file = tmp_path / "hotpotqa_eval.jsonl"
    file.write_text('{"question": "Who?", "answer": 3}\n')
    with pytest.raises(ConfigError, match=re.escape(f"{file}, line 1: field 'answer' is int; str is wanted")):
        Search(data=tmp_path).task("hotpotqa_eval", 0)


# Verdicts.


def verdict_of(taskset: Search, task: Task, node: Node) -> float | None:
    world: World = taskset.world(task)
    verdict = taskset.verdict(task, world, node)
    assert verdict is None or verdict.how == "exact"
    return verdict and verdict.score


@settings(max_examples=60)
@given(st.data())
def test_every_fact_of_the_world_can_be_asked_and_checked(data: st.DataObject):
    split = data.draw(st.sampled_from(INVENTED))
    facts = fiction_of(split).facts
    name = data.draw(st.sampled_from(list(facts)))
    relation, value = data.draw(st.sampled_from(list(facts[name].items())))
    task, goal = SEARCH.task(split, 0), ask(Chain(name, (relation,)))
    assert verdict_of(SEARCH, task, a_node(f"Find out: {goal}", value)) == 1.0
    assert verdict_of(SEARCH, task, a_node(goal, "nobody")) == 0.0
    assert verdict_of(SEARCH, task, a_node(goal, None)) == 0.0
    assert verdict_of(SEARCH, task, a_node("Look around.", value)) is None


def test_the_root_is_scored_by_the_metric():
    task = SEARCH.task("train", 0)
    answer: str = task.reference["answer"]  # type: ignore[index]
    for metric, said, score in (("em", answer, 1.0), ("em", f"{answer} maybe", 0.0), ("em", None, 0.0)):
        assert verdict_of(Search(metric=metric), task, a_node(task.question, said, root=True)) == score
    half = verdict_of(Search(metric="f1"), task, a_node(task.question, f"{answer} maybe", root=True))
    assert half is not None
    assert 0 < half < 1
    assert SEARCH.self_check(task) == (1.0, 0.0)


# The oracle.


@pytest.mark.parametrize("split", INVENTED)
def test_the_oracle_is_right_on_invented_worlds(split: str):
    report = anyio.run(functools.partial(validate, SEARCH, split, num_tasks=8))
    assert report.faults == []
    assert report.delegating == report.trees // 2


@pytest.mark.parametrize("split", ROWS)
def test_the_oracle_is_right_on_rows(tmp_path: Path, split: str):
    taskset = Search(data=write_rows(tmp_path))
    for seed in range(4):
        report = anyio.run(functools.partial(validate, taskset, split, seed=seed))
        assert report.faults == []
        assert report.delegating == 3


def calls(tree: Tree, index: int) -> list[str]:
    said = "".join(piece.text for piece in tree.nodes[index].pieces if piece.sampled)
    return re.findall(r'"name": "(\w+)"', said)


def test_the_oracle_alone_searches_and_reads_in_turn():
    tasks = (SEARCH.task("train", index) for index in range(50))
    task = next(one for one in tasks if " or " not in one.question and one.reference["hops"] == 3)  # type: ignore[index]
    assert calls(play_oracle(SEARCH, task, delegate=False), 0) == ["search", "read"] * 3


def test_every_page_was_found_before_it_is_read():
    for index in range(10):
        tree = play_oracle(SEARCH, SEARCH.task("long", index), delegate=False)
        told = "".join(piece.text for piece in tree.root.pieces if not piece.sampled)
        said = "".join(piece.text for piece in tree.root.pieces if piece.sampled)
        for title in re.findall(r'"read", "arguments": \{"page": "([^"]+)"', said):
            assert f'"{title}"' in "".join(re.findall(r"search: (\[.*\])", told))


def test_a_root_that_delegates_calls_no_functions():
    depths: set[int] = set()
    for index in range(12):
        tree = play_oracle(SEARCH, SEARCH.task("long", index), delegate=True)
        assert set(calls(tree, 0)) == {"delegate"}
        leaves = [node.index for node in tree.nodes if not any(True for _ in tree.children(node.index))]
        assert all(set(calls(tree, leaf)) == {"search", "read"} for leaf in leaves)
        depths.add(tree.depth)
    assert depths >= {1, 2}


def test_budgets_are_large_enough():
    for split in INVENTED:
        for index in range(5):
            task = SEARCH.task(split, index)
            for delegate in (False, True):
                tree = play_oracle(SEARCH, task, dialect="python", delegate=delegate)
                used, budget = tree.usage, tree.budget
                assert 2 * used.tokens < budget.tokens
                assert 2 * used.peak_window < budget.window
                assert 2 * len(tree.nodes) < budget.nodes
                assert 2 * max(len(node.turns) for node in tree.nodes) <= budget.turns


# Nothing of the reference reaches a prompt.


@pytest.mark.parametrize("dialect", ["tools", "python"])
def test_the_root_sees_its_question_and_nothing_of_the_corpus(dialect: str):
    for split in INVENTED:
        task = SEARCH.task(split, 1)
        seen = play_oracle(SEARCH, task, dialect=dialect, delegate=True).root.pieces[0].text
        rest = seen.replace(task.question, "")
        assert task.question in seen
        assert not any(title in rest for title in corpus_of(split).pages)


@pytest.mark.parametrize("split", ROWS)
def test_nothing_of_a_rows_meta_is_ever_shown(tmp_path: Path, split: str):
    taskset = Search(data=write_rows(tmp_path))
    task = taskset.task(split, 0)
    for delegate in (False, True):
        tree = play_oracle(taskset, task, delegate=delegate)
        shown = "".join(piece.text for node in tree.nodes for piece in node.pieces if not piece.sampled)
        for word in ("supporting", "decomposition", "evidences", "verify", ">>", "1720 AD", "compositional", "hard"):
            assert word not in shown


def test_steps_of_rows_are_checked_exactly(tmp_path: Path):
    taskset = Search(data=write_rows(tmp_path))
    tree = play_oracle(taskset, taskset.task("musique_eval", 0), delegate=True)
    assert len(tree.nodes) == 1 + len(MUSIQUE["meta"]["decomposition"])
    assert all(node.verdict and node.verdict.how == "exact" for node in tree.nodes)
