"""What records say about themselves."""

from __future__ import annotations

import re
from operator import attrgetter
from typing import Any

import pytest

from ramet.types import Node, Piece, Tree, Verdict, clean, is_right
from tests.plugin_files import PAGE


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


def explained(kind: type[Any]) -> set[str]:
    """The attributes that the docstring of a class explains."""
    lines = (kind.__doc__ or "").partition("Attributes:")[2].splitlines()
    return {name for line in lines for name in line.partition(":")[0].strip().split(", ") if name}


@pytest.mark.parametrize("kind", [Node, Tree, Verdict])
def test_help_explains_attributes_that_exist(kind: type[Any]) -> None:
    fields = set(kind.__dataclass_fields__)
    assert len(explained(kind)) >= 3
    assert explained(kind) <= fields


def test_every_attribute_that_the_documentation_lists_for_rules_is_one_of_a_node() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("| attribute | meaning |")[2].partition("\n\n")[0]
    names = [name for row in table.splitlines()[2:] for name in re.findall(r"`([\w.]+)`", row.split("|")[1])]
    node = Node(index=0, parent=None, depth=0, path=(), goal="?", grant=9, verdict=Verdict(score=1.0, how="exact"))
    for name in names:
        attrgetter(f"verdict{name}" if name.startswith(".") else name)(node)
    listed = {name.partition(".")[0] for name in names if not name.startswith(".")}
    assert {"goal", "parent", "grant", "usage", "turns", "verdict"} <= listed
    assert listed - {"token_ids", "mask"} <= explained(Node)
