"""Checks of answers: examples by hand, and what must hold for any text."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ramet.tasks.check import exact_match, f1, normalise

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
        ("Zoe\u0308", "zoë"),  # e and a diaeresis as one letter
        ("“Paris”", "paris"),
        ("don’t", "dont"),
        ("Saint\N{EN DASH}Denis", "saintdenis"),
        ("x \N{MINUS SIGN} 1", "x 1"),
        ("A", "a"),
        ("(A)", "a"),
        ("**A**", "a"),
        ("The A.", "the a"),
        ("?!", "?!"),
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
        ("1999.", ["1999"], 1.0),
        ("**1,999**", ["1999"], 1.0),
        ("\N{MINUS SIGN}5", ["-5"], 1.0),
        ("5", ["-5"], 0.0),
        ("0.5", ["1/2"], 1.0),
        ("don’t", ["don't"], 1.0),
        ("“Zoe\u0308”", ["Zoë"], 1.0),
        ("an", ["A"], 0.0),
        ("12", ["1/2"], 0.0),
        ("5 apples", ["5"], 0.0),
        ("-5%", ["5%"], 0.0),
        ("\N{MINUS SIGN}5%", ["-5%"], 1.0),
        ("-5 degrees", ["5 degrees"], 0.0),
        ("35 miles", ["3.5 miles"], 0.0),
        ("5.5%", ["55%"], 0.0),
        ("Boeing 7478", ["Boeing 747-8"], 0.0),
        ("1,000 m", ["1000 m"], 1.0),
        ("1990-1995 in Rome", ["1990\N{EN DASH}1995, in Rome"], 1.0),
        ("9/11 attacks", ["9-11 attacks"], 1.0),
        ("10.30 am", ["10:30 am"], 1.0),
        ("March 5, 2020", ["March 5 2020"], 1.0),
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


@pytest.mark.parametrize("letter", "ABCD")
@pytest.mark.parametrize("dress", ["{}", "{}.", "({})", "{})", "**{}**", "{}:"])
def test_every_letter_of_a_choice_is_right_in_any_dress(letter: str, dress: str) -> None:
    assert exact_match(dress.format(letter), [letter]) == f1(dress.format(letter), [letter]) == 1.0
    other = "B" if letter == "A" else "A"
    assert exact_match(dress.format(letter), [other]) == f1(dress.format(letter), [other]) == 0.0


@given(WORDS, WORDS)
def test_f1_is_from_0_to_1_symmetric_and_1_for_an_exact_match(one: str, other: str) -> None:
    assert 0 <= f1(one, [other]) <= 1
    assert f1(one, [other]) == f1(other, [one])
    if exact_match(one, [other]):
        assert f1(one, [other]) == 1.0


@given(st.text())
def test_any_text_can_be_scored(text: str) -> None:
    assert exact_match(text, [text]) == 1.0
    assert f1(text, [text]) == 1.0
