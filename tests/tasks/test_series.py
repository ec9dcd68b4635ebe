"""Series: digits added up, checked at every node, demonstrated both ways."""

from __future__ import annotations

from functools import partial

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.agent.tree import TaskWorld
from ramet.errors import ConfigError
from ramet.rollout import demonstrate
from ramet.tasks.oracle import View
from ramet.tasks.series import Adder, Series, ends_in, goal, last_digit
from ramet.types import Node, Task


def node_of(text: str, answer: str | None, *, parent: int | None = 0) -> Node:
    return Node(index=1, parent=parent, depth=1, path=(0,), goal=text, grant=9, answer=answer)


def score_of(answer: str | None, text: str) -> float | None:
    task = Task(question=goal(10, 12), id="series:train/0")
    verdict = Series().verdict(task, TaskWorld(task), node_of(text, answer))
    return None if verdict is None else verdict.score


def test_digits_are_added_and_the_last_one_counts():
    assert last_digit(13, 13) == 4
    assert last_digit(13, 15) == 5  # 1+3+1+4+1+5 = 15
    assert last_digit(10, 29) == 0  # ten ones, ten twos and twice 45


@given(st.integers(10, 99), st.integers(0, 60), st.integers(0, 60))
def test_parts_add_up_to_the_whole(first: int, left: int, right: int):
    cut, last = first + left, first + left + 1 + right
    assert last_digit(first, last) == (last_digit(first, cut) + last_digit(cut + 1, last)) % 10


@given(st.integers(0, 99_999), st.integers(0, 9_999))
def test_a_goal_is_read_as_it_was_written(first: int, more: int):
    assert ends_in(goal(first, first + more)) == (first, first + more)


def test_a_goal_without_a_sensible_series_cannot_be_judged():
    assert score_of("4", "add things") is None
    assert score_of("4", goal(20, 10)) is None
    assert score_of("4", goal(1, 900_000)) is None  # nobody adds that up for a verdict


def test_a_clone_is_judged_by_its_own_goal():
    assert score_of("5", goal(13, 15)) == 1.0
    assert score_of("it is 5", goal(13, 15)) == 1.0
    assert score_of("15", goal(13, 15)) == 0.0  # more than the last digit
    assert score_of("-5", goal(13, 15)) == 0.0
    assert score_of(None, goal(13, 15)) == 0.0


def test_leaving_out_twenty_numbers_in_a_row_is_noticed():
    wrong = sum(last_digit(first, first + 3) == last_digit(first, first + 63) for first in range(10, 37))
    assert wrong <= 9  # of 27; of the sums of the numbers themselves, all would be the same


def test_training_and_evaluation_do_not_meet():
    taskset = Series(terms=(1, 12))
    train = {taskset.task("train", index).question for index in range(400)}
    held_out = {taskset.task("eval", index).question for index in range(100)}
    assert train
    assert held_out
    assert not train & held_out


def test_long_series_are_at_least_twice_as_long_as_any_trained_on():
    taskset = Series(terms=(1, 12))
    terms = {last - first + 1 for first, last in (ends(taskset, "long", index) for index in range(100))}
    assert min(terms) == 24
    assert max(terms) == 27


def ends(taskset: Series, split: str, index: int) -> tuple[int, int]:
    found = ends_in(taskset.task(split, index).question)
    assert found is not None
    return found


@pytest.mark.parametrize("delegate", [False, True])
@pytest.mark.parametrize("dialect", ["tools", "python", "terse"])
def test_the_oracle_wins_both_ways(dialect: str, delegate: bool):
    taskset = Series(terms=(4, 12))
    for index in range(4):
        task = taskset.task("train", index)
        tree = anyio.run(partial(demonstrate, taskset, task, dialect=dialect, delegate=delegate, seed=index))
        assert all(node.verdict is not None and node.verdict.score == 1 for node in tree.nodes)
        assert (len(tree.nodes) > 1) == delegate


def test_what_a_refused_clone_would_have_done_is_done_by_its_parent():
    adder = Adder(delegate=True, dice_seed=("x",))
    move = adder.move(View(goal=goal(13, 16), depth=0, history=(("no", "5"),)))
    assert move.answer == "2"
    assert move.thought == "13:4=4\n14:5=9\n15:6=5\n16:7=2"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"terms": [1, 99]}, "terms go up to 99, and numbers are only 90"),
        ({"terms": [5, 2]}, "terms is a range from 1 up"),
        ({"numbers": [9, 3]}, "numbers is a range from 0 up"),
    ],
)
def test_options_that_make_no_sense_are_told(options: dict[str, list[int]], said: str):
    with pytest.raises(ConfigError, match=said):
        Series(**options)  # pyright: ignore[reportArgumentType]


def test_a_split_that_does_not_fit_into_the_numbers_is_told():
    with pytest.raises(ConfigError, match="series:long wants 101 terms, and numbers are only 90"):
        Series(terms=(1, 45)).task("long", 0)
