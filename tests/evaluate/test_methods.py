"""Methods: the budget of each tree, the choice among trees, and what counts as the same answer."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet.errors import ConfigError
from ramet.evaluate import evaluate
from ramet.evaluate.methods import (
    Method,
    choose_tree,
    is_oracle,
    parse_method,
    parse_methods,
    same_answer,
    same_text,
    tree_budget,
    vote,
)
from ramet.tasks.dice import seed_of
from ramet.tasks.registry import load_taskset
from ramet.types import Prompt, Stop, Task
from tests.agent.scripts import delegate, words
from tests.evaluate.trees import answered

ARITHMETIC = load_taskset("arithmetic")
TASK = ARITHMETIC.task("eval", 0)


# Names.


@pytest.mark.parametrize(
    ("name", "kind", "trees", "depth"),
    [("single", "single", 1, 0), ("vote@8", "vote", 8, 0), ("best@2", "best", 2, 0), ("clones/2", "clones", 1, 2)],
)
def test_the_name_sets_the_number_of_trees_and_the_depth(name: str, kind: Any, trees: int, depth: int) -> None:
    assert parse_method(name) == Method(name=name, kind=kind, trees=trees, depth=depth)


@pytest.mark.parametrize(
    ("name", "kind", "parts"), [("split@8", "split", 8), ("chain", "chain", 4), ("chain@12", "chain", 12)]
)
def test_a_control_has_one_tree_with_one_level_and_a_number_of_parts(name: str, kind: Any, parts: int) -> None:
    assert parse_method(name) == Method(name=name, kind=kind, trees=1, depth=1, parts=parts)


def test_clones_are_as_deep_as_the_budget_allows() -> None:
    assert parse_method("clones").depth is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "split",
        "split@1",
        "split@",
        "chain@",
        "chain@1",
        "vote",
        "vote@0",
        "vote@",
        "clones/",
        "clones/-1",
        "single@3",
        "best@x",
        "Single",
    ],
)
def test_an_unknown_method_lists_the_accepted_ones(name: str) -> None:
    with pytest.raises(
        ConfigError, match="accepted are single, vote@K, best@K, split@K, chain, chain@K, clones, clones/DEPTH"
    ):
        parse_method(name)


def test_a_method_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="twice"):
        parse_methods(["single", "single"])


def test_only_best_is_an_oracle() -> None:
    assert [is_oracle(name) for name in ("single", "vote@2", "best@2", "clones")] == [False, False, True, False]


# Budgets.


def test_the_trees_of_an_item_share_its_budget() -> None:
    declared = ramet.Budget(tokens=9999, depth=3, money=1.0, prices=ramet.Prices(generated=1.0))
    part = tree_budget(parse_method("vote@8"), declared, tokens=1003, limits={})
    assert (part.tokens, part.depth, part.money) == (125, 0, 0.125)
    assert tree_budget(parse_method("clones"), declared, tokens=1003, limits={}).depth == 3
    assert tree_budget(parse_method("clones/1"), declared, tokens=1003, limits={}).depth == 1
    assert tree_budget(parse_method("best@4"), declared, tokens=None, limits={}).tokens == 2499


def test_limits_override_those_of_the_task_and_the_window_is_at_most_that_of_the_model() -> None:
    declared = ramet.Budget(nodes=64, window=16384)
    budget = tree_budget(parse_method("clones"), declared, tokens=100, limits={"nodes": 4}, window=2048)
    assert (budget.nodes, budget.window) == (4, 2048)
    assert tree_budget(parse_method("clones"), declared, tokens=100, limits={}, window=10**6).window == 16384


def test_a_budget_with_less_than_a_token_per_tree_is_refused() -> None:
    with pytest.raises(ConfigError, match="vote@8 grows 8 trees: a budget of 7 tokens is too small"):
        tree_budget(parse_method("vote@8"), ramet.Budget(), tokens=7, limits={})


def test_a_budget_with_less_than_a_token_per_part_and_for_the_answer_is_refused() -> None:
    with pytest.raises(ConfigError, match="split@8 runs 9 nodes: a budget of 8 tokens is too small"):
        tree_budget(parse_method("split@8"), ramet.Budget(), tokens=8, limits={})
    assert tree_budget(parse_method("split@8"), ramet.Budget(), tokens=9, limits={}).tokens == 9


def talker(seed: int) -> ramet.ScriptedEngine:
    """Never answers, and delegates whenever it may."""

    def script(prompt: Prompt) -> str:
        may = "delegate(" in prompt.messages[0].content
        return words(50 + (seed * 7919 + prompt.turn) % 900) + (delegate("Compute 1+1", "Compute 2*2") if may else "")

    return ramet.ScriptedEngine(script)


@settings(max_examples=60)
@given(
    st.sampled_from(
        [
            "single",
            "vote@2",
            "vote@3",
            "vote@8",
            "best@5",
            "split@2",
            "split@7",
            "chain",
            "chain@3",
            "clones",
            "clones/1",
        ]
    ),
    st.integers(8, 3000),
    st.integers(0, 1000),
)
def test_the_budget_covers_everything_a_method_does_for_an_item(method: str, budget: int, seed: int) -> None:
    engine = talker(seed)
    evaluation = anyio.run(
        partial(evaluate, ["arithmetic:eval"], engine=engine, methods=[method], budgets=[budget], n=1, seed=seed)
    )
    (record,) = evaluation.records
    assert record.generated == engine.generated <= budget
    assert record.nodes == len({prompt.node_id for prompt in engine.prompts})
    assert len(record.trees) == parse_method(method).trees


# Seeds.


def test_the_seed_of_a_tree_depends_only_on_its_place() -> None:
    place = (0, "vote@8", 1000, "craft:hard/17", 3)
    assert seed_of(*place) == seed_of(*place) == 34063776633778292
    others = [(1, *place[1:]), (0, "best@8", *place[2:]), (*place[:2], 2000, *place[3:]), (*place[:3], "x", 3)]
    assert len({seed_of(*one) for one in [place, *others, (*place[:4], 4)]}) == 6


# Voting.


def chosen(*answers: str | None) -> int:
    trees = [answered(answer, name=str(i)) for i, answer in enumerate(answers)]
    return int(vote(ARITHMETIC, TASK, trees).id)


def test_the_first_tree_with_the_most_frequent_answer_wins() -> None:
    assert chosen("3", "So it is 7", "7", "4") == 1


def test_among_equally_frequent_answers_the_first_wins() -> None:
    assert chosen("3", "7", "7", "3") == 0
    assert chosen("5", "6", "7") == 0


def test_trees_without_an_answer_have_no_vote() -> None:
    assert chosen(None, None, "  ", "9") == 3
    assert chosen(None, None) == 0


def test_a_vote_does_not_look_at_verdicts() -> None:
    trees = [answered("3", score=0.0), answered("3", score=0.0), answered("4", score=1.0)]
    assert choose_tree(parse_method("vote@3"), ARITHMETIC, TASK, trees) is trees[0]


def test_best_takes_the_first_tree_with_the_highest_score() -> None:
    trees = [answered("3", score=0.2), answered("4", score=1.0), answered("4", score=1.0)]
    assert choose_tree(parse_method("best@3"), ARITHMETIC, TASK, trees) is trees[1]


def test_if_the_outcome_is_the_state_of_a_world_the_first_tree_that_answered_is_taken() -> None:
    craft = load_taskset("craft")
    task = craft.task("easy", 0)
    trees = [
        answered("done", stop=Stop.BUDGET),
        answered("made it", score=0.0),
        answered("done", score=1.0),
        answered("done", score=1.0),
    ]
    assert vote(craft, task, trees) is trees[1]
    assert vote(craft, task, trees[:1]) is trees[0]


# The same answer.


def aggregate(kind: str) -> Task:
    return Task(question="?", reference={"kind": kind, "answer": "", "topics": [], "labels": []})


def math(kind: str) -> Task:
    return Task(question="?", reference={"answer": "", "verify": kind, "solution": ""})


@pytest.mark.parametrize(
    ("name", "task", "one", "other", "equal"),
    [
        ("arithmetic", TASK, "It is 12.", "10+2=12", True),
        ("arithmetic", TASK, "12", "-12", False),
        ("arithmetic", TASK, "no idea", "12", False),
        ("multihop", TASK, "The Red House", "red house.", True),
        ("multihop", TASK, "42", "42.0", True),
        ("multihop", TASK, "5", "-5", False),
        ("search", TASK, "an oak", "Oak", True),
        ("aggregate", aggregate("number"), "There are 7 of them", "7", True),
        ("aggregate", aggregate("number"), "none", "none at all", False),
        ("aggregate", aggregate("label"), "'Travel'", "travel.", True),
        ("aggregate", aggregate("list"), "10456, 60267", "60267; 10456", True),
        ("aggregate", aggregate("list"), "10456", "60267", False),
        ("math", math("number"), "So $1,200", "1200.0", True),
        ("math", math("integer"), "7", "8", False),
        ("countdown", TASK, "(99 * 10) - 9 = 981", "10*99-9", True),
        ("countdown", TASK, "3 * 8", "4 * 6", False),
        ("countdown", TASK, "impossible", "Impossible.", True),
        ("countdown", TASK, "impossible", "3 * 8", False),
        ("gym", TASK, "YES ", "yes", True),
        ("gym", TASK, "1,000", "1000", True),
    ],
)
def test_tasksets_decide_which_answers_are_the_same(name: str, task: Task, one: str, other: str, equal: bool) -> None:
    taskset = load_taskset(name)
    assert same_answer(taskset, task, one, other) is equal
    assert same_answer(taskset, task, other, one) is equal


def test_equivalent_formulas_are_the_same_answer() -> None:
    taskset = load_taskset("math")
    assert same_answer(taskset, math("math"), r"\boxed{\frac{1}{2}}", "0.5")
    assert not same_answer(taskset, math("math"), r"\boxed{\frac{1}{2}}", "0.6")


@pytest.mark.parametrize(
    ("check", "one", "other", "equal"),
    [
        ("number", "12 apples", "I say 12", True),
        ("exact", "12 apples", "I say 12", False),
        ("f1", "the cat", "Cat", True),
    ],
)
def test_answers_of_a_file_are_compared_by_its_check(
    tmp_path: Path, check: str, one: str, other: str, equal: bool
) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({"question": "q", "answer": "3", "size": 4}) + "\n")
    taskset = load_taskset("jsonl", file=str(file), check=check)
    task = taskset.task("all", 0)
    assert same_answer(taskset, task, one, other) is equal


def test_other_answers_are_compared_as_words_and_numbers() -> None:
    assert same_text(" New\n York", "new york.")
    assert same_text("2.50", "2.5")
    assert not same_text("2.5 kg", "2.5")
