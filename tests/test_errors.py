"""One wording for every unknown word."""

from __future__ import annotations

import pytest

from ramet.errors import MAX_LISTED, did_you_mean

MANY = [f"word-{number}" for number in range(MAX_LISTED + 1)]


@pytest.mark.parametrize(
    ("word", "known", "text"),
    [
        ("crft", ["craft", "math"], "did you mean craft? (accepted: craft, math)"),
        ("xyz", ["craft", "math"], "accepted: craft, math"),
        ("xyz", [], "none is accepted"),
        ("wrd-7", MANY, "did you mean word-7?"),  # a long list is not repeated beside a suggestion
        ("xyz", MANY, f"accepted: {', '.join(MANY)}"),
    ],
)
def test_the_nearest_word_and_the_accepted_ones_are_named(word: str, known: list[str], text: str) -> None:
    assert did_you_mean(word, known) == text
