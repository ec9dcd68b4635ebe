"""The input and output of credit rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ramet.credit.average import mean
from ramet.errors import TrainError
from ramet.types import Tree

Key = tuple[str, int]  # tree id, node index
TurnKey = tuple[str, int, int]  # tree id, node index, turn
NOISE = 1e-9  # smaller advantages are rounding errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Finished, graded trees of one task. `key` is the id of the task."""

    key: str
    trees: tuple[Tree, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """The credit of one node.

    The learner multiplies the log-probs of the node's own tokens by `weight * advantage`. `reward` and `baseline`
    explain the advantage; a rule may scale their difference, so it need not be `reward - baseline`.
    """

    reward: float
    baseline: float
    advantage: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Totals of a batch. A group in which no node has an advantage has no signal: nothing is learnt from it."""

    groups: int
    trees: int
    nodes: int
    reward: float | None  # mean over roots; None for an empty batch
    flat: tuple[str, ...]  # keys of the groups without signal

    @property
    def without_signal(self) -> bool:
        """True when no group of the batch has a signal."""
        return len(self.flat) == self.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Credits:
    """One credit for every node of every tree, in the order of the groups.

    Example:
        credits["5f1c", 3].advantage
    """

    by_node: Mapping[Key, Credit]
    summary: Summary
    by_turn: Mapping[TurnKey, Credit] = field(default_factory=dict[TurnKey, Credit])  # instead of their node's

    def __getitem__(self, key: Key) -> Credit:
        return self.by_node[key]

    def of(self, tree: Tree) -> dict[int, tuple[float, float]]:
        """Advantage and weight of every node of a tree, by node index."""
        credits = {node.index: self.by_node[tree.id, node.index] for node in tree.nodes}
        return {index: (credit.advantage, credit.weight) for index, credit in credits.items()}

    def turns_of(self, tree: Tree) -> dict[tuple[int, int], tuple[float, float]]:
        """Advantage and weight of the turns that have a credit of their own, by node index and turn."""
        own = {(node, turn): credit for (name, node, turn), credit in self.by_turn.items() if name == tree.id}
        return {place: (credit.advantage, credit.weight) for place, credit in own.items()}


def _task_id(tree: Tree) -> str:
    return tree.task.id


def group_trees(trees: Iterable[Tree], *, key: Callable[[Tree], str] = _task_id) -> list[Group]:
    """Group trees by `key` (the id of their task), in any order."""
    by_key: dict[str, list[Tree]] = {}
    for tree in trees:
        by_key.setdefault(key(tree), []).append(tree)
    return [Group(key=name, trees=tuple(members)) for name, members in by_key.items()]


def make_credits(
    groups: Sequence[Group], computed: Mapping[Key, Credit], turns: Mapping[TurnKey, Credit] | None = None
) -> Credits:
    """Check what a rule computed and summarise it. A node that sampled nothing has nothing to train: weight 0."""
    by_turn = dict(turns or {})
    _check_finite(computed)
    _check_finite({(tree, node): credit for (tree, node, _), credit in by_turn.items()})
    by_node: dict[Key, Credit] = {}
    flat: list[str] = []
    for group in groups:
        own: dict[Key, Credit] = {}
        for tree in group.trees:
            for node in tree.nodes:
                credit = computed.get((tree.id, node.index))
                if credit is None:
                    raise TrainError(
                        f"the rule gave no credit to node {node.index} of tree {tree.id}: all nodes need one"
                    )
                own[tree.id, node.index] = credit if node.has_sampled else replace(credit, weight=0.0)
        members = {tree.id for tree in group.trees}
        known = [*own.values(), *(credit for (tree, _, _), credit in by_turn.items() if tree in members)]
        if all(abs(credit.weight * credit.advantage) < NOISE for credit in known):
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
    return Credits(by_node=by_node, summary=summary, by_turn=by_turn)


def _check_finite(computed: Mapping[Key, Credit]) -> None:
    """Check rewards first: one that is not finite spoils the baselines of other trees."""
    for name in ("reward", "baseline", "advantage", "weight"):
        for (tree, node), credit in computed.items():
            if not math.isfinite(getattr(credit, name)):
                raise TrainError(f"tree {tree}, node {node}: {name} is {getattr(credit, name)}")
