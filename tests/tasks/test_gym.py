"""Datasets of reasoning-gym: the same everywhere, split for training and evaluation, scored by their own rules."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import anyio
import pytest

from ramet.agent.options import TreeOptions
from ramet.engine.scripted import ScriptedEngine
from ramet.errors import ConfigError
from ramet.tasks.dice import in_eval
from ramet.tasks.gym import HELPER, ONE_IN, Gym
from ramet.tasks.oracle import script
from ramet.tasks.play import play
from ramet.tasks.registry import load_taskset
from ramet.tasks.validate import validate
from ramet.types import Node, Task, Verdict

SMALL = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2}


def root(answer: str | None) -> Node:
    return Node(index=0, parent=None, depth=0, path=(), goal="", grant=100, answer=answer)


def verdict(taskset: Gym, task: Task, answer: str | None) -> Verdict | None:
    return taskset.verdict(task, taskset.world(task), root(answer))


def answer_of(task: Task) -> Any:
    reference: Any = task.reference
    return reference["answer"]


# Tasks.


def test_a_sum_follows_its_parameters_and_its_answer_is_right() -> None:
    taskset = Gym(params={**SMALL, "allow_negation": False}, size=40)
    for index in range(40):
        task = taskset.task("train", index)
        expression = task.question.removeprefix("State the final answer to the following arithmetic problem: ")
        terms = expression.removesuffix(" =").replace("- ", "-").replace("+ ", "").split()
        assert 2 <= len(terms) <= 3
        assert all(len(term.lstrip("-")) in (1, 2) for term in terms)
        assert sum(map(int, terms)) == int(answer_of(task))


def test_tasks_are_the_same_on_every_machine() -> None:
    # A release of reasoning-gym that changes these changes every score on them.
    taskset = load_taskset("gym")
    made = [
        (task.question, task.reference)
        for split in ("train", "eval")
        for task in (taskset.task(split, index) for index in range(50))
    ]
    assert hashlib.sha256(repr(made).encode()).hexdigest()[:16] == "0027574510e71e2f"


def test_a_new_process_makes_the_same_tasks_in_any_order() -> None:
    """Two of these iterate over sets, the third uses global random numbers."""
    tasksets = [
        Gym(dataset=dataset, size=20) for dataset in ("ransom_note", "polynomial_multiplication", "pool_matrix")
    ]
    places = [(taskset, index) for taskset in tasksets for index in range(4)]
    first = [taskset.task("train", index) for taskset, index in places]
    HELPER.stop()
    assert [taskset.task("train", index) for taskset, index in reversed(places)] == first[::-1]


def test_another_seed_makes_other_tasks() -> None:
    drawn = {Gym(seed=seed).task("train", 0).question for seed in range(10)}
    assert len(drawn) == 10


def test_neighbouring_tasks_do_not_repeat_each_other() -> None:
    taskset = Gym(size=200)
    assert len({taskset.task("train", index).question for index in range(200)}) > 195


# Training and evaluation.


@pytest.mark.parametrize("params", [SMALL, {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}])
def test_no_question_of_eval_is_in_train(params: dict[str, int]) -> None:
    """The second dataset has only 162 questions, so most are drawn many times."""
    taskset = Gym(params=params, size=250)
    made = {split: {taskset.task(split, index).question for index in range(250)} for split in ("train", "eval")}
    assert made["train"]
    assert made["eval"]
    assert not made["train"] & made["eval"]
    assert all(in_eval(question, one_in=ONE_IN) for question in made["eval"])


def test_a_dataset_with_one_question_cannot_be_split() -> None:
    taskset = Gym(dataset="count_bits", params={"min_n": 1, "max_n": 1}, size=3)
    question = "How many 1 bits are there in the binary representation of the number 1?"
    has, has_not = ("eval", "train") if in_eval(question, one_in=ONE_IN) else ("train", "eval")
    assert taskset.task(has, 0).question == question
    with pytest.raises(ConfigError, match="too few questions for both train and eval"):
        taskset.task(has_not, 0)


# Scoring.


def test_the_score_is_that_of_the_dataset() -> None:
    taskset = Gym(params=SMALL)
    task = taskset.task("eval", 0)
    right = answer_of(task)
    assert verdict(taskset, task, right) == Verdict(score=1.0, how="exact")
    assert verdict(taskset, task, str(int(right) + 1)) == Verdict(score=0.0, how="exact")
    said = f"It is {right}"  # the default rule: the share of the text that is the answer
    assert verdict(taskset, task, said) == Verdict(score=len(right) / len(said), how="exact")


def test_no_answer_scores_zero() -> None:
    taskset = Gym(dataset="countdown", size=5)
    assert verdict(taskset, taskset.task("train", 0), None) == Verdict(score=0.0, how="exact", reason="no answer")


def test_an_answer_that_breaks_the_scorer_scores_zero_with_a_reason() -> None:
    taskset = Gym(dataset="prime_factorization", size=5)
    found = verdict(taskset, taskset.task("train", 0), "two times three")
    assert found is not None
    assert found.score == 0.0
    assert found.reason.startswith("cannot be scored: ValueError")


def test_a_clone_has_no_verdict() -> None:
    taskset = Gym()
    task = taskset.task("train", 0)
    clone = Node(index=1, parent=0, depth=1, path=(0,), goal=task.question, grant=100, answer=answer_of(task))
    assert taskset.verdict(task, taskset.world(task), clone) is None


# Options.


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"dataset": "chain_sums"}, "no dataset 'chain_sums': did you mean chain_sum"),
        ({"dataset": "q"}, "no dataset 'q': accepted: ab, acre"),
        ({"params": {"min_term": 2}}, "chain_sum has no parameter 'min_term': did you mean min_terms"),
        ({"params": {"min_terms": 0}}, "chain_sum does not accept these params: "),
        ({"params": {"min_terms": "two"}}, "chain_sum does not accept these params: "),
        ({"params": {"seed": 3}}, "seed is an option of gym, not"),
        ({"params": {"size": 3}}, "size is an option of gym, not"),
        ({"params": {"min_terms": {1}}}, "params must be numbers, texts, lists and objects"),
        ({"params": "min_terms"}, "params must be a table, like params.min_terms=2; got 'min_terms'"),
        ({"size": 0}, "size must be a whole number from 1 up; got 0"),
    ],
)
def test_an_unknown_or_invalid_option_is_named(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_taskset("gym", **options).task("train", 0)
    assert complaint in str(caught.value)


def test_a_split_has_the_requested_number_of_tasks() -> None:
    taskset = Gym(size=7)
    assert taskset.size("train") == taskset.size("eval") == 7
    with pytest.raises(ConfigError, match="has tasks 0 to 6, not 7"):
        taskset.task("train", 7)
    with pytest.raises(ConfigError, match="no split 'test'"):
        taskset.task("test", 0)


# Demonstrations.


@pytest.mark.parametrize("split", ["train", "eval"])
@pytest.mark.parametrize(
    "dataset", ["chain_sum", "gsm_symbolic", "tower_of_hanoi", "mini_sudoku", "countdown", "emoji_mystery"]
)
def test_the_oracle_is_right_in_every_dialect_and_passes_nothing_on(dataset: str, split: str) -> None:
    report = anyio.run(functools.partial(validate, Gym(dataset=dataset, size=20), split, num_tasks=2))
    assert report.faults == []
    assert report.delegating == 0


def test_a_dataset_without_reference_answers_can_be_scored_but_has_no_oracle() -> None:
    taskset = Gym(dataset="graph_color", size=5)
    task = taskset.task("train", 0)
    found = verdict(taskset, task, "no idea")
    assert found is not None
    assert found.score < 1.0
    with pytest.raises(ConfigError, match="graph_color has a scorer but no reference answers"):
        taskset.oracle(task, delegate=True, seed=0)


@pytest.mark.parametrize("dialect", ["tools", "python"])
def test_no_prompt_contains_the_answer(dialect: str) -> None:
    taskset = Gym(dataset="products", params={"min_digits": 4, "max_digits": 5})
    for index in range(5):
        task = taskset.task("train", index)
        engine = ScriptedEngine(script(taskset.oracle(task, delegate=True, seed=0), dialect))
        anyio.run(functools.partial(play, taskset, task, TreeOptions(engine=engine, dialect=dialect)))
        openings = [prompt for prompt in engine.prompts if prompt.turn == 0]
        assert len(openings) == 1
        for prompt in openings:
            assert all(answer_of(task) not in message.content for message in prompt.messages)
