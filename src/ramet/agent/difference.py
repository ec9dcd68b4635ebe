"""Where two trees of one task part: the first turn with another text."""

from __future__ import annotations

from ramet.types import Tree

Place = tuple[tuple[int, ...], int]  # path of a node, index of a turn


def first_difference(recorded: Tree, forked: Tree) -> Place | None:
    """The first turn, in the order they were sampled, with another text in the two trees; None if there is none."""
    before, after = turn_texts(recorded), turn_texts(forked)
    order = [*_in_time(recorded), *_in_time(forked)]
    return next((place for place in order if before.get(place) != after.get(place)), None)


def turn_texts(tree: Tree) -> dict[Place, str]:
    """What was sampled in every turn."""
    return {
        (node.path, number): piece.text
        for node in tree.nodes
        for number, piece in enumerate(piece for piece in node.pieces if piece.sampled)
    }


def _in_time(tree: Tree) -> list[Place]:
    turns = [(turn.sampled_s, node.path, i) for node in tree.nodes for i, turn in enumerate(node.turns)]
    return [(path, number) for _, path, number in sorted(turns)]
