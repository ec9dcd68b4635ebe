"""Countdown and the game of 24: exact formulas, puzzles solved by search, and every part can be checked."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations_with_replacement, permutations
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.errors import ConfigError, MalformedAction
from ramet.tasks.countdown.formula import Formula, join, last_formula, number, parse
from ramet.tasks.countdown.puzzle import Puzzle, parse_puzzle, reachable, solve, solves
from ramet.tasks.countdown.taskset import Countdown, Game24, puzzle_of, solution_of
from ramet.tasks.dice import in_eval
from ramet.tasks.play import demonstrate
from ramet.tasks.registry import load_taskset
from ramet.tasks.validate import validate
from ramet.types import Node, Stop, Task, Tree

COUNTDOWN, GAME24 = Countdown(), Game24()
BOTH = (COUNTDOWN, GAME24)


def node(goal: str, answer: str | None, *, parent: int | None = 0) -> Node:
    return Node(index=1, parent=parent, depth=1, path=(0,), goal=goal, grant=1, answer=answer)


def score(goal: str, answer: str | None) -> float | None:
    task = COUNTDOWN.task("train", 0)
    verdict = COUNTDOWN.verdict(task, COUNTDOWN.world(task), node(goal, answer))
    assert verdict is None or verdict.how == "exact"
    return verdict and verdict.score


def goal(numbers: tuple[int, ...], target: int) -> str:
    return Puzzle(numbers, Fraction(target)).goal()


# Formulas.


def build(parts: tuple[Formula, Formula, str]) -> Formula:
    left, right, operator = parts
    return join(left, operator, right) or left


FORMULAS = st.recursive(
    st.integers(0, 100).map(number),
    lambda inner: st.tuples(inner, inner, st.sampled_from("+-*/")).map(build),
    max_leaves=8,
)


@given(FORMULAS)
def test_a_formula_is_parsed_as_it_was_written(formula: Formula) -> None:
    assert parse(str(formula)) == formula
    assert parse(str(formula).replace(" ", "")).value == formula.value


@given(FORMULAS)
def test_the_steps_are_all_true(formula: Formula) -> None:
    done = formula.steps()
    assert len(done) == len(formula.numbers()) - 1
    for step in done:
        left, operator, right, _, result = step.split(" ")
        found = join(Formula(Fraction(left)), operator, Formula(Fraction(right)))
        assert found is not None
        assert found.value == Fraction(result)
    assert not done or Fraction(done[-1].rpartition(" ")[2]) == formula.value


@given(FORMULAS)
def test_a_formula_is_found_in_a_sentence(formula: Formula) -> None:
    for sentence in ("I get {}.", "{} = 17", "First 1 + 1; then {}", "{}"):
        found = last_formula(sentence.format(formula))
        if formula.sides:
            assert found is not None
            assert found.value == formula.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8 / (3 - 8/3)", Fraction(24)),
        ("2-3-4", Fraction(-5)),
        ("8/4/2", Fraction(1)),
        ("1+2*3", Fraction(7)),
        ("(1+2)*3", Fraction(9)),
        ("7/2", Fraction(7, 2)),
        ("((((4))))+1", Fraction(5)),
    ],
)
def test_values_computed_by_hand(text: str, value: Fraction) -> None:
    assert parse(text).value == value


@pytest.mark.parametrize(
    "text",
    [
        *("", "+", "1+", "1++2", "(1+2", "1+2)", "2(3)", "()", "1 2+3"),
        *("1.5+2", "9**9**9", "2^3", "-3+5", "3*-2", "1/0", "4/(2-2)", "x+1", "7!", "__import__('os')"),
        *("1" * 2000, "(" * 200 + "1" + ")" * 200, "٣+1"),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(MalformedAction):
        parse(text)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("(99 * 10) - 9", "(99 * 10) - 9"),
        ("It is (99*10)-9 = 981.", "(99 * 10) - 9"),
        ("981 = (99*10)-9", "(99 * 10) - 9"),
        ("Try 9+9. No: 99×10−9", "(99 * 10) - 9"),
        ("1+1 or 2+2", "2 + 2"),  # the last one counts
        ("8 ÷ 2", "8 / 2"),
        ("1+2\n3*4", "3 * 4"),
        ("3. (1+2)*8", "(1 + 2) * 8"),  # a full stop ends a formula
        ("24 - that is (1+2)*8", "(1 + 2) * 8"),
        ("(1+2)*8 = 24 - yes", "(1 + 2) * 8"),
        ("$(1+2)*8$", "(1 + 2) * 8"),
        ("8/(3-8/3) = 8/(1/3) = 24", "8 / (3 - (8 / 3))"),  # of equal ones the first
        ("24 = 8/(3-8/3) = 8/(1/3)", "8 / (3 - (8 / 3))"),
        ("2*3*4\n= 6*4\n= 24", "(2 * 3) * 4"),
        ("2*3 = 6, 6*4 = 24", "6 * 4"),
        ("2 x 3 X 4", "(2 * 3) * 4"),
        ("2x(3+1)", "2 * (3 + 1)"),
        ("2 \\times 3 \\cdot4", "(2 * 3) * 4"),
        ("2\\cdot3\\div4", "(2 * 3) / 4"),
        ("2 ⋅ 3∗4", "(2 * 3) * 4"),
        ("\\frac{8}{3-\\frac{8}{3}}", "8 / (3 - (8 / 3))"),
        ("\\dfrac82 + 1", "(8 / 2) + 1"),
        ("\\left(1+2\\right) \\times 8", "(1 + 2) * 8"),
        ("\\boxed{8/(3-8/3)}, as 3-8/3 = 1/3", "8 / (3 - (8 / 3))"),  # a box counts first
        ("So \\[ 2*3*4 = 24 \\]", "(2 * 3) * 4"),
        ("So \\(2*3*4\\).", "(2 * 3) * 4"),
        ("\\boxed{24} = 2*12", "2 * 12"),
        ("**(1+2)*8**", "(1 + 2) * 8"),
        ("(1+2)*8 (using 1, 2, 8)", "(1 + 2) * 8"),
        ("(1+2)*8 (24)", "(1 + 2) * 8"),
        ("(1+2)*8 - as asked", "(1 + 2) * 8"),
        ("- (1+2)*8", "(1 + 2) * 8"),  # an item of a list
        ("-3 + 27", None),  # not 3 + 27
        ("24 = -13 + 37", None),
        ("2 (3+4)", None),
        ("x 3", None),
        ("2**3", None),
        ("just 24", None),
        ("1.5*2", None),
        ("impossible", None),
        ("", None),
        (None, None),
    ],
)
def test_the_last_formula_of_an_answer_counts(answer: str | None, found: str | None) -> None:
    formula = last_formula(answer)
    assert (formula and str(formula)) == found


@pytest.mark.parametrize(
    "answer",
    [
        *("(" * 10**6, "1+" * 10**6, "9**9**9" * 10**5, "9" * 10**6, "1 " * 10**6, "(1+" * 10**5, "1/0 " * 10**5),
        *("*".join(["9" * 90] * 11), "." * 10**6, "1." * 10**6, "(1)" * 10**5),
        *(
            "\\frac{" * 10**5,
            "\\frac{1}{" * 10**5,
            "=" * 10**6,
            "1=" * 10**6,
            " " * 10**6,
            "\\boxed{" * 10**5,
            "1 x " * 10**5,
        ),
    ],
    ids=range(18),
)
def test_a_hostile_answer_has_no_formula(answer: str) -> None:
    assert not solves(answer, Puzzle((99, 9, 10), Fraction(981)))


# Solving.


def all_values(numbers: tuple[Fraction, ...]) -> Iterator[Fraction]:
    """Every reachable value, by joining any two numbers repeatedly: slow and simple."""
    if len(numbers) == 1:
        yield numbers[0]
    for a, b in permutations(range(len(numbers)), 2):
        rest = tuple(one for i, one in enumerate(numbers) if i not in (a, b))
        left, right = numbers[a], numbers[b]
        for value in [left + right, left - right, left * right, *([left / right] if right else [])]:
            yield from all_values((*rest, value))


@pytest.mark.parametrize("numbers", [(3,), (2, 5), (0, 4), (1, 2, 3), (5, 5, 0), (3, 3, 8, 8), (0, 1, 7, 13)])
def test_the_search_finds_exactly_the_reachable_values(numbers: tuple[int, ...]) -> None:
    values = set(all_values(tuple(map(Fraction, numbers))))
    assert set(reachable(numbers)) == values
    for target in [*sorted(values)[:150], *map(Fraction, range(-5, 60))]:
        found = solve(numbers, target)
        assert (found is not None) == (target in values)
        if found is not None:
            assert found.value == target
            assert found.numbers() == sorted(numbers)


def test_five_numbers_are_searched_as_well() -> None:
    found = solve((2, 5, 25, 79, 3), Fraction(2445))
    assert found is not None
    assert (found.value, found.numbers()) == (2445, [2, 3, 5, 25, 79])
    assert solve((1, 1, 1, 1, 1), Fraction(7)) is None
    assert solve((1, 1, 1, 1, 1, 1), Fraction(10)) is None


def test_1362_of_1820_hands_make_24() -> None:
    hands = list(combinations_with_replacement(range(1, 14), 4))
    assert len(hands) == 1820
    assert sum(solve(hand, Fraction(24)) is not None for hand in hands) == 1362


def test_a_part_takes_the_place_of_one_number_only() -> None:
    assert str(parse("9 + 9*2").put(parse("3*3"))) == "(3 * 3) + (9 * 2)"
    with pytest.raises(AssertionError, match="no 7"):
        parse("1+2").put(number(7))


# Checking.


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("(25 - 5) * 2 + 79", True),
        ("79+2*(25-5) = 119", True),
        ("119", False),  # a value, not an expression
        ("79 + 40", False),  # other numbers
        ("(25-5)*2+79+0", False),  # one too many
        ("25 + 79 + 5*2", False),  # 114
        ("(25-5)*2", False),  # not all
        ("(25-5)*2*2+39", False),
        ("25-5*2+79", False),  # 94
        (None, False),
        ("impossible", False),
    ],
)
def test_an_answer_must_use_exactly_the_numbers_and_make_exactly_the_target(answer: str | None, right: bool) -> None:
    assert solves(answer, Puzzle((25, 5, 2, 79), Fraction(119))) is right


def test_values_are_exact() -> None:
    assert solves("8/(3-8/3)", Puzzle((3, 3, 8, 8), Fraction(24)))
    assert not solves("6 * 4 = 24", Puzzle((2, 3, 4), Fraction(24)))  # other numbers
    assert not solves("2 * 3 = 6 * 4 = 24", Puzzle((2, 3, 4), Fraction(24)))
    assert not solves("24 = 2 * 3 + 4 = 2 * 3 * 4", Puzzle((2, 3, 4), Fraction(24)))
    # 1/3 * 3 is 1, and 10^17 + 1 differs from 10^17: no floats.
    assert not solves("100000000000000000*1+0", Puzzle((10**17, 1, 0), Fraction(10**17 + 1)))


@pytest.mark.parametrize(
    ("text", "puzzle"),
    [
        (goal((3, 8), 24), ((3, 8), "24")),
        (
            "Use the numbers 4, 5, 6, 10 exactly once each with + - * / and parentheses to make 24.",
            ((4, 5, 6, 10), "24"),
        ),
        ("using the numbers 3, 8 each once, find an expression equal to -5", ((3, 8), "-5")),
        ("Using the numbers [3, 8], write an expression equal to 3/8. If there is none, say so.", ((3, 8), "3/8")),
    ],
)
def test_a_goal_is_parsed(text: str, puzzle: tuple[tuple[int, ...], str]) -> None:
    assert parse_puzzle(text) == Puzzle(puzzle[0], Fraction(puzzle[1]))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Say hello",
        "Make 24",
        "Using the numbers [3, 8], do something",
        goal((3, 8), 24) + " " + goal((3, 5), 15),  # two puzzles
        "Using the numbers [3], write an expression equal to 3.",
        "Using the numbers [1, 2, 3, 4, 5, 6, 7], write an expression equal to 28.",  # too many to search
        "Using the numbers [3, 8], write an expression equal to 24.5",
        "Using the numbers [3, 8], write an expression equal to 3/0",
        "Using the numbers [3, x], write an expression equal to 3",
        f"Using the numbers [{'9' * 50}, 8], write an expression equal to 3",
        "Using the numbers [" * 10**4,
    ],
)
def test_a_goal_that_cannot_be_parsed_has_no_verdict(text: str) -> None:
    assert parse_puzzle(text) is None
    assert score(text, "3 * 8") is None


def test_a_clone_is_graded_by_the_puzzle_in_its_goal() -> None:
    assert score(goal((3, 8), 24), "3*8") == 1.0
    assert score(goal((3, 8), 24), "8+3") == 0.0
    assert score(goal((3, 8), 24), None) == 0.0
    assert score(goal((3, 8), 24), "impossible") == 0.0
    assert score(goal((1, 2, 3), 9), "It is (1+2)*3.") == 1.0


def test_impossible_is_right_only_without_a_solution() -> None:
    assert score(goal((3, 8), 23), "impossible") == 1.0
    assert score(goal((3, 8), 23), "This is Impossible.") == 1.0
    assert score(goal((3, 8), 23), "3*8") == 0.0
    assert score(goal((3, 8), 23), None) == 0.0
    assert score(goal((1, 1, 1, 1, 1), 7), "There is no solution") == 1.0
    assert score(goal((1, 1, 1, 1, 1), 6), "impossible") == 0.0  # (1+1)*(1+1+1)


@pytest.mark.parametrize("taskset", BOTH, ids=lambda one: one.name)
def test_the_root_is_graded_by_its_own_puzzle(taskset: Countdown) -> None:
    task = taskset.task("eval", 0)
    world = taskset.world(task)
    for answer, wanted in [(str(solution_of(task)), 1.0), ("1 + 1", 0.0), ("impossible", 0.0), (None, 0.0)]:
        verdict = taskset.verdict(task, world, node(task.question, answer, parent=None))
        assert verdict is not None
        assert (verdict.score, verdict.how) == (wanted, "exact")


# Generators.


def sample(taskset: Countdown, split: str, size: int = 300) -> list[Task]:
    return [taskset.task(split, index) for index in range(size)]


@pytest.mark.parametrize("split", ["train", "eval", "long"])
def test_countdown_tasks_are_solvable_and_have_the_requested_size(split: str) -> None:
    tasks = sample(COUNTDOWN, split)
    sizes = Counter(len(puzzle_of(task).numbers) for task in tasks)
    assert set(sizes) == ({5, 6} if split == "long" else {3, 4})
    assert min(sizes.values()) > 120
    for task in tasks:
        puzzle = puzzle_of(task)
        assert task.question == puzzle.goal()
        assert solves(str(solution_of(task)), puzzle)
        assert 10 <= puzzle.target <= 999
        assert all(1 <= one <= 99 for one in puzzle.numbers)
        # All steps are whole, so the rest after a first operation can be delegated.
        assert all(part.value.denominator == 1 and part.value > 0 for part in solution_of(task).walk())


def test_countdown_uses_every_operator() -> None:
    used = Counter(symbol for task in sample(COUNTDOWN, "train", 500) for symbol in str(solution_of(task)))
    total = sum(used[symbol] for symbol in "+-*/")
    shares = {symbol: used[symbol] / total for symbol in "+-*/"}
    assert shares == pytest.approx({"+": 0.37, "-": 0.21, "*": 0.37, "/": 0.05}, abs=0.05)


def test_game24_tasks_have_four_numbers() -> None:
    for task in sample(GAME24, "train"):
        puzzle = puzzle_of(task)
        assert len(puzzle.numbers) == 4
        assert all(1 <= one <= 13 for one in puzzle.numbers)
        assert puzzle.target == 24
        assert parse_puzzle(task.question) == puzzle
        assert solves(str(solution_of(task)), puzzle)


@pytest.mark.parametrize("taskset", BOTH, ids=lambda one: one.name)
def test_train_and_eval_never_overlap_in_any_order_of_numbers(taskset: Countdown) -> None:
    train, held_out = ({puzzle_of(task).key() for task in sample(taskset, split)} for split in ("train", "eval"))
    assert len(train) > 200
    assert len(held_out) > 100
    assert not train & held_out
    assert all(map(in_eval, held_out))


def test_train_and_eval_never_overlap_with_few_puzzles() -> None:
    small = Countdown(numbers=(2, 2), long_numbers=(3, 3), largest=5, targets=(1, 20))
    train, held_out = ({puzzle_of(task).key() for task in sample(small, split)} for split in ("train", "eval"))
    assert train
    assert held_out
    assert not train & held_out


@pytest.mark.parametrize("taskset", BOTH, ids=lambda one: one.name)
def test_tasks_are_the_same_on_every_machine(taskset: Countdown) -> None:
    generated = [split for split in taskset.splits if not split.startswith("data_")]
    digests = {
        split: hashlib.sha256(
            repr([(task.question, task.reference) for task in sample(taskset, split, 50)]).encode()
        ).hexdigest()[:16]
        for split in generated
    }
    assert digests == DIGESTS[taskset.name]


DIGESTS = {
    "countdown": {"train": "66d50c51d1597e2e", "eval": "416fe1c5cec4a0cd", "long": "251f789ad2f5b641"},
    "game24": {"train": "e322ca1e10604bfb", "eval": "3b9c625add9c1a4e"},
}


def test_another_seed_gives_other_tasks() -> None:
    assert Countdown(seed=1).task("train", 0) != COUNTDOWN.task("train", 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"numbers": (1, 2)}, "numbers must be a range from 2 up"),
        ({"numbers": (3, 5)}, "long_numbers must be a range from 6 up"),
        ({"long_numbers": (5, 7)}, "long_numbers must be at most 6"),
        ({"targets": "ten"}, "targets must be a whole number or a range"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_taskset("countdown", **options)


def test_options_that_leave_no_task_are_an_error() -> None:
    with pytest.raises(ConfigError, match="leave no puzzle for train"):
        Countdown(numbers=(2, 2), largest=2, targets=(900, 999)).task("train", 0)


# Oracles.


@pytest.mark.parametrize("split", ["train", "eval", "long"])
def test_the_countdown_oracle_is_right_alone_and_delegating_in_every_dialect(split: str) -> None:
    report = anyio.run(functools.partial(validate, COUNTDOWN, split, num_tasks=6))
    assert report.faults == []
    assert report.delegating == 18


@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_game24_oracle_is_right_alone_and_delegating_in_every_dialect(split: str) -> None:
    report = anyio.run(functools.partial(validate, GAME24, split, num_tasks=8, seed=1))
    assert report.faults == []
    assert report.delegating == 24


def shown(taskset: Countdown, task: Task, *, seed: int = 0, delegate: bool = True) -> Tree:
    return anyio.run(functools.partial(demonstrate, taskset, task, seed=seed, delegate=delegate))


def test_a_puzzle_that_needs_a_fraction_is_solved() -> None:
    reference = {"numbers": [3, 3, 8, 8], "target": 24, "solution": "8 / (3 - (8 / 3))"}
    task = Task(id="hard", question="Use the numbers 3, 3, 8, 8 exactly once each to make 24.", reference=reference)
    tree = shown(GAME24, task)
    # No first operation with a whole result works: every clone answers impossible, and the root solves it alone.
    assert [one.answer for one in tree.nodes[1:] if one.depth == 1] == ["impossible"] * (len(list(tree.children(0))))
    assert tree.answer == "8 / (3 - (8 / 3))"
    assert all(one.verdict is not None and one.verdict.score == 1.0 for one in tree.nodes)


def test_clones_get_smaller_puzzles_some_with_and_some_without_a_solution() -> None:
    trees = [shown(COUNTDOWN, COUNTDOWN.task("train", index)) for index in range(20)]
    for tree in trees:
        for one in tree.nodes[1:]:
            puzzle, parent = parse_puzzle(one.goal), parse_puzzle(tree.nodes[one.parent or 0].goal)
            assert puzzle is not None
            assert parent is not None
            assert len(puzzle.numbers) == len(parent.numbers) - 1
            assert puzzle.target == parent.target
            assert one.stop is Stop.ANSWERED
    answers = [one.answer for tree in trees for one in tree.nodes[1:]]
    assert answers.count("impossible") > 10
    assert sum(answer != "impossible" for answer in answers) > 10
    assert {tree.depth for tree in trees} >= {1, 2}
    assert len({len(list(tree.children(0))) for tree in trees}) > 1


def test_the_tries_of_the_oracle_vary_with_its_seed() -> None:
    task = COUNTDOWN.task("train", 4)
    goals = {tuple(one.goal for one in shown(COUNTDOWN, task, seed=seed).nodes) for seed in range(6)}
    assert len(goals) > 1


@pytest.mark.parametrize("taskset", BOTH, ids=lambda one: one.name)
def test_no_prompt_shows_the_solution(taskset: Countdown) -> None:
    for index in range(5):
        task = taskset.task("train", index)
        for delegate in (False, True):
            tree = shown(taskset, task, delegate=delegate)
            opening = tree.root.pieces[0].text
            assert task.question in opening
            for secret in (str(solution_of(task)), str(solution_of(task)).replace(" ", ""), "solution", "reference"):
                assert secret not in opening


@pytest.mark.parametrize("taskset", BOTH, ids=lambda one: one.name)
def test_the_right_solution_scores_one_and_a_wrong_one_nothing(taskset: Countdown) -> None:
    assert {taskset.self_check(task) for task in sample(taskset, "train", 50)} == {(1.0, 0.0)}


# Data files.


ROWS: list[dict[str, Any]] = [
    {
        "id": "countdown-0",
        "question": "Using the numbers [99, 9, 10], each exactly once, with + - * / and parentheses, "
        "write an expression equal to 981.",
        "answer": "(99 * 10) - 9",
        "meta": {"dataset": "countdown", "numbers": [99, 9, 10], "target": 981, "verify": "expression"},
    },
    {
        "id": "countdown-1",
        "question": "Make 815 of 25, 5, 2 and 79.",  # another wording: the numbers are in the row
        "answer": "((79 * 5) * 2) + 25",
        "meta": {"numbers": [25, 5, 2, 79], "target": 815},
    },
]


def write(folder: Path, name: str, rows: list[Any]) -> Path:
    with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return folder


def test_data_rows_become_tasks_that_the_oracle_solves(tmp_path: Path) -> None:
    for name in ("countdown", "game24"):
        taskset = load_taskset(name, data=write(tmp_path, f"{name}_eval", ROWS))
        assert taskset.size("data_eval") == 2
        task = taskset.task("data_eval", 1)
        assert task.id == f"{name}:data_eval/1"
        assert task.question == ROWS[1]["question"]
        assert task.reference == {"numbers": [25, 5, 2, 79], "target": 815, "solution": "((79 * 5) * 2) + 25"}
        report = anyio.run(functools.partial(validate, taskset, "data_eval"))
        assert (report.tasks, report.faults) == (2, [])
        with pytest.raises(ConfigError, match="has tasks 0 to 1, not 2"):
            taskset.task("data_eval", 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": 7}, r"countdown_train\.jsonl\.gz, line 2: field 'answer' is int; str is wanted"),
        ({"meta": None}, r"countdown_train\.jsonl\.gz, line 2: field 'meta' is NoneType; dict is wanted"),
        ({"meta": {"target": 3}}, r"countdown_train\.jsonl\.gz, row 2: field 'meta\.numbers' must be a list"),
        ({"meta": {"numbers": [], "target": 3}}, r"row 2: field 'meta\.numbers'"),
        ({"meta": {"numbers": [True, 2], "target": 3}}, r"row 2: field 'meta\.numbers'"),
        ({"meta": {"numbers": [1, 2], "target": "3"}}, r"row 2: field 'meta\.target' must be a whole number"),
        ({"answer": "99 * 10"}, r"row 2: field 'answer' does not solve the puzzle: '99 \* 10'"),
    ],
)
def test_a_bad_row_names_file_line_and_field(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    taskset = Countdown(data=write(tmp_path, "countdown_train", [ROWS[0], ROWS[0] | change]))
    with pytest.raises(ConfigError, match=message):
        taskset.task("data_train", 1)


def test_without_data_the_generators_work_and_data_splits_name_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="countdown reads countdown_eval from a data folder: give --data PATH"):
        COUNTDOWN.task("data_eval", 0)
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path} has no game24_eval.jsonl.gz")):
        Game24(data=tmp_path).size("data_eval")
