"""Arithmetic: the generator matches the paper's numbers, scores are computed by hand, and the oracle is right."""

from __future__ import annotations

import functools
import hashlib
import math
import statistics
from collections import Counter

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.errors import ConfigError
from ramet.interfaces import View
from ramet.tasks.arithmetic import Arithmetic, draw, partial_credit
from ramet.tasks.dice import Dice, in_eval
from ramet.tasks.expression import count_operators, find_expression, parse
from ramet.tasks.play import demonstrate
from ramet.tasks.registry import find_task, load_taskset
from ramet.tasks.validate import validate
from ramet.types import Budget, Node, Task

ARITHMETIC = Arithmetic()
SAMPLES = 4000


def node(goal: str, answer: str | None, *, parent: int | None = 0) -> Node:
    return Node(index=1, parent=parent, depth=1, path=(0,), goal=goal, grant=1, answer=answer)


def score(goal: str, answer: str | None) -> float | None:
    task = ARITHMETIC.task("train", 0)
    verdict = ARITHMETIC.verdict(task, ARITHMETIC.world(task), node(goal, answer))
    assert verdict is None or verdict.how == "exact"
    return verdict and verdict.score


# The generator, compared with 20,000 samples of the original.


@pytest.fixture(scope="module")
def sample() -> tuple[list[str], int]:
    """Accepted expressions, and the number of draws."""
    dice, found, tries = Dice("statistics"), list[str](), 0
    while len(found) < SAMPLES:
        tries += 1
        text = draw(dice, ARITHMETIC, (3, 10))
        found += [text] if text is not None else []
    return found, tries


def share(counts: Counter[int] | Counter[str]) -> dict[int | str, float]:
    return {key: number / counts.total() for key, number in counts.items()}


def test_more_than_half_of_all_draws_are_accepted(sample: tuple[list[str], int]) -> None:
    assert len(sample[0]) / sample[1] == pytest.approx(0.55, abs=0.025)


def test_the_number_of_operators_is_as_measured(sample: tuple[list[str], int]) -> None:
    numbers = [sum(symbol in "+-*" for symbol in text) for text in sample[0]]
    assert statistics.mean(numbers) == pytest.approx(5.86, abs=0.12)
    wanted = {3: 0.19, 4: 0.17, 5: 0.14, 6: 0.13, 7: 0.11, 8: 0.10, 9: 0.09, 10: 0.08}
    assert share(Counter(numbers)) == pytest.approx(wanted, abs=0.02)


def test_the_mix_of_operators_is_as_measured(sample: tuple[list[str], int]) -> None:
    mix = share(Counter(symbol for text in sample[0] for symbol in text if symbol in "+-*"))
    assert mix == pytest.approx({"*": 0.35, "-": 0.28, "+": 0.37}, abs=0.015)


def test_the_number_of_multiplications_is_as_measured(sample: tuple[list[str], int]) -> None:
    numbers = [text.count("*") for text in sample[0]]
    assert statistics.mean(numbers) == pytest.approx(2.04, abs=0.06)
    found = share(Counter(min(number, 5) for number in numbers))
    assert found == pytest.approx({0: 0.07, 1: 0.27, 2: 0.34, 3: 0.20, 4: 0.09, 5: 0.03}, abs=0.025)


def test_the_number_of_brackets_is_as_measured(sample: tuple[list[str], int]) -> None:
    pairs = share(Counter(text.count("(") for text in sample[0]))
    assert pairs == pytest.approx({0: 0.27, 1: 0.44, 2: 0.28}, abs=0.025)


def test_the_values_are_as_measured(sample: tuple[list[str], int]) -> None:
    values = [parse(text).value() for text in sample[0]]
    digits = [len(str(abs(value))) for value in values]
    assert max(digits) <= 16
    assert statistics.mean(digits) == pytest.approx(12.0, abs=0.15)
    assert statistics.median(digits) == 12
    assert sum(value < 0 for value in values) / len(values) == pytest.approx(0.34, abs=0.025)


def test_the_length_is_as_measured_with_spaces_around_operators(sample: tuple[list[str], int]) -> None:
    spaced = sorted(len(text) + 2 * sum(symbol in "+-*" for symbol in text) for text in sample[0])
    assert statistics.mean(spaced) == pytest.approx(53, abs=1.2)
    assert spaced[int(0.95 * len(spaced))] == pytest.approx(86, abs=3)


def test_operands_have_three_to_seven_digits_and_no_leading_zero(sample: tuple[list[str], int]) -> None:
    digits = Counter[int]()
    for text in sample[0]:
        operands = text.replace("(", "").replace(")", "").replace("*", "+").replace("-", "+").split("+")
        assert all(not operand.startswith("0") for operand in operands)
        digits.update(map(len, operands))
    # Long operands are rejected slightly more often.
    assert set(digits) == {3, 4, 5, 6, 7}
    assert all(0.15 < part < 0.26 for part in share(digits).values())


def test_the_split_does_not_change_what_is_drawn() -> None:
    for split in ("train", "eval"):
        operators = [count_operators(parse(asked(split, index))) for index in range(600)]
        assert statistics.mean(operators) == pytest.approx(5.86, abs=0.35)


# Tasks.


def asked(split: str, index: int) -> str:
    return ARITHMETIC.task(split, index).question.removeprefix("Compute ")


@pytest.mark.parametrize("split", ["train", "eval", "long"])
def test_a_task_has_the_value_of_its_expression(split: str) -> None:
    for index in range(50):
        task = ARITHMETIC.task(split, index)
        assert task.id == f"arithmetic:{split}/{index}"
        assert task.reference == parse(asked(split, index)).value()
        assert dict(task.context) == {}


def test_train_and_eval_never_overlap() -> None:
    train, held_out = ({asked(split, index) for index in range(300)} for split in ("train", "eval"))
    assert not train & held_out
    assert all(in_eval(text) for text in held_out)
    assert not any(in_eval(text) for text in train)
    easy = Arithmetic(operators=(1, 1), digits=(1, 1), symbols="+", brackets=False)
    sums = [{easy.task(split, index).question for index in range(300)} for split in ("train", "eval")]
    assert len(sums[0]) > 50
    assert len(sums[1]) >= 3
    assert not sums[0] & sums[1]


def test_long_tasks_have_more_operators_than_training() -> None:
    numbers = [count_operators(parse(asked("long", index))) for index in range(100)]
    assert min(numbers) >= 11
    assert max(numbers) <= 20
    # Values have at most 16 digits, so expressions with fewer operators are accepted more often.
    assert max(numbers) > 15


def test_tasks_are_the_same_on_every_machine() -> None:
    digests = {
        split: hashlib.sha256(
            repr([(task.question, task.reference) for task in (ARITHMETIC.task(split, i) for i in range(50))]).encode()
        ).hexdigest()[:16]
        for split in ARITHMETIC.splits
    }
    assert digests == {"train": "3ab3c7b48d6017ca", "eval": "5d2c4a22adf0b06a", "long": "f5e883d2e9f09dfc"}


def test_another_seed_gives_other_tasks() -> None:
    assert Arithmetic(seed=1).task("train", 0) != ARITHMETIC.task("train", 0)


@pytest.mark.parametrize("split", ["train", "eval", "long"])
def test_options_go_down_to_sums_of_one_digit(split: str) -> None:
    easy = Arithmetic(operators=(1, 1), digits=(1, 1), symbols="+", brackets=False, value_digits=2)
    for index in range(30):
        text = easy.task(split, index).question.removeprefix("Compute ")
        operands = text.split("+")
        assert len(operands) == (2 if split != "long" else 3)
        assert all(len(operand) == 1 and operand != "0" for operand in operands)
        assert easy.task(split, index).reference == sum(map(int, operands))


def test_only_the_given_symbols_are_used() -> None:
    options = Arithmetic(symbols="-", operators=(2, 4), digits=(2, 2))
    texts = [options.task("train", index).question.removeprefix("Compute ") for index in range(50)]
    assert all(set(text) <= set("0123456789-") for text in texts)


def test_values_have_at_most_the_given_digits() -> None:
    options = Arithmetic(operators=(1, 3), digits=(1, 2), value_digits=3)
    assert all(abs(options.task("train", index).reference) < 1000 for index in range(200))  # type: ignore[arg-type]


def test_unknown_splits_and_options_are_named() -> None:
    with pytest.raises(ConfigError, match="no split 'trian': did you mean train"):
        ARITHMETIC.task("trian", 0)
    with pytest.raises(ConfigError, match="not -1"):
        ARITHMETIC.task("train", -1)
    with pytest.raises(ConfigError, match="no option 'digit': did you mean digits"):
        load_taskset("arithmetic", digit=3)
    taskset, task = find_task("arithmetic:eval/3", {"seed": 0})
    assert (taskset.name, task) == ("arithmetic", ARITHMETIC.task("eval", 3))


# The score.


@pytest.mark.parametrize(
    ("answer", "value", "wanted"),
    [
        ("12", 12, 1.0),
        ("It is 5, no, 12.", 12, 1.0),
        ("-12", -12, 1.0),
        ("x12y", 12, 1.0),  # letters around the number are ignored
        ("0012", 12, 1.0),
        # 0.2 / log2(2 + |A - B| / sqrt(|2 + max(A, B)|))
        ("13", 12, 0.2 / math.log2(2 + 1 / math.sqrt(15))),
        ("11", 12, 0.2 / math.log2(2 + 1 / math.sqrt(14))),
        ("12 and then 13", 12, 0.2 / math.log2(2 + 1 / math.sqrt(15))),
        ("0", 14, 0.2 / math.log2(2 + 14 / 4)),
        ("14", -2, 0.2 / math.log2(2 + 16 / 4)),  # about 0.0774
        ("-18", -20, 0.2 / math.log2(2 + 2 / 4)),
        ("-12", 12, 0.2 / math.log2(2 + 24 / math.sqrt(14))),
        ("1,234", 1234, 1.0),
        ("\N{MINUS SIGN}1,234,567", -1234567, 1.0),
        ("12.0", 12, 1.0),
        ("3.0", 0, 0.2 / math.log2(2 + 3 / math.sqrt(5))),
        ("12.5", 12, 0.2 / math.log2(2 + 1 / math.sqrt(14))),  # as if it were 1 away
        ("1/2", 2, 0.2 / math.log2(2 + 2 / math.sqrt(4))),  # the whole number below it is 0
        # max(A, B) = -2 divides by zero in the original.
        ("-2", -5, 0.0),
        ("-5", -2, 0.0),
        ("-2", -2, 1.0),
        ("no number", 12, 0.0),
        ("", 12, 0.0),
        (None, 12, 0.0),
        ("twelve", 12, 0.0),
    ],
)
def test_partial_credit_computed_by_hand(answer: str | None, value: int, wanted: float) -> None:
    assert partial_credit(answer, value) == pytest.approx(wanted, rel=1e-12)


def test_some_partial_credits_as_numbers() -> None:
    assert partial_credit("13", 12) == pytest.approx(0.1702, abs=1e-4)
    assert partial_credit("14", -2) == pytest.approx(0.0774, abs=1e-4)
    assert partial_credit("0", 14) == pytest.approx(0.0813, abs=1e-4)


@given(st.integers(-(10**18), 10**18), st.integers(-(10**18), 10**18))
def test_a_wrong_number_gets_less_than_a_fifth(said: int, value: int) -> None:
    got = partial_credit(str(said), value)
    assert got == 1.0 if said == value else 0.0 <= got < 0.2


@given(st.integers(0, 10**12), st.integers(1, 10**6))
def test_a_closer_answer_from_below_never_scores_less(value: int, off: int) -> None:
    assert partial_credit(str(value - off), value) >= partial_credit(str(value - 2 * off), value)


@pytest.mark.parametrize("digits", [17, 100, 200, 299, 300, 301, 308, 309, 310, 350, 399, 400, 401, 4000, 5000, 10**6])
@pytest.mark.parametrize("sign", ["", "-"])
def test_huge_integers_are_just_wrong(digits: int, sign: str) -> None:
    assert 0.0 <= partial_credit(sign + "9" * digits, 12) < 0.01


def test_huge_values_can_be_answered() -> None:
    value = 10**350 + 7
    assert partial_credit(str(value), value) == 1.0
    assert 0.0 <= partial_credit("7", value) < 0.01
    # 0.2 / log2(10**350 / 10**175), to many digits
    assert partial_credit("7", value) == pytest.approx(0.2 / (175 * math.log2(10)), rel=1e-6)


# Verdicts.


def test_a_clone_is_graded_by_the_expression_in_its_goal() -> None:
    assert score("Compute 12*(3+4)", "84") == 1.0
    assert score("What is 12 * (3 + 4)? Give the number.", "It is 84") == 1.0
    assert score("Compute 12*(3+4)", "83") == pytest.approx(0.2 / math.log2(2 + 1 / math.sqrt(86)))
    assert score("Compute -3-4 please", "-7") == 1.0
    assert score("Compute 12*(3+4)", None) == 0.0
    assert score("Compute 12*(3+4)", "") == 0.0


def test_the_longest_of_several_expressions_counts() -> None:
    assert score("Add 1+2 to 30*40-5", "1195") == 1.0


@pytest.mark.parametrize("goal", ["Say hello", "", "Check 12", "Compute 9**9**9", "Compute (1+2", "What is 7/2?"])
def test_a_goal_without_an_expression_has_no_verdict(goal: str) -> None:
    assert score(goal, "12") is None


@pytest.mark.parametrize("goal", ["9**9**9" * 1000, "(" * 10**6, "1+" * 10**6, "(" * 200 + "1+2" + ")" * 200])
def test_a_hostile_goal_has_no_verdict(goal: str) -> None:
    got = score(f"Compute {goal}", "3")
    assert got is None or 0.0 <= got <= 1.0


def test_the_root_is_graded_by_the_task_not_by_its_goal() -> None:
    task = ARITHMETIC.task("train", 0)
    world = ARITHMETIC.world(task)
    right = ARITHMETIC.verdict(task, world, node("Compute 1+1", str(task.reference), parent=None))
    silent = ARITHMETIC.verdict(task, world, node(task.question, None, parent=None))
    assert right is not None
    assert silent is not None
    assert (right.score, silent.score) == (1.0, 0.0)


# The oracle.


def test_the_oracle_can_rewrite_the_expression_after_every_operation() -> None:
    rewriting = Arithmetic(operators=(2, 8), digits=1, working="rewrites")
    task = Task(id="t", question="Compute 2*(3+4)-5", reference=9)
    tree = anyio.run(functools.partial(demonstrate, rewriting, task, dialect="terse", delegate=False))
    assert tree.root.pieces[1].text == "2*7-5\n14-5\n= 9"
    for split in ("train", "long"):
        report = anyio.run(functools.partial(validate, rewriting, split, num_tasks=8))
        assert report.faults == []
    with pytest.raises(ConfigError, match="working must be steps or rewrites"):
        Arithmetic(working="magic")
    with pytest.raises(ConfigError, match="part must be a range from 1 up"):
        Arithmetic(part=0)


def test_parts_of_several_lengths_are_granted_what_each_of_them_takes() -> None:
    taskset = Arithmetic(
        operators=30, digits=1, symbols="+-", brackets=False, value_digits=3, working="rewrites",
        style="uniform", part=(2, 8), ask_tokens=True,
    )  # fmt: skip
    grants: dict[int, list[int]] = {}
    for index in range(6):
        tree = anyio.run(
            functools.partial(demonstrate, taskset, taskset.task("train", index), budget=Budget(tokens=2000))
        )
        assert tree.root.verdict is not None
        assert tree.root.verdict.is_right
        for node in tree.nodes[1:]:
            grants.setdefault(int(taskset.goal_size(taskset.task("train", index), node.goal) or 0), []).append(
                node.grant
            )
    assert set(grants) >= {2, 5, 8}
    assert max(grants[2]) < min(grants[5]) <= max(grants[5]) < min(grants[8])


def test_a_stated_size_is_repeated_with_the_tokens_left_before_a_root_acts() -> None:
    taskset = Arithmetic(
        operators=7, digits=1, symbols="+-", brackets=False, working="rewrites", style="uniform", state_size=True
    )
    task = taskset.task("train", 0)
    text, size = task.question.split("\n")
    assert size == "It has 7 operators."
    assert taskset.size_of(task) == 7
    assert taskset.self_check(task)[0] == 1.0
    for delegate in (True, False):
        oracle = taskset.oracle(task, delegate=delegate, seed=0)
        first = oracle.move(View(goal=task.question, depth=0, tokens=800))
        lines = first.thought.split("\n")
        assert lines[0] == "7 operators, 800 tokens"
        assert parse(lines[1]).value() == task.reference
        assert bool(first.asks) == delegate
        assert oracle.move(View(goal=task.question, depth=0)).thought.startswith("7 operators\n")
        clone = oracle.move(View(goal="Compute 1+2", depth=1, tokens=40))
        assert (clone.thought, clone.answer) == ("", "3")
    assert Arithmetic(operators=7, digits=1, symbols="+-", brackets=False).task("train", 0).question == text
    assert anyio.run(functools.partial(validate, taskset, "long", num_tasks=4)).faults == []


@pytest.mark.parametrize("split", ["train", "eval", "long"])
def test_the_oracle_is_right_alone_and_delegating_in_every_dialect(split: str) -> None:
    report = anyio.run(functools.partial(validate, ARITHMETIC, split, num_tasks=8))
    assert report.faults == []
    assert report.delegating == 24


def test_the_oracle_is_right_at_the_smallest_size_and_with_other_seeds() -> None:
    for options in (
        Arithmetic(operators=(1, 2), digits=(1, 1), symbols="+", brackets=False),
        Arithmetic(operators=(2, 4), digits=(1, 3)),
    ):
        for seed in (0, 1):
            report = anyio.run(functools.partial(validate, options, "train", num_tasks=6, seed=seed))
            assert report.faults == []


def test_the_splits_of_the_oracle_vary_with_its_seed() -> None:
    task = ARITHMETIC.task("train", 2)
    trees = [anyio.run(functools.partial(demonstrate, ARITHMETIC, task, seed=seed)) for seed in range(6)]
    assert len({tuple(node.goal for node in tree.nodes) for tree in trees}) > 1


def test_clones_sometimes_delegate_again() -> None:
    trees = [
        anyio.run(functools.partial(demonstrate, ARITHMETIC, ARITHMETIC.task("train", index))) for index in range(12)
    ]
    assert {tree.depth for tree in trees} >= {1, 2}


def test_no_prompt_shows_the_value() -> None:
    for index in range(5):
        task = ARITHMETIC.task("train", index)
        for delegate in (False, True):
            tree = anyio.run(functools.partial(demonstrate, ARITHMETIC, task, delegate=delegate))
            given_to_root = tree.root.pieces[0].text
            assert str(task.reference) not in given_to_root
            assert task.question in given_to_root


def test_the_right_solution_scores_one_and_a_wrong_one_less() -> None:
    for index in range(20):
        right, wrong = ARITHMETIC.self_check(ARITHMETIC.task("train", index))
        assert right == 1.0
        assert wrong < 0.2


def test_a_task_can_be_graded_from_its_question_alone() -> None:
    """The verdict does not need the reference: a stored task may have its value as text."""
    task = Task(question="Compute 2+3*4", reference=None)
    verdict = ARITHMETIC.verdict(task, ARITHMETIC.world(task), node(task.question, "14", parent=None))
    assert verdict is not None
    assert verdict.score == 1.0
    assert find_expression(task.question) is not None
