"""Whole-number expressions: parsed as Python parses them, computed step by step, and safe from hostile text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.errors import MalformedAction
from ramet.tasks.expression import (
    CANDIDATE,
    Sum,
    contains,
    count_operators,
    find_expression,
    parse,
    rewrites,
    steps,
    unwrap,
)

Built = tuple[str, int]  # an expression as text, and its value as Python computes it


def joined(parts: tuple[Built, Built, str, bool]) -> Built:
    """Two expressions in brackets with an operator between them; plain numbers need no brackets."""
    (left, a), (right, b), operator, minus = parts
    value = a + b if operator == "+" else a - b if operator == "-" else a * b
    text = f"{wrapped(left)}{operator}{wrapped(right)}"
    return (f"-({text})", -value) if minus else (text, value)


def wrapped(text: str) -> str:
    return text if text.isdigit() else f"({text})"


NUMBERS = st.integers(0, 10**7).map(lambda number: (str(number), number))
BUILT = st.recursive(
    NUMBERS, lambda inner: st.tuples(inner, inner, st.sampled_from("+-*"), st.booleans()).map(joined), max_leaves=12
)
# Without brackets: the parser must know the precedence.
FLAT = st.lists(st.tuples(st.sampled_from("+-*"), st.integers(0, 999)), min_size=1, max_size=10)


def flat_text(parts: list[tuple[str, int]]) -> str:
    return "1" + "".join(f"{operator}{number}" for operator, number in parts)


def flat_value(parts: list[tuple[str, int]]) -> int:
    """The value, computed term by term."""
    terms, signs = [1], [1]
    for operator, number in parts:
        if operator == "*":
            terms[-1] *= number
        else:
            terms.append(number)
            signs.append(1 if operator == "+" else -1)
    return sum(sign * term for sign, term in zip(signs, terms, strict=True))


@given(BUILT)
def test_an_expression_has_the_value_it_was_built_with(built: Built) -> None:
    text, value = built
    assert parse(text).value() == value


@given(FLAT)
def test_products_bind_tighter_than_sums_and_sums_go_from_left_to_right(parts: list[tuple[str, int]]) -> None:
    assert parse(flat_text(parts)).value() == flat_value(parts)


@given(BUILT)
def test_an_expression_is_written_as_it_was_parsed(built: Built) -> None:
    expression = parse(built[0])
    assert parse(str(expression)) == expression
    # A sign at the start or after an opening bracket is not an operation.
    assert count_operators(expression) == len(re.findall(r"(?<=[\d)])[-+*]", str(expression)))


@given(BUILT, st.sampled_from(["Compute {}", "What is {}?", "Please work out {} and tell me.", "{}"]))
def test_an_expression_is_found_in_a_sentence(built: Built, sentence: str) -> None:
    text, value = built
    found = find_expression(sentence.format(text))
    assert (found is None) if count_operators(parse(text)) == 0 else (found is not None and found.value() == value)


@given(BUILT)
def test_the_steps_are_all_true_and_end_with_the_value(built: Built) -> None:
    expression = parse(built[0])
    done = steps(expression)
    for step in done:
        left, _, right = step.rpartition("=")
        assert parse(left).value() == int(right)
    if done and not built[0].startswith("-"):
        assert int(done[-1].rpartition("=")[2]) == expression.value()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-7", -7),
        ("2*(3+4)-5", 9),
        ("2-3-4", -5),
        ("2-(3-4)", 3),
        ("-2*3", -6),
        ("-(2+3)*4", -20),
        ("((((5))))", 5),
        (" 1 +\t2 \n* 3 ", 7),
        ("007+1", 8),
        ("(1+2)*(3-4)*5", -15),
    ],
)
def test_values_computed_by_hand(text: str, value: int) -> None:
    assert parse(text).value() == value


def test_rewrites_computed_by_hand() -> None:
    assert rewrites(parse("2*(3+4)-5")) == ["2*7-5", "14-5", "9"]
    assert rewrites(parse("1-4+2-3")) == ["-3+2-3", "-1-3", "-4"]
    assert rewrites(parse("(1-4)*2*5-(2-9)")) == ["(-3)*2*5-(2-9)", "(-6)*5-(2-9)", "-30-(2-9)", "-30+7", "-23"]
    assert rewrites(parse("7-(-4)")) == ["11"]
    assert rewrites(parse("-(3+4)")) == ["-7"]
    assert rewrites(parse("12")) == []


@given(BUILT)
def test_every_rewrite_has_the_same_value_and_one_operation_fewer(built: Built) -> None:
    expression = parse(built[0])
    lines = [parse(line) for line in rewrites(expression)]
    assert {line.value() for line in lines} <= {built[1]}
    assert [count_operators(line) for line in lines] == [*range(count_operators(expression))][::-1]


def test_steps_computed_by_hand() -> None:
    assert steps(parse("2*(3+4)-5")) == ["3+4=7", "2*7=14", "14-5=9"]
    assert steps(parse("(1-4)*2-(2-9)")) == ["1-4=-3", "(-3)*2=-6", "2-9=-7", "-6-(-7)=1"]
    assert steps(parse("12")) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+",
        "1+",
        "*2",
        "1++2",
        "1*-2",
        "(1+2",
        "1+2)",
        "()",
        "2(3)",
        "9**9**9",
        "1/2",
        "1.5+2",
        "1e9+1",
        "x+1",
        "__import__('os')",
        "1 2+3",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(MalformedAction):
        parse(text)


@pytest.mark.parametrize("text", ["", "no numbers", "just 12", "(7)", "9**9**9", "1+", "((((", "%s%s%n"])
def test_a_text_without_an_operation_has_no_expression(text: str) -> None:
    assert find_expression(text) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Compute 12 × 34 + 5", "12*34+5"),
        ("Compute 12 x 34 + 5", "12*34+5"),
        ("Compute $3 \\times 4 + 5$", "3*4+5"),
        ("Compute 12 − 34 · 2", "12-34*2"),
        ("Compute 12,345+678", "12345+678"),
        ("Compute 1,234,567 * 2", "1234567*2"),
        ("Compute [3+4]*5", "(3+4)*5"),
        ("Compute **3*4+5**.", "3*4+5"),
        ("Step 10/20: compute 3+4\n* note", "3+4"),
        ("Compute(3+4)*2 - nothing else", "(3+4)*2"),
    ],
)
def test_signs_and_groups_of_digits_are_read_as_people_write_them(text: str, found: str) -> None:
    assert str(find_expression(text)) == found


@pytest.mark.parametrize(
    "text",
    [
        "7/2+3",
        "7 / (2+3)",
        "1.5+2*3",
        "2^3+4",
        "3+4^2",
        "10 % 3 + 4",
        "x+3+4",
        "x-3+4",
        "3+4x",
        "3+4.5",
        "3+4+",
        "12 – 34*2",
    ],
)
def test_a_piece_of_something_else_is_no_expression(text: str) -> None:
    assert find_expression(f"Compute {text}") is None


def test_the_longest_of_several_expressions_is_found() -> None:
    assert str(find_expression("First 1+2, then 3*4-5*6, then 7-8")) == "3*4-5*6"


@pytest.mark.parametrize(
    "text",
    [
        "9" * 10**6,
        "1+" * 10**6,
        "(" * 10**6,
        ")" * 10**6,
        "-" * 10**6,
        "9**9**9" * 10**5,
        "(1+" * 10**5,
        "1 " * 10**6,
        "+".join(["9" * 90] * 20),
        "*".join(["9" * 90] * 20),
    ],
)
def test_a_hostile_text_has_no_expression_or_one_with_a_value(text: str) -> None:
    found = find_expression(text)
    assert found is None or isinstance(found.value(), int)


@pytest.mark.parametrize("depth", [10, 50, 100, 120, 150, 200, 250, 300, 330, 400, 900])
def test_deep_brackets_are_refused_or_computed(depth: int) -> None:
    text = "(" * depth + "1+2" + ")" * depth
    found = find_expression(text)
    assert found is None or (found.value() == 3 and str(found) != "" and steps(found) == ["1+2=3"])
    assert depth > 50 or found is not None


def test_a_candidate_ends_with_a_number_or_a_bracket() -> None:
    assert CANDIDATE.findall("-" * 2000) == []
    assert CANDIDATE.findall("(1+" * 600 + "x") == ["(1+" * 599 + "(1"]


def test_a_very_long_expression_is_refused() -> None:
    with pytest.raises(MalformedAction, match="2001 characters"):
        parse("1" * 2001)
    assert isinstance(parse("+".join(["1"] * 1000)), Sum)


# Comparing.


@pytest.mark.parametrize(
    ("whole", "part", "found"),
    [
        ("1+2", "1+2", True),
        ("2+1", "1+2", True),
        ("((1+2))", "1+2", True),
        ("1+2", "(1)+(2)", True),
        ("(1+2)+3", "3+(2+1)", True),
        ("4*(2+1)", "(1+2)*4", True),
        ("2*(3*4)", "4*3*2", True),
        ("1-(2-3)", "1-2+3", True),
        ("1+2+0", "1+2", True),  # and more
        ("(1+2)*1", "1+2", True),
        ("5*2*3-7", "2*3", True),
        ("7-2*3", "2*3", False),  # its sign is another
        ("1+2", "1+2+3", False),
        ("1+2", "(1+2)*3", False),
        ("2-1", "1-2", False),
        ("2*3", "2+3", False),
        ("1+2", "1+2+2", False),
        ("12", "1+2", False),
    ],
)
def test_an_expression_contains_another_in_any_order(whole: str, part: str, found: bool) -> None:
    assert contains(parse(whole), parse(part)) is found


@pytest.mark.parametrize(
    ("text", "bare"),
    [("3+4", "3+4"), ("((3+4))", "3+4"), ("(3*4)", "3*4"), ("-(3-4)", "-3+4"), ("(3+4)*5", "(3+4)*5"), ("(7)", "7")],
)
def test_brackets_around_a_whole_expression_are_removed(text: str, bare: str) -> None:
    assert str(unwrap(parse(text))) == bare
    assert unwrap(parse(text)).value() == parse(text).value()


def test_an_expression_of_the_greatest_length_is_found_in_its_goal() -> None:
    text = "1+" * 999 + "12"
    assert len(text) == 2000
    found = find_expression(f"Compute {text}")
    assert found is not None
    assert found.value() == 999 + 12
