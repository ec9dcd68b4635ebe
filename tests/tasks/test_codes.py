"""Codes: sums of longest runs, checked at every node, demonstrated alone and delegating."""

from __future__ import annotations

from functools import partial
from itertools import product

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.errors import ConfigError
from ramet.interfaces import TaskWorld, View
from ramet.tasks.codes import Adder, Codes, fitting, goal, halves, last_digit, longest_run, pattern_in, patterns
from ramet.tasks.play import demonstrate
from ramet.types import Node, Task

PATTERNS = st.text("01?", min_size=2, max_size=9)


def node_of(text: str, answer: str | None, *, parent: int | None = 0) -> Node:
    return Node(index=1, parent=parent, depth=1, path=(0,), goal=text, grant=9, answer=answer)


def score_of(answer: str | None, text: str) -> float | None:
    task = Task(question=goal("1?0"), id="codes:train/0")
    verdict = Codes().verdict(task, TaskWorld(task), node_of(text, answer))
    return None if verdict is None else verdict.score


def test_the_longest_runs_are_added_and_the_last_digit_counts():
    assert longest_run("101111001") == 4
    assert longest_run("0") == 1
    assert last_digit("1?0") == 4  # two in 100, two in 110
    assert last_digit("0000000?") == 5  # eight in 00000000, seven in 00000001


@given(PATTERNS)
def test_all_matching_codes_are_listed_in_order_and_once(pattern: str):
    every = ["".join(code) for code in product("01", repeat=len(pattern))]
    fits = [code for code in every if all(wanted in ("?", found) for wanted, found in zip(pattern, code, strict=True))]
    assert list(fitting(pattern)) == fits


@given(PATTERNS.filter(lambda pattern: "?" in pattern))
def test_halves_add_up_to_the_whole(pattern: str):
    one, other = halves(pattern)
    assert sorted([*fitting(one), *fitting(other)]) == list(fitting(pattern))
    assert (last_digit(one) + last_digit(other)) % 10 == last_digit(pattern)


@given(PATTERNS)
def test_a_goal_is_parsed_as_it_was_written(pattern: str):
    assert pattern_in(goal(pattern)) == pattern


def test_a_goal_without_exactly_one_short_pattern_has_no_verdict():
    assert score_of("4", "add things") is None
    assert score_of("4", "add 1?0 and 0?1") is None
    assert score_of("4", goal("?" * 40)) is None  # too many codes for a verdict


def test_a_clone_is_graded_by_its_own_goal():
    assert score_of("5", goal("0000000?")) == 1.0
    assert score_of("it is 5", goal("0000000?")) == 1.0
    assert score_of("15", goal("0000000?")) == 0.0  # more than the last digit
    assert score_of("-5", goal("0000000?")) == 0.0
    assert score_of(None, goal("0000000?")) == 0.0


def test_the_sum_does_not_follow_from_the_number_of_ones_or_unknown_places():
    """The number of ones in all codes would: half a one for every `?`, times the codes."""
    for unknown in (4, 5):
        by_ones: dict[int, list[int]] = {}
        for pattern in patterns(8, unknown):
            by_ones.setdefault(pattern.count("1"), []).append(last_digit(pattern))
        guessed = sum(max(digits.count(digit) for digit in range(10)) for digits in by_ones.values())
        assert guessed / sum(map(len, by_ones.values())) < 0.25  # with the best guess for every number of ones


def test_training_and_evaluation_do_not_overlap():
    taskset = Codes(unknown=(1, 4))
    train = {taskset.task("train", index).question for index in range(400)}
    held_out = {taskset.task("eval", index).question for index in range(100)}
    assert train
    assert held_out
    assert not train & held_out


@pytest.mark.parametrize(("split", "codes", "number"), [("long", 64, 112), ("longer", 128, 16)])
def test_long_patterns_have_more_codes_than_training_and_no_repeats(split: str, codes: int, number: int):
    taskset = Codes(unknown=(1, 5))
    assert taskset.size(split) == number
    tasks = [taskset.task(split, index) for index in range(number)]
    assert {taskset.size_of(task) for task in tasks} == {codes}
    assert len({task.question for task in tasks}) == number
    assert taskset.sizes("train") == (2, 32)


@pytest.mark.parametrize("delegate", [False, True])
@pytest.mark.parametrize("dialect", ["tools", "python", "terse"])
def test_the_oracle_is_right_alone_and_delegating(dialect: str, delegate: bool):
    taskset = Codes(unknown=(2, 4))
    for index in range(4):
        task = taskset.task("train", index)
        tree = anyio.run(partial(demonstrate, taskset, task, dialect=dialect, delegate=delegate, seed=index))
        assert all(node.verdict is not None and node.verdict.score == 1 for node in tree.nodes)
        assert (len(tree.nodes) > 1) == delegate


def test_a_parent_does_the_work_of_a_refused_clone():
    adder = Adder(delegate=True, dice_seed=("x",))
    move = adder.move(View(goal=goal("1?0"), depth=0, history=(("no", "5"),)))
    assert move.answer == "4"
    assert move.thought == "2 codes\n100:2=2\n110:2=4"


def test_the_number_of_codes_is_stated_before_the_decision_to_delegate():
    task = Codes().task("train", 0)
    for delegate in (False, True):
        move = Codes().oracle(task, delegate=delegate, seed=0).move(View(goal=task.question, depth=0, history=()))
        assert move.thought.split("\n")[0] == f"{Codes().size_of(task):.0f} codes"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unknown": [1, 8]}, "places must be from 9, one more than unknown, to 16; got 8"),
        ({"places": 40}, "places must be from 6, one more than unknown, to 16; got 40"),
        ({"unknown": [5, 2]}, "unknown must be a range from 0 up"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, list[int]], message: str):
    with pytest.raises(ConfigError, match=message):
        Codes(**options)  # pyright: ignore[reportArgumentType]


def test_a_split_that_needs_more_places_is_refused():
    with pytest.raises(ConfigError, match="codes:longer needs 7 unknown places, but places is 6"):
        Codes(places=6, unknown=(1, 5)).task("longer", 0)
