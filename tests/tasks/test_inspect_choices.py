"""The letter of a choice that an answer names, for scorers of inspect_ai."""

from __future__ import annotations

import pytest

from ramet.tasks.peers.inspect import chosen_letter


@pytest.mark.parametrize(
    "answer",
    [
        *("B", "b", "(B)", "b)", "'B'", "**B**", "Answer: B", "answer: b", "The answer is (B).", "Final answer: B."),
        *("\\boxed{B}", "<answer>B</answer>", "It's B", "Choice (B): a whale", "I choose option B."),
        *("B. A whale", "B) A whale is a mammal", "**B.** A whale is a mammal", "B: A whale"),
        *("A whale, so B", "the answer is a whale: B", "The answer is not A, it is B"),
        *("A) is a fish. C) is a plant. So B", "A) is a fish, so the answer is B"),
    ],
)
def test_the_letter_of_a_choice_is_found_however_it_is_written(answer: str) -> None:
    assert chosen_letter(answer, 4) == "B"


@pytest.mark.parametrize("answer", ["", "no idea", "I don't know", "Answer: none", "E", "bad"])
def test_an_answer_without_a_letter_of_the_choices_names_none(answer: str) -> None:
    assert chosen_letter(answer, 4) is None
