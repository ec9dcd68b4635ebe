"""Number search: the world answers guesses, ranges can be split, and a number counts only if it was guessed."""

from __future__ import annotations

import functools
import hashlib
import json
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.agent.options import TreeOptions
from ramet.engine.scripted import ScriptedEngine
from ramet.errors import ConfigError
from ramet.interfaces import View
from ramet.tasks.dice import in_eval
from ramet.tasks.number_search import Hidden, NumberSearch, find_range, range_goal
from ramet.tasks.play import demonstrate, play
from ramet.tasks.registry import load_taskset
from ramet.tasks.validate import validate
from ramet.types import Node, Prompt, Task, Tree

SEARCH = NumberSearch()
GENERATED = ("train", "eval", "long")


def node(goal: str, answer: str | None, *, index: int = 1, parent: int | None = 0) -> Node:
    return Node(index=index, parent=parent, depth=1, path=(0,), goal=goal, grant=1, answer=answer)


def score(goal: str, answer: str | None, *, guesses: Sequence[int] = (), parent: int | None = 0) -> float | None:
    """The score of a node when 200 is hidden between 176 and 356, after these guesses."""
    task = Task(question=range_goal(176, 356), reference=200)
    world = SEARCH.world(task)
    for guess in guesses:
        world.guess(guess)
    ended = node(goal, answer, parent=parent)
    world.ended(ended)
    verdict = SEARCH.verdict(task, world, ended)
    assert verdict is None or verdict.how == "exact"
    return verdict and verdict.score


# The world.


def test_a_guess_is_too_low_too_high_or_correct() -> None:
    world = Hidden(200)
    assert [world.guess(n) for n in (199, 201, -5, 10**30, 200)] == [
        "too low",
        "too high",
        "too low",
        "too high",
        "correct",
    ]
    assert world.found
    assert world.guess(3) == "too low"  # it stays found
    assert world.found


@pytest.mark.parametrize("n", ["200", 200.0, None, True, [200]])
def test_only_whole_numbers_can_be_guessed(n: Any) -> None:
    world = Hidden(200)
    with pytest.raises(ValueError, match="n is a whole number"):
        world.guess(n)
    assert not world.found


def test_guesses_can_be_limited_for_a_whole_tree() -> None:
    world = NumberSearch(guesses=2).world(Task(question=range_goal(1, 9), reference=5))
    assert [world.guess(1), world.guess(9)] == ["too low", "too high"]
    with pytest.raises(ValueError, match="no guesses are left"):
        world.guess(5)
    assert not world.found


def test_the_model_reads_what_a_guess_does() -> None:
    tree = shown(SEARCH.task("train", 0))
    assert "guess(n: int) -> str" in tree.root.pieces[0].text
    assert "too low" in tree.root.pieces[0].text


# Verdicts.


@pytest.mark.parametrize(
    ("answer", "guesses", "right"),
    [
        ("200", [200], 1.0),
        ("I found it", [250, 200, 176], 1.0),  # only guessing counts, as in the paper
        ("I could not find it; maybe 5", [200], 1.0),
        ("200", [], 0.0),  # named, never guessed
        ("200", [201], 0.0),
        (None, [200], 0.0),
        (None, [], 0.0),
    ],
)
def test_the_root_must_guess_and_answer(answer: str | None, guesses: list[int], right: float) -> None:
    assert score(range_goal(176, 356), answer, guesses=guesses, parent=None) == right


@pytest.mark.parametrize(
    ("goal", "answer", "guesses", "right"),
    [
        (range_goal(190, 210), "200", [200], 1.0),
        (range_goal(200, 210), "It is 200.", [200], 1.0),  # both ends are included
        (range_goal(190, 200), "200", [200], 1.0),
        (range_goal(190, 210), "200", [], 0.0),
        (range_goal(190, 210), "201", [200], 0.0),
        (range_goal(190, 210), "not between 190 and 210", [190], 0.0),
        (range_goal(190, 200), "It is not between 190 and 200", [200], 0.0),  # ends with the number, but denies it
        (range_goal(190, 210), None, [200], 0.0),
        (range_goal(201, 356), "not between 201 and 356", [], 1.0),
        (range_goal(201, 356), "It is not in this range.", [250], 1.0),
        (range_goal(201, 356), "Nothing there", [], 1.0),
        (range_goal(201, 356), "250", [250], 0.0),
        (range_goal(201, 356), "200", [200], 0.0),
        (range_goal(201, 356), None, [], 0.0),
        ("Say hello", "hello", [200], None),
        ("Guess the number between 1 and 5, then the number between 7 and 9.", "5", [], None),
        ("Guess a number between x and y", "5", [], None),
    ],
)
def test_a_clone_is_graded_by_the_range_in_its_goal(
    goal: str, answer: str | None, guesses: list[int], right: float | None
) -> None:
    assert score(goal, answer, guesses=guesses) == right


def test_a_guess_after_a_clone_ended_does_not_count_for_it() -> None:
    task = Task(question=range_goal(176, 356), reference=200)
    world = SEARCH.world(task)
    early, late = node(range_goal(190, 210), "200", index=1), node(range_goal(190, 210), "200", index=2)
    world.spawned(early)
    world.ended(early)
    world.guess(200)
    world.ended(late)
    verdicts = [SEARCH.verdict(task, world, one) for one in (early, late)]
    assert [verdict and verdict.score for verdict in verdicts] == [0.0, 1.0]


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_range_is_parsed_from_its_goal(low: int, high: int) -> None:
    assert find_range(range_goal(low, high)) == (low, high)


@pytest.mark.parametrize("goal", ["number between " * 10**5, "9" * 10**6, "number between " + "9" * 10**6 + " and 3"])
def test_a_hostile_goal_has_no_range(goal: str) -> None:
    assert find_range(goal) is None
    assert score(goal, "9" * 10**6) is None


# The generator.


def parts(task: Task) -> tuple[int, int, int]:
    low, high = find_range(task.question) or (0, 0)
    assert isinstance(task.reference, int)
    return low, task.reference, high


def test_the_number_lies_strictly_between_the_ends() -> None:
    for split, largest in (("train", 1024), ("eval", 1024), ("long", 1_024_000)):
        for index in range(200):
            low, hidden, high = parts(SEARCH.task(split, index))
            assert 0 <= low < hidden < high <= largest
            assert split != "long" or high - low > 1024


def test_draws_are_uniform() -> None:
    drawn = [parts(SEARCH.task("train", index)) for index in range(2000)]
    # Uniform from 1 to 1023; then the lower end from 0 up to it, the upper end from it up to 1024.
    assert statistics.mean(hidden for _, hidden, _ in drawn) == pytest.approx(512, abs=20)
    assert statistics.mean(low / (hidden - 1) for low, hidden, _ in drawn if hidden > 1) == pytest.approx(0.5, abs=0.02)
    assert statistics.mean((high - low) for low, _, high in drawn) == pytest.approx(512, abs=20)


def test_train_and_eval_never_overlap() -> None:
    train, held_out = ({parts(SEARCH.task(split, index)) for index in range(500)} for split in ("train", "eval"))
    assert not train & held_out
    small = NumberSearch(largest=8)
    few = [{parts(small.task(split, index)) for index in range(500)} for split in ("train", "eval")]
    assert few[0]
    assert few[1]
    assert not few[0] & few[1]
    assert all(in_eval(f"{low}:{hidden}:{high}") for low, hidden, high in few[1])


def test_tasks_are_the_same_on_every_machine() -> None:
    digests = {
        split: hashlib.sha256(
            repr([(task.question, task.reference) for task in (SEARCH.task(split, i) for i in range(50))]).encode()
        ).hexdigest()[:16]
        for split in GENERATED
    }
    assert digests == {"train": "9280f4340b018629", "eval": "354dd7e2c351936a", "long": "5da10add70399d6f"}


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="largest must be a whole number from 2 up; got 1"):
        NumberSearch(largest=1)
    # There is only one such task, and it is for evaluation.
    assert parts(NumberSearch(largest=2).task("eval", 0)) == (0, 1, 2)
    with pytest.raises(ConfigError, match="numbers up to 2 leave no task for train"):
        NumberSearch(largest=2).task("train", 0)


# The oracle.


def shown(task: Task, *, taskset: NumberSearch = SEARCH, delegate: bool = True, seed: int = 0) -> Tree:
    return anyio.run(functools.partial(demonstrate, taskset, task, delegate=delegate, seed=seed))


@pytest.mark.parametrize("split", GENERATED)
def test_the_oracle_is_right_alone_and_delegating_in_every_dialect(split: str) -> None:
    report = anyio.run(functools.partial(validate, SEARCH, split, num_tasks=8))
    assert report.faults == []
    assert report.delegating == 24


def test_the_oracle_is_right_in_tiny_ranges() -> None:
    report = anyio.run(functools.partial(validate, NumberSearch(largest=6), "train", num_tasks=10, seed=2))
    assert report.faults == []


def test_the_oracle_alone_halves_the_range() -> None:
    for index in range(10):
        task = SEARCH.task("train", index)
        low, _, high = parts(task)
        tree = shown(task, delegate=False)
        assert len(tree.root.turns) <= (high - low + 1).bit_length() + 1


def test_a_clone_that_finds_nothing_answers_so() -> None:
    oracle = SEARCH.oracle(SEARCH.task("train", 0), delegate=False, seed=0)
    move = oracle.move(View(goal=range_goal(5, 5), depth=1, history=(("too low",),)))
    assert move.answer == "not between 5 and 5"
    assert oracle.move(View(goal=range_goal(5, 5), depth=1, history=(("correct",),))).answer == "5"


def test_clones_search_parts_that_make_up_the_range() -> None:
    sizes: list[int] = []
    for index in range(15):
        task = SEARCH.task("train", index)
        tree = shown(task)
        for one in tree.nodes:
            ranges = [find_range(child.goal) or (0, 0) for child in tree.children(one.index)]
            if ranges:
                low, high = find_range(one.goal) or (0, 0)
                assert (ranges[0][0], ranges[-1][1]) == (low, high)
                assert all(b + 1 == c for (_, b), (c, _) in pairwise(ranges))
        sizes += [len(list(tree.children(0))), tree.depth]
    assert {2, 3, 4} <= set(sizes[::2])
    assert {1, 2} <= set(sizes[1::2])


def test_no_prompt_shows_the_number() -> None:
    for index in range(5):
        task = SEARCH.task("train", index)
        for delegate in (False, True):
            tree = shown(task, delegate=delegate)
            opening = tree.root.pieces[0].text.replace(task.question, "")
            assert str(task.reference) not in opening.split()


def test_naming_the_number_without_a_guess_is_wrong() -> None:
    task = SEARCH.task("train", 0)

    def speak(prompt: Prompt) -> str:
        return f"Answer: {task.reference}"

    tree = anyio.run(functools.partial(play, SEARCH, task, TreeOptions(engine=ScriptedEngine(speak))))
    assert tree.root.verdict is not None
    assert tree.root.verdict.score == 0.0


def test_the_right_solution_scores_one_and_a_wrong_one_zero() -> None:
    assert {SEARCH.self_check(SEARCH.task("train", index)) for index in range(50)} == {(1.0, 0.0)}


# Data files.


ROW: dict[str, Any] = {
    "id": "number_search-226",
    "question": "Guess the correct number between 176 and 356.",
    "answer": "200",
    "meta": {"dataset": "number_search", "low": 176, "high": 356, "verify": "integer"},
}


def write(folder: Path, rows: list[Any]) -> Path:
    (folder / "number_search_eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_data_rows_become_tasks_that_the_oracle_solves(tmp_path: Path) -> None:
    taskset = load_taskset("number_search", data=write(tmp_path, [ROW, ROW]))
    assert taskset.size("data_eval") == 2
    task = taskset.task("data_eval", 1)
    assert (task.id, task.question, task.reference) == ("number_search:data_eval/1", ROW["question"], 200)
    report = anyio.run(functools.partial(validate, taskset, "data_eval"))
    assert (report.faults, report.delegating) == ([], 6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"meta": {"low": 176}}, r"number_search_eval\.jsonl, row 2: fields 'meta\.low' and 'meta\.high'"),
        ({"meta": {"low": "176", "high": 356}}, r"row 2: fields 'meta\.low' and 'meta\.high' must be whole numbers"),
        (
            {"answer": "many"},
            r"number_search_eval\.jsonl, row 2: field 'answer' must be a whole number from 176 to 356",
        ),
        ({"answer": "400"}, r"row 2: field 'answer' must be a whole number from 176 to 356"),
        ({"question": None}, r"line 2: field 'question' is NoneType; str is wanted"),
    ],
)
def test_a_bad_row_names_file_line_and_field(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    taskset = NumberSearch(data=write(tmp_path, [ROW, ROW | change]))
    with pytest.raises(ConfigError, match=message):
        taskset.task("data_eval", 1)


def test_without_data_the_generator_works_and_data_splits_name_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="number_search reads number_search_train from a data folder"):
        SEARCH.task("data_train", 0)
