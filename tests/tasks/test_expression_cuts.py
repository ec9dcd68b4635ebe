"""Cuts of expressions in demonstrations: what a node writes down, asks for and puts together."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.interfaces import View
from ramet.tasks.arithmetic import Arithmetic, Calculator
from ramet.tasks.expression import Sum, count_operators, parse, unwrap
from ramet.tasks.expression_cuts import Cut, cut_every, cut_product, cut_sum, fill

NUMBERS = st.integers(1, 99).map(str)
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]}){t[1]}({t[2]})"),
    max_leaves=16,
).map(lambda text: re.sub(r"\((\d+)\)", r"\1", text))


def cut(text: str, *edges: int) -> Cut:
    return cut_sum(parse(text).terms, edges)


def test_a_part_of_a_sum_keeps_the_sign_of_its_first_term() -> None:
    assert cut("1-2-3+4", 1, 3) == Cut(parts=("-2-3",), plan="1+(-2-3)+4", shape="1+?+4")
    assert cut("-1+2-3*4", 2) == Cut(parts=("-1+2", "-3*4"), plan="(-1+2)+(-3*4)", shape="?+?")
    assert cut("1-2+3", 1, 2) == Cut(parts=(), plan="1-2+3", shape="1-2+3")


def test_a_product_is_cut_before_a_factor() -> None:
    (sign, product), *_ = parse("-2*3*(4+5)").terms
    assert cut_product(product, sign, 2) == Cut(parts=("2*3", "(4+5)"), plan="-(2*3)*(4+5)", shape="-?*?")
    assert cut_product(product, sign, 1) == Cut(parts=("3*(4+5)",), plan="-2*(3*(4+5))", shape="-2*?")
    assert cut_product(product, sign, 0) is None
    assert cut_product(parse("2*3").terms[0][1], 1, 1) is None  # plain numbers on both sides


def test_a_sum_is_cut_after_every_so_many_operators_and_the_rest_is_the_last_part() -> None:
    plan = "(1+2+3)+(-4-5-6)+(7+8)"
    assert cut_every(parse("1+2+3-4-5-6+7+8"), lambda: 2) == Cut(
        parts=("1+2+3", "-4-5-6", "7+8"), plan=plan, shape="?+?+?"
    )
    sizes = iter([1, 3, 9])
    assert cut_every(parse("1+2+3-4-5-6+7+8"), lambda: next(sizes)) == Cut(
        parts=("1+2", "3-4-5-6", "7+8"), plan="(1+2)+(3-4-5-6)+(7+8)", shape="?+?+?"
    )
    assert cut_every(parse("1+2+3-4"), lambda: 2) == Cut(parts=("1+2+3",), plan="(1+2+3)-4", shape="?-4")
    assert cut_every(parse("1+2*3*4+5"), lambda: 2) == Cut(parts=("2*3*4",), plan="1+(2*3*4)+5", shape="1+?+5")


@given(st.lists(st.integers(-9, 9).filter(bool), min_size=2, max_size=40), st.integers(1, 8))
def test_all_parts_of_a_plain_sum_but_the_last_have_the_same_length(numbers: list[int], most: int) -> None:
    found = cut_every(parse("+".join(map(str, numbers)).replace("+-", "-")), lambda: most)
    if len(numbers) <= most + 1:
        assert found is None
        return
    assert found is not None
    *full, rest = [count_operators(parse(part)) for part in found.parts] + (
        [0] if len(numbers) % (most + 1) == 1 else []
    )
    assert set(full) <= {most}
    assert rest == (len(numbers) - 1) % (most + 1)


@pytest.mark.parametrize(
    ("shape", "answers", "filled"),
    [
        ("?+?-?*2", ["-4", "-1", "3"], "-4-1-3*2"),
        ("-?+?", ["-4", "-5"], "-(-4)-5"),
        ("1+?*?", ["-2", "-3"], "1+(-2)*(-3)"),
        ("?*4", ["-2"], "(-2)*4"),
    ],
)
def test_a_negative_answer_replaces_a_plus_sign_or_has_brackets(shape: str, answers: list[str], filled: str) -> None:
    assert fill(shape, answers) == filled


@given(EXPRESSIONS, st.integers(1, 6))
def test_the_plan_and_the_filled_shape_have_the_value_of_the_expression(text: str, most: int) -> None:
    expression = parse(text)
    found = cut_every(expression, lambda: most)
    if found is None:
        return
    assert parse(found.plan).value() == expression.value()
    values = [str(parse(part).value()) for part in found.parts]
    assert parse(fill(found.shape, values)).value() == expression.value()


@given(EXPRESSIONS.filter(lambda text: not text.isdigit()), st.integers(0, 100))
def test_random_cuts_have_the_value_of_the_expression(text: str, seed: int) -> None:
    value = parse(text).value()
    oracle = Calculator(delegate=True, dice_seed=(seed,), working="rewrites")
    first = oracle.move(View(goal=f"Compute {text}", depth=0))
    if not first.asks:
        return
    answers = tuple(str(parse(ask.goal.removeprefix("Compute ")).value()) for ask in first.asks)
    second = oracle.move(View(goal=f"Compute {text}", depth=0, history=(answers,)))
    assert second.answer == str(value)
    assert all(parse(line).value() == value for line in (first.thought, *second.thought.splitlines()))


def test_what_comes_together_is_written_down_before_it_is_computed() -> None:
    oracle = Calculator(delegate=True, dice_seed=(), working="rewrites", uniform=True)
    second = oracle.move(View(goal="Compute 1+2+3+4-5-6-7-8", depth=0, history=(("10", "-26"),)))
    assert (second.thought, second.answer) == ("10-26", "-16")


def test_uniform_demonstrations_of_long_sums_have_one_level() -> None:
    taskset = Arithmetic(operators=(20, 24), digits=1, symbols="+-", brackets=False, style="uniform")
    for index in range(20):
        whole = unwrap(parse(taskset.task("train", index).question.removeprefix("Compute ")))
        found = cut_every(whole, lambda: 5)
        assert found is not None
        assert all(count_operators(parse(part)) <= 5 for part in found.parts)


def test_an_expression_of_plain_numbers_is_not_cut() -> None:
    assert cut_every(Sum(parse("3").terms), lambda: 5) is None
