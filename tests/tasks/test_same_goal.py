"""Tasksets know their goals in other words, and no oracle gives a clone its whole goal."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

import ramet
from ramet.agent.options import TreeOptions
from ramet.interfaces import ComparesGoals, Taskset
from ramet.tasks.aggregate.taskset import Aggregate
from ramet.tasks.arithmetic import Arithmetic
from ramet.tasks.codes import Codes
from ramet.tasks.countdown.taskset import Countdown, Game24
from ramet.tasks.multihop.taskset import Multihop, same_question
from ramet.tasks.number_search import NumberSearch
from ramet.tasks.play import demonstrate, goal_comparison, play
from ramet.tasks.registry import TASKSETS, load_taskset
from ramet.tasks.search import Search
from ramet.tasks.validate import dialects_for
from ramet.types import Prompt, Task, Verdict
from tests.agent.scripts import delegate
from tests.tasks.test_multihop import WORLD

TASK = Task(id="arithmetic:test/0", question="Compute 2*3+4", reference=10)
MAKE_24 = "Use the numbers 3, 8, 4, 4 exactly once each with + - * / and parentheses to make 24."
COUNT = "How many requests belong to the topic 'music'"


def same(taskset: ComparesGoals, goal: str, other: str) -> bool:
    return taskset.same_goal(TASK, goal, other)


@pytest.mark.parametrize(
    ("goal", "found"),
    [
        ("What is 4 + (3*2)?", True),
        ("Compute 2*3+4+0", True),
        ("Compute 2*3", False),
        ("Compute 6+4", False),
        ("Compute 10", False),
        ("Do it for me", False),
    ],
)
def test_arithmetic_compares_expressions(goal: str, found: bool) -> None:
    assert same(Arithmetic(), goal, TASK.question) is found


@pytest.mark.parametrize(
    ("goal", "found"), [("Please do 1?0 again", True), ("Add 100", False), ("Add 1?1", False), ("Add it", False)]
)
def test_codes_compares_patterns(goal: str, found: bool) -> None:
    assert same(Codes(), goal, "Add longest runs of 1?0 (last digit)") is found


@pytest.mark.parametrize(
    ("low", "high", "found"), [(10, 90, True), (1, 100, True), (10, 89, False), (11, 90, False), (50, 60, False)]
)
def test_number_search_refuses_a_range_with_all_of_its_own(low: int, high: int, found: bool) -> None:
    goal = f"Find the number between {low} and {high}, or say that it is not there."
    assert same(NumberSearch(), goal, "Guess the correct number between 10 and 90.") is found
    assert same(NumberSearch(), "Guess it.", "Guess the correct number between 10 and 90.") is False


@pytest.mark.parametrize("taskset", [Countdown(), Game24()])
def test_puzzles_are_compared_by_numbers_and_target(taskset: Countdown) -> None:
    goal = "Using the numbers [{}], each exactly once, write an expression equal to {}."
    assert same(taskset, goal.format("4, 8, 3, 4", 24), MAKE_24)
    assert not same(taskset, goal.format("4, 8, 3, 4", 25), MAKE_24)
    assert not same(taskset, goal.format("4, 24, 4", 24), MAKE_24)
    assert not same(taskset, "Make it.", MAKE_24)


def test_questions_about_an_invented_world_are_compared_by_their_meaning() -> None:
    whole = "In which year was the author of The Pale Moth born?"
    assert same_question(WORLD, f"Tell me. {whole} Be brief.", whole)
    assert not same_question(WORLD, "Who is the author of The Pale Moth?", whole)
    assert not same_question(WORLD, "In which year was Orna Keld born?", whole)
    assert not same_question(WORLD, "What now?", "What now?")  # not understood: only the words can decide
    assert not same_question(None, whole, whole)


def test_the_sides_of_a_comparison_may_change_places() -> None:
    whole = "Who was born earlier, Orna Keld or Tam Rask?"
    assert same_question(WORLD, "Who was born earlier, Tam Rask or Orna Keld?", whole)
    assert not same_question(WORLD, "Who was born later, Orna Keld or Tam Rask?", whole)


@pytest.mark.parametrize("taskset", [Multihop(), Search()])
def test_multihop_and_search_know_their_own_questions_in_other_words(taskset: Multihop | Search) -> None:
    task = taskset.task("train", 0)
    assert taskset.same_goal(task, f"Read them. {task.question}", task.question)
    assert not taskset.same_goal(task, "Who is it?", task.question)


@pytest.mark.parametrize(
    ("goal", "found"),
    [
        (f"In the given lines, {COUNT[:1].lower()}{COUNT[1:]}? Answer with one number. (lines 1-30)", True),
        (f"{COUNT}?", True),
        (f"{COUNT}? (lines 1-15) (lines 16-30)", True),
        (f"{COUNT}? (lines 1-999)", True),
        (f"{COUNT}? (lines 1-29)", False),
        ("How many requests belong to the topic 'pets'? (lines 1-30)", False),
        ("How many requests belong to each topic? (lines 1-30)", False),
        ("Count.", False),
    ],
)
def test_aggregate_compares_questions_and_lines(goal: str, found: bool) -> None:
    taskset = Aggregate(lines=30, page=10)
    question = f"The context lists 30 user requests. {COUNT}? Answer with one number."
    task = Task(question=question, context=taskset.task("train", 0).context)
    assert taskset.same_goal(task, goal, question) is found


def test_playing_a_task_uses_the_comparison_of_its_taskset() -> None:
    def script(prompt: Prompt) -> str:
        if prompt.depth + prompt.turn:
            return "Answer: 10"
        return delegate("Work out 4+2*3", "Compute 2*3")

    options = TreeOptions(engine=ramet.ScriptedEngine(script))
    tree = anyio.run(partial(play, Arithmetic(), TASK, options))
    assert [node.goal for node in tree.nodes] == ["Compute 2*3+4", "Compute 2*3"]
    (refusal,) = tree.root.turns[0].refusals
    assert (refusal.goal, refusal.kind) == ("Work out 4+2*3", "same_goal")


def test_a_comparison_given_in_the_options_comes_first() -> None:
    engine = ramet.ScriptedEngine(lambda prompt: "Answer: 1" if prompt.depth + prompt.turn else delegate("Do 4+2*3"))
    tree = anyio.run(partial(play, Arithmetic(), TASK, TreeOptions(engine=engine, same_goal=lambda goal, other: False)))
    assert len(tree.nodes) == 2


def test_a_taskset_without_a_comparison_has_none() -> None:
    assert goal_comparison(load_taskset("math"), TASK) is None


# Oracles.

OFFLINE = sorted(set(TASKSETS) - {"math", "gym", "jsonl", "textcraft"})  # these need files or packages: own tests


@pytest.mark.parametrize("name", OFFLINE)
def test_no_oracle_gives_a_clone_a_goal_of_a_node_above(name: str) -> None:
    taskset: Taskset = load_taskset(name)
    for index in range(4):
        task = taskset.task("train", index)
        for dialect in dialects_for(taskset, task):
            for seed in (0, 1):
                tree = anyio.run(partial(demonstrate, taskset, task, dialect=dialect, seed=seed))
                refused = [refusal for node in tree.nodes for turn in node.turns for refusal in turn.refusals]
                assert refused == []
                assert len(tree.nodes) > 1


def test_the_oracle_of_arithmetic_looks_inside_brackets_before_it_splits() -> None:
    """A clone that got `(1+2*3)` splits the sum, instead of passing on `1+2*3`."""
    oracle = Arithmetic().oracle(TASK, delegate=True, seed=0)
    move = oracle.move(ramet.View(goal="Compute (1+2*3)", depth=0))
    assert [ask.goal for ask in move.asks] == ["Compute 2*3"]


def test_the_oracle_of_aggregate_gives_the_halves_of_a_single_page_to_two_clones() -> None:
    taskset = Aggregate(lines=9, kinds="count")
    tree = anyio.run(partial(demonstrate, taskset, taskset.task("train", 0)))
    assert list(tree.task.context) == ["lines 1-9"]
    assert [node.goal[-11:] for node in tree.nodes[1:]] == ["(lines 1-5)", "(lines 6-9)"]
    assert all(node.verdict == Verdict(score=1.0, how="exact") for node in tree.nodes)


def test_the_oracle_of_aggregate_answers_itself_when_there_is_one_line() -> None:
    taskset = Aggregate(lines=1, kinds="count")
    assert len(anyio.run(partial(demonstrate, taskset, taskset.task("train", 0))).nodes) == 1
