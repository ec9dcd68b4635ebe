"""From trees to rows: what a backend learns from.

A row is one token sequence as the engine saw it, with everything a loss term needs recorded when it was sampled. Every
sampled token is in exactly one row, so it has exactly one loss term, however many branches grew from it. Mistakes in
demonstrations have none: they are read, and what follows them is learnt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress

from ramet.errors import TrainError
from ramet.types import Node, Piece, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One node's tokens, which of them it sampled, and their credit.

    Example:
        Row(token_ids=(5, 6, 7), mask=(False, True, True), logprobs=(0.0, -0.7, -0.1), advantage=0.5, tree_id="t1")
    """

    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]  # True where the token was sampled and is trained: mistakes in demonstrations are not
    logprobs: tuple[float, ...] | None  # of the policy that sampled; 0 where the mask is False; None: not recorded
    advantage: float
    weight: float = 1.0
    tree_id: str
    node: int = 0
    group: str = ""  # trees of one task
    versions: tuple[int, ...] = ()  # policy versions that sampled it, ascending
    proximal: tuple[float, ...] | None = None  # like `logprobs`, of the weights before the first of several updates

    def __post_init__(self) -> None:
        recorded = [values for values in (self.logprobs, self.proximal) if values is not None]
        sizes = {len(self.token_ids), len(self.mask), *map(len, recorded)}
        if len(sizes) > 1:
            raise TrainError(f"{self.name}: token ids, mask and log-probs differ in length: {sorted(sizes)}")
        if self.mask[:1] == (True,):
            raise TrainError(f"{self.name}: its first token cannot be trained: nothing precedes it")
        numbers = (self.advantage, self.weight, *chain.from_iterable(recorded))
        if not all(map(math.isfinite, numbers)):
            raise TrainError(f"{self.name}: advantage, weight and log-probs must be finite numbers")

    @property
    def name(self) -> str:
        return f"node {self.node} of tree {self.tree_id!r}"

    @property
    def trained(self) -> list[int]:
        """Positions of the trained tokens."""
        return list(compress(range(len(self.mask)), self.mask))

    @property
    def num_trained(self) -> int:
        return self.mask.count(True)

    @property
    def read(self) -> tuple[int, ...]:
        """The tokens a model must read to predict the trained ones: all before the last of them."""
        if True not in self.mask:
            return ()
        return self.token_ids[: len(self.mask) - 1 - self.mask[::-1].index(True)]


def tree_rows(
    tree: Tree,
    credits: Mapping[int, tuple[float, float]],
    *,
    turns: Mapping[tuple[int, int], tuple[float, float]] | None = None,
    group: str | None = None,
) -> list[Row]:
    """One row per node that sampled anything to learn; `credits` gives each node's advantage and weight by its index.

    `turns` gives some turns a credit of their own, by node index and turn: each gets a row of its own, with the whole
    window of the node and a mask of this turn, and the turn is masked in the row of the node. `group` is the task
    unless given.
    """
    group = tree.task.id if group is None else group
    nodes = [node for node in tree.nodes if node.has_sampled]
    missing = [node.index for node in nodes if node.index not in credits]
    if missing:
        raise TrainError(f"tree {tree.id!r}: nodes {missing} sampled tokens but got no credit")
    rows: list[Row] = []
    for node in nodes:
        row = _row(tree, node, *credits[node.index], group=group)
        rows += _split(row, node, {turn: own for (index, turn), own in (turns or {}).items() if index == node.index})
    return [row for row in rows if row.num_trained]


def _split(row: Row, node: Node, turns: Mapping[int, tuple[float, float]]) -> list[Row]:
    """The row of a node, and one row for each of its turns that has a credit of its own."""
    if not turns:
        return [row]
    sampled = [piece for piece in node.pieces if piece.sampled]
    numbers = {id(piece): number for number, piece in enumerate(sampled)}
    turn_at = [numbers.get(id(piece), -1) for piece in node.pieces for _ in piece.token_ids]
    rows = [_masked(row, [turn not in turns for turn in turn_at])]
    for number, (advantage, weight) in sorted(turns.items()):
        own = _masked(row, [turn == number for turn in turn_at])
        rows.append(replace(own, advantage=advantage, weight=weight))
    return rows


def _masked(row: Row, kept: Sequence[bool]) -> Row:
    """The row with a loss on these tokens only."""
    mask = tuple(trained and keep for trained, keep in zip(row.mask, kept, strict=True))
    logprobs = row.logprobs
    if logprobs is not None:
        logprobs = tuple(value if trained else 0.0 for value, trained in zip(logprobs, mask, strict=True))
    return replace(row, mask=mask, logprobs=logprobs)


def _row(tree: Tree, node: Node, advantage: float, weight: float, *, group: str) -> Row:
    if any(piece.text and not piece.token_ids for piece in node.pieces):
        raise TrainError(
            f"tree {tree.id!r}, node {node.index}: no token ids were recorded. "
            "Trees of an engine that only takes text can run, but not train"
        )
    return Row(
        token_ids=tuple(node.token_ids),
        mask=tuple(_trained(piece) for piece in node.pieces for _ in piece.token_ids),
        logprobs=_logprobs(tree, node),
        advantage=advantage,
        weight=weight,
        tree_id=tree.id,
        node=node.index,
        group=group,
        versions=_versions(node),
    )


def _trained(piece: Piece) -> bool:
    return piece.sampled and piece.taught


def _versions(node: Node) -> tuple[int, ...]:
    return tuple(sorted({piece.policy_version for piece in node.pieces if piece.policy_version is not None}))


def _logprobs(tree: Tree, node: Node) -> tuple[float, ...] | None:
    """Log-probs beside the tokens, or None when the engine gave none at all. Some but not all is a broken record."""
    sampled = [piece for piece in node.pieces if piece.sampled and piece.token_ids]
    if not any(piece.logprobs for piece in sampled):
        return None
    for piece in sampled:
        if len(piece.logprobs) != len(piece.token_ids):
            raise TrainError(
                f"tree {tree.id!r}, node {node.index}: {len(piece.token_ids)} sampled tokens, "
                f"{len(piece.logprobs)} log-probs"
            )
    return tuple(
        value
        for piece in node.pieces
        for value in (piece.logprobs if _trained(piece) else (0.0,) * len(piece.token_ids))
    )
