"""What records say about themselves."""

from __future__ import annotations

import pytest

from ramet.types import Node, Piece, Verdict, clean, is_right


@pytest.mark.parametrize(
    ("score", "right"), [(1.0, True), (1 - 1e-12, True), (0.1 * 10, True), (0.999, False), (0.0, False)]
)
def test_a_score_is_right_up_to_rounding(score: float, right: bool):
    assert is_right(score) is right
    assert Verdict(score=score, how="exact").is_right is right


@pytest.mark.parametrize(
    ("pieces", "sampled"),
    [
        ([], False),
        ([Piece(sampled=False, text="goal", token_ids=(1,))], False),
        ([Piece(sampled=False, text="goal"), Piece(sampled=True, text="")], False),
        ([Piece(sampled=False, text="goal"), Piece(sampled=True, text="yes")], True),
        ([Piece(sampled=False, text="goal"), Piece(sampled=True, text="", token_ids=(2,))], True),
    ],
)
def test_a_node_has_sampled_when_a_sampled_piece_is_not_empty(pieces: list[Piece], sampled: bool):
    node = Node(index=0, parent=None, depth=0, path=(), goal="goal", grant=10, pieces=pieces)
    assert node.has_sampled is sampled


def test_lone_surrogates_are_replaced():
    assert clean("a\ud83db 😀") == "a\N{REPLACEMENT CHARACTER}b 😀"
