"""What goes into a credit rule and what comes out of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ramet.credit.average import mean
from ramet.errors import TrainError
from ramet.types import Node, Tree

Key = tuple[str, int]  # tree id, node index
NOISE = 1e-9  # an advantage this small is rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Finished, graded trees of one task. The key says which: it is data, never a place in a list."""

    key: str
    trees: tuple[Tree, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What one node gets.

    The learner multiplies the log-probs of the node's own tokens by `weight * advantage`. `reward` and `baseline` say
    where that comes from; a rule may scale their difference, so the advantage need not be `reward - baseline`.
    """

    reward: float
    baseline: float
    advantage: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a batch holds. A group in `flat` teaches nothing: no node of it has an advantage."""

    groups: int
    trees: int
    nodes: int
    reward: float | None  # mean over roots; None for an empty batch
    flat: tuple[str, ...]  # keys

    @property
    def without_signal(self) -> bool:
        """True when nothing in the whole batch can be learnt from."""
        return len(self.flat) == self.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Credits:
    """One credit for every node of every tree, in the order of the groups.

    Example:
        credits["5f1c", 3].advantage
    """

    by_node: Mapping[Key, Credit]
    summary: Summary

    def __getitem__(self, key: Key) -> Credit:
        return self.by_node[key]

    def of(self, tree: Tree) -> dict[int, tuple[float, float]]:
        """Advantage and weight of every node of a tree, by its index."""
        found = {node.index: self.by_node[tree.id, node.index] for node in tree.nodes}
        return {index: (credit.advantage, credit.weight) for index, credit in found.items()}


class Rule(Protocol):
    """Says what every node of a batch gets.

    All groups of one optimiser step come in one call: some rules weigh nodes by how many of their kind there are.
    """

    def credit(self, groups: Sequence[Group]) -> Credits: ...


def _task_id(tree: Tree) -> str:
    return tree.task.id


def group_trees(trees: Iterable[Tree], *, key: Callable[[Tree], str] = _task_id) -> list[Group]:
    """Trees by what they say they belong to, in whatever order they come."""
    by_key: dict[str, list[Tree]] = {}
    for tree in trees:
        by_key.setdefault(key(tree), []).append(tree)
    return [Group(key=name, trees=tuple(members)) for name, members in by_key.items()]


def settle(groups: Sequence[Group], found: Mapping[Key, Credit]) -> Credits:
    """Check a rule's work and sum it up. A node that never said anything has nothing to train: weight 0."""
    _check_finite(found)
    by_node: dict[Key, Credit] = {}
    flat: list[str] = []
    for group in groups:
        own: dict[Key, Credit] = {}
        for tree in group.trees:
            for node in tree.nodes:
                credit = found[tree.id, node.index]
                own[tree.id, node.index] = credit if spoke(node) else replace(credit, weight=0.0)
        if all(abs(credit.weight * credit.advantage) < NOISE for credit in own.values()):
            flat.append(group.key)
        by_node |= own
    roots = [by_node[tree.id, 0].reward for group in groups for tree in group.trees]
    summary = Summary(
        groups=len(groups),
        trees=len(roots),
        nodes=len(by_node),
        reward=mean(roots) if roots else None,
        flat=tuple(flat),
    )
    return Credits(by_node=by_node, summary=summary)


def _check_finite(found: Mapping[Key, Credit]) -> None:
    """Causes first: a reward that is not finite spoils the baselines of other trees."""
    for name in ("reward", "baseline", "advantage", "weight"):
        for (tree, node), credit in found.items():
            if not math.isfinite(getattr(credit, name)):
                raise TrainError(f"tree {tree}, node {node}: its {name} is {getattr(credit, name)}")


def spoke(node: Node) -> bool:
    """Did the node sample anything? One that was cancelled before its first word did not."""
    return any(piece.sampled and (piece.token_ids or piece.text) for piece in node.pieces)
