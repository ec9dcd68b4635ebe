"""Checks of answers: examples by hand, and what must hold for any text."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ramet.tasks.check import exact_match, f1, last_number, normalise, same_number

WORDS = st.lists(st.sampled_from(["red", "house", "the", "a", "blue", "Sea", "x1"]), max_size=6).map(" ".join)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("The Red House.", "red house"),
        ("  an   apple,\n a pear ", "apple pear"),
        ("U.S.A.", "usa"),
        ("it's", "its"),
        ("Theatre and anthem", "theatre and anthem"),  # articles are whole words
        ("rock-and-roll", "rockandroll"),
        ("ÉTÉ", "été"),
        ("", ""),
    ],
)
def test_normalising_drops_case_articles_punctuation_and_spaces(text: str, plain: str) -> None:
    assert normalise(text) == plain


@given(st.text())
def test_normalising_twice_changes_nothing_more(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@given(WORDS, st.sampled_from(["{}", " {} ", "{}.", "The {}", "{}!", '"{}"']))
def test_decoration_around_an_answer_changes_nothing(text: str, dress: str) -> None:
    assume(set(text.lower().split()) - {"a", "an", "the"})  # a text of only articles is kept
    assert normalise(dress.format(text.upper())) == normalise(text)


@pytest.mark.parametrize(
    ("answer", "accepted", "score"),
    [
        ("the Beatles", ["Beatles"], 1.0),
        ("Beatles, The", ["The Beatles", "x"], 1.0),
        ("x", ["The Beatles", "X."], 1.0),
        ("The Beatles were a band", ["Beatles"], 0.0),
        (None, ["Beatles"], 0.0),
        ("Beatles", [], 0.0),
    ],
)
def test_exact_match(answer: str | None, accepted: list[str], score: float) -> None:
    assert exact_match(answer, accepted) == score


@pytest.mark.parametrize(
    ("answer", "accepted", "score"),
    [
        ("the red house", ["red house"], 1.0),
        ("red", ["red house"], 2 / 3),  # precision 1, recall 1/2
        ("red red", ["red house"], 1 / 2),  # a repeated word counts once
        ("red house by the sea", ["red house"], 2 * 2 / (4 + 2)),  # "the" is dropped, 4 words are left
        ("blue", ["red house"], 0.0),
        ("blue sea", ["red house", "sea"], 2 / 3),  # the best accepted answer
        (None, ["red house"], 0.0),
        ("", ["red house"], 0.0),
        ("red", [], 0.0),
    ],
)
def test_f1(answer: str | None, accepted: list[str], score: float) -> None:
    assert f1(answer, accepted) == pytest.approx(score)


@given(WORDS, WORDS)
def test_f1_is_from_0_to_1_symmetric_and_1_for_an_exact_match(one: str, other: str) -> None:
    assert 0 <= f1(one, [other]) <= 1
    assert f1(one, [other]) == f1(other, [one])
    if exact_match(one, [other]):
        assert f1(one, [other]) == 1.0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12 eggs, so $1,240.50.", "1240.50"),
        ("42", "42"),
        ("it is -7", "-7"),
        ("1,000,000", "1000000"),
        ("first 3, then 4.", "4"),
        ("12,", "12"),
        ("x=3.0", "3.0"),
        ("$5$", "5"),
        ("\\boxed{18}", "18"),
        ("50%", "50"),
        ("none at all", None),
        ("", None),
        (None, None),
    ],
)
def test_the_last_number_of_a_text(text: str | None, number: str | None) -> None:
    assert last_number(text) == number


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


@given(st.text())
def test_any_text_can_be_scored(text: str) -> None:
    assert same_number(text, "5") in (0.0, 1.0)
    assert exact_match(text, [text]) == 1.0
    assert f1(text, [text]) == 1.0
