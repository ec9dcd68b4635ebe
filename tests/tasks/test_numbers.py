"""Numbers in answers: examples by hand, parity with plain integers, and texts that must not cost time or memory."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.tasks.arithmetic import partial_credit
from ramet.tasks.codes import Codes
from ramet.tasks.numbers import last_number, only_number, plain_signs, same_number
from ramet.types import Node

HALF = Fraction(1, 2)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12 eggs, so $1,240.50.", Fraction("1240.50")),
        ("42", 42),
        ("it is -7", -7),
        ("first 3, then 4.", 4),
        ("12,", 12),
        ("x=3.0", 3),
        ("$5$", 5),
        ("50%", 50),
        (".5", HALF),
        ("5/12/2023", 2023),
        ("none at all", None),
        ("", None),
        (None, None),
    ],
)
def test_the_last_number_of_a_text(text: str | None, number: Fraction | int | None) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("\\boxed{18}", 18),
        ("$\\boxed{73}$ after 12 steps", 73),
        ("\\boxed{18} because 3*6", 18),
        ("First \\boxed{3}, no: \\boxed{4}. Note 5 < 6", 4),
        ("\\boxed{x} and 5", 5),  # there is no number in the box
    ],
)
def test_a_box_is_read_before_the_rest(text: str, number: int) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize("joint", [" or ", ", ", " and ", "$, or $"])
def test_different_boxes_that_are_joined_have_no_last_number(joint: str) -> None:
    assert last_number(f"$\\boxed{{5}}{joint}\\boxed{{6}}$") is None
    assert last_number(f"$\\boxed{{6}}{joint}\\boxed{{6.0}}$") == 6


@pytest.mark.parametrize("text", ["1,234,567", "1 234 567", "1\u202f234\u202f567", "1{,}234{,}567", "1\\,234\\,567"])
def test_digits_may_be_in_groups(text: str) -> None:
    assert last_number(text) == last_number(f"So it is {text}.") == last_number(f"\\boxed{{{text}}}") == 1234567


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("10,\\!000", 10000),
        ("1,00,000", 100000),
        ("3,4", 4),
        ("1 2 345", 345),
        ("5\n120", 120),
        ("5, 120", 120),
    ],
)
def test_numbers_beside_each_other_are_joined_only_as_groups(text: str, number: int) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("\N{MINUS SIGN}5", -5),
        ("\N{EN DASH}5", -5),
        ("it is \N{EM DASH}5", -5),
        ("the answer\N{EM DASH}5", 5),  # a dash between words and numbers
        ("2010-2015", 2015),
        ("2010\N{EN DASH}2015", 2015),
        ("10-7", 7),
        ("2023-05-12", 12),
        ("$-5$", -5),
    ],
)
def test_a_dash_is_a_sign_at_the_beginning_of_a_number(text: str, number: int) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1/2", HALF),
        ("146 / 2", 73),
        ("\\frac{146}{2}", 73),
        ("-\\frac12", -HALF),
        ("3 1/2", 3 + HALF),
        ("1\\frac{1}{2}", 1 + HALF),
        ("1½", 1 + HALF),
        ("-½", -HALF),
        ("1.5e3", 1500),
        ("1e3", 1000),
        ("1.5 \\times 10^{-3}", Fraction("0.0015")),
        ("10^{2}", 100),
        ("10²", 100),
        ("2**10", 1024),
        ("12 m^2", 12),
        ("12 m²", 12),
        ("12 \\text{ m}^{2}", 12),
        ("12 **18**", 18),
    ],
)
def test_a_fraction_or_a_power_is_one_number(text: str, number: Fraction | int) -> None:
    assert last_number(text) == last_number(f"It is {text}.") == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 18", 18),
        ("**Answer: 18**", 18),
        ("$\\boxed{18}$", 18),
        ("\\boxed{1080\\text{ dollars}}", 1080),
        ("\\boxed{\\$1,080}", 1080),
        ("\\boxed{m+n = 73}", 73),
        ("\\boxed{025}", 25),
        ("$409 500", 409500),
        ("1 500 000 cars", 1500000),
        ("9 220 km²", 9220),
        ("8 000 people", 8000),
        ("1.541.000", 1541000),
        ("5'000", 5000),
        ("5_000", 5000),
        ("Section 1.2.3", 3),
        ("12.05.2023", 2023),
        ("-$5", -5),
        ("\N{MINUS SIGN}$1,200", -1200),
        ("a loss of -£40", -40),
        ("(-\\$15)", -15),
        ("from $5-$10", 10),
        ("Age = - 10", -10),
        ("12 - 10", 10),
        ("- 5 apples\n- 3 pears", 3),  # a list
        ("-5%", -5),
        ("25%", 25),
        ("90°", 90),
        ("90^\\circ", 90),
        ("\\boxed{145^{\\circ}}", 145),
        ("x^{2} = 25^\\circ", 25),
        ("x_1 = 5", 5),
        ("_5_", 5),
        ("52_8", None),  # in base eight
        ("\\boxed{2516_{8}}", None),
        ("2½ cups", 2 + HALF),
        ("2 1/2 cups", 2 + HALF),
        ("3 x 10^8 m/s", 3 * 10**8),
        ("12 m/s^2", 12),
        ("$\\frac{14}{3}$", Fraction(14, 3)),
        ("49.667 minutes", Fraction("49.667")),
        ("'42'", 42),
        ("<b>5</b>", 5),
        ("5€", 5),
        ("≈ 5.2", Fraction("5.2")),
    ],
)
def test_numbers_as_people_and_models_write_them(text: str, number: Fraction | int | None) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("She fills 5 100 ml bottles.", 5),
        ("60/4 = 15 4-packs", 15),  # this and the next two are from solutions of GSM8K
        ("28/0.5=56 6-inch pencils", 56),
        ("20 12-ounce bottles of perfume", 20),
        ("12 200-kilobyte videos", 12),
        ("a 3-hour film", 3),
        ("in 2010, 50-year-olds", 50),
        ("5 100 ml", 5100),
        ("5 100 m is far", 5100),
        ("7, 100 ml bottles", 100),
    ],
)
def test_a_number_of_things_is_read_before_the_size_of_each(text: str, number: int) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize("text", ["1/0", "(x+1)^2", "2^{n+1}", "\\frac{\\pi}{2}", "0^{-1}", "1/10^6"])
def test_a_formula_is_no_number(text: str) -> None:
    assert last_number(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "10^{10^9}",
        "10^{10^{10^{10^{9}}}}",
        "1e999999999",
        "10**99999",
        "9" * 5000,
        "9" * 10**6,
        "0." + "9" * 5000,
        "-" + "9" * 5000 + "/7",
        "99^9999",
    ],
)
def test_a_number_that_is_too_long_is_not_computed(text: str) -> None:
    assert last_number(text) is None
    assert only_number(text) is None
    assert partial_credit(text, 12) == 0.0


@pytest.mark.parametrize(
    "part", ["{", "^{", "9", "99,", "999 ", "9/", "\\frac{", "\\frac{{1}", "\\boxed{", ".9", "1e9", "½"]
)
def test_repeated_signs_can_be_read(part: str) -> None:
    for text in (part * 100_000, part * 100_000 + " = 5", "5 " + part * 100_000):
        assert same_number(text, "5") in (0.0, 1.0)


@given(st.text("0123456789 .,-^*/{}()\\e×fracbodt½²–", max_size=40))
def test_any_signs_can_be_read(text: str) -> None:
    assert same_number(text, "5") in (0.0, 1.0)
    assert 0.0 <= partial_credit(text, 12) <= 1.0
    assert only_number(text) in (None, last_number(text))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5.", 5),
        (" 007 ", 7),
        ("**1,200**.", 1200),
        ("$42", 42),
        ("1/2", HALF),
        ("12 apples", None),
        ("5/12/2023", None),
        ("2010-2015", None),
        ("^2", None),
        ("", None),
    ],
)
def test_a_text_that_is_only_a_number(text: str, number: Fraction | int | None) -> None:
    assert only_number(text) == number


def test_signs_are_made_plain() -> None:
    assert plain_signs("\N{EN DASH}5 m² \N{MINUS SIGN} 1{,}024\u00a0½") == "-5 m^{2} - 1,024 1/2"
    assert plain_signs("one \N{EN DASH} two") == "one \N{EN DASH} two"


@pytest.mark.parametrize(
    ("answer", "wanted", "score"),
    [
        ("So she pays $1,080", "1080", 1.0),
        ("3.50", "3.5", 1.0),
        ("007", "7", 1.0),
        ("-7", "7", 0.0),
        ("8 of 10", "8", 0.0),  # only the last one counts
        ("ten", "10", 0.0),
        (None, "10", 0.0),
        ("10", "ten", 0.0),
        ("1" + "0" * 40 + "1", "1" + "0" * 40 + "2", 0.0),  # compared exactly, not as floats
        ("0.1", "0.10000000000000000001", 0.0),
    ],
)
def test_same_number(answer: str | None, wanted: str, score: float) -> None:
    assert same_number(answer, wanted) == score


@given(st.integers(-(10**30), 10**30))
def test_a_number_is_found_in_any_notation(number: int) -> None:
    assert same_number(f"So it is {number:,}.", str(number)) == 1.0
    assert same_number(f"So it is {number}.00", str(number)) == 1.0
    assert same_number(f"So it is {number + 1}", str(number)) == 0.0


PLAIN_TEXTS = (
    "{}",
    " {}",
    "{}\n",
    "{}.",
    "= {}",
    "It is {}",
    "So {}.",
    "12+7=19\n19*2={}",
    "7 pets {}",
    "no, 5: {}",
    "x{}",
)


@pytest.mark.parametrize("text", PLAIN_TEXTS)
def test_plain_integers_are_read_as_by_a_plain_pattern(text: str) -> None:
    numbers = [*range(-1200, 1201), *(sign * 7**power for power in range(120) for sign in (-1, 1))]
    for number in numbers:
        filled = text.format(number)
        assert last_number(filled) == int(re.findall(r"-?\d+", filled)[-1]) == number
        assert partial_credit(filled, number) == 1.0
        assert partial_credit(filled, number + 1) <= 0.2


def test_codes_are_graded_by_their_last_number() -> None:
    taskset = Codes()
    task = taskset.task("train", 0)
    right = str(task.reference)

    def score(answer: str | None) -> float:
        root = Node(index=0, parent=None, depth=0, path=(), goal=task.question, grant=100, answer=answer)
        verdict = taskset.verdict(task, taskset.world(task), root)
        assert verdict is not None
        return verdict.score

    wrong = str((int(right) + 1) % 10)
    given = [right, f"3+4={right}", f"{right}.0", wrong, f"{right}/7", "none", None]
    assert [score(answer) for answer in given] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
