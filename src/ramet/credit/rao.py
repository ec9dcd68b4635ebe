"""Credit after Recursive Agent Optimization (arXiv 2605.06639): every node is judged by its own task.

    reward     R = own success + bonus * mean success of the immediate children                          (Eq. 1)
    advantage  A = R - mean reward of the roots of the group's other trees, for every node of the tree   (Eq. 3)
    weight     w = (nodes / depths) / nodes at this depth, counted over the batch                        (Eq. 4)

The bonus is a mean, so that more children earn no more, and it looks at the children's success, not at their reward,
so that bonuses do not pile up from level to level. The baseline is made of other trees only, so it cannot depend on
what this tree did and leaves the gradient unbiased. The weights give every depth the same say, however many leaves
there are. Rewards are not divided by a standard deviation.

Two knobs are not in the paper. `clone_cost` takes a price off for every clone below a node. `baseline = "same_goal"`
compares a node with those of other trees that were given the very same goal, where there are any: a clone's goal may be
far easier than its root's, and then the roots say little about what could be expected of the clone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ramet.credit.average import leave_one_out, mean
from ramet.credit.check import check, root_of, score
from ramet.credit.records import Credit, Credits, Group, Key, settle, spoke
from ramet.errors import ConfigError
from ramet.types import Node, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Rao:
    """The knobs are the paper's ablations. A group needs two trees or more, unless there is no baseline."""

    bonus: float = 0.0  # lambda; the paper: 0 where the first policy delegates by itself, 0.4 on Oolong
    success: Literal["dense", "sparse"] = "dense"  # each node its own verdict, or the root's for all
    baseline: Literal["leave_one_out", "mean", "none", "same_goal"] = "leave_one_out"  # mean: this tree's root included
    depth_weights: bool = True
    clone_cost: float = 0.0  # for every clone anywhere below a node

    def __post_init__(self) -> None:
        for name in ("bonus", "clone_cost"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"rao.{name} is a number from 0 up; got {getattr(self, name)!r}")
        if self.bonus and self.success == "sparse":
            raise ConfigError(
                "rao.bonus needs rao.success = dense: where children inherit the root's success, "
                "a bonus on it would pay for delegating as such"
            )

    def credit(self, groups: Sequence[Group]) -> Credits:
        check(groups, least=1 if self.baseline == "none" else 2)
        weights = self._weights([tree for group in groups for tree in group.trees])
        return settle(groups, {key: one for group in groups for key, one in self._group(group, weights).items()})

    def _group(self, group: Group, weights: Mapping[int, float]) -> dict[Key, Credit]:
        rewards = [self._rewards(tree) for tree in group.trees]
        baselines = self._baselines([reward[0] for reward in rewards])
        alike = Alike(group.trees, rewards) if self.baseline == "same_goal" else None
        found: dict[Key, Credit] = {}
        for place, tree in enumerate(group.trees):
            for node in tree.nodes:
                own, baseline = rewards[place][node.index], baselines[place]
                if alike is not None:
                    baseline = alike.expected(node, place, otherwise=baseline)
                weight = weights.get(node.depth, 0.0)
                found[tree.id, node.index] = Credit(
                    reward=own, baseline=baseline, advantage=own - baseline, weight=weight
                )
        return found

    def _rewards(self, tree: Tree) -> dict[int, float]:
        if self.success == "sparse":
            shared = score(tree, root_of(tree), needed="rao needs one at every root")
            return self._less_clones(tree, dict.fromkeys((node.index for node in tree.nodes), shared))
        needed = "rao needs one at every node (success = sparse needs only the root's)"
        successes = {node.index: score(tree, node, needed=needed) for node in tree.nodes}
        parents = {node.index: node.parent for node in tree.nodes}
        return self._less_clones(tree, local_rewards(successes, parents, bonus=self.bonus))

    def _less_clones(self, tree: Tree, rewards: dict[int, float]) -> dict[int, float]:
        if not self.clone_cost:
            return rewards
        below = num_below({node.index: node.parent for node in tree.nodes})
        return {index: reward - self.clone_cost * below[index] for index, reward in rewards.items()}

    def _baselines(self, roots: Sequence[float]) -> list[float]:
        if self.baseline == "none":
            return [0.0] * len(roots)
        return [mean(roots)] * len(roots) if self.baseline == "mean" else leave_one_out(roots)

    def _weights(self, trees: Sequence[Tree]) -> dict[int, float]:
        """By depth. Nodes that said nothing have no tokens in the update, so they are not counted."""
        depths = [node.depth for tree in trees for node in tree.nodes if spoke(node)]
        return depth_weights(depths) if self.depth_weights else dict.fromkeys(depths, 1.0)


class Alike:
    """Rewards of a group's nodes by their goals. A root's is its task, which all trees of the group share."""

    def __init__(self, trees: Sequence[Tree], rewards: Sequence[Mapping[int, float]]) -> None:
        self._by_goal: dict[str | None, dict[int, list[float]]] = {}
        for place, (tree, reward) in enumerate(zip(trees, rewards, strict=True)):
            for node in tree.nodes:
                self._by_goal.setdefault(_goal(node), {}).setdefault(place, []).append(reward[node.index])

    def expected(self, node: Node, place: int, *, otherwise: float) -> float:
        """The mean reward of nodes with this goal in the other trees: nothing this tree did can move it."""
        found = [
            reward for other, rewards in self._by_goal[_goal(node)].items() if other != place for reward in rewards
        ]
        return mean(found) if found else otherwise


def _goal(node: Node) -> str | None:
    return None if node.parent is None else " ".join(node.goal.split())


def num_below(parents: Mapping[int, int | None]) -> dict[int, int]:
    """How many clones each node has, those of its clones included.

    Example:
        num_below({0: None, 1: 0, 2: 1})  # {0: 2, 1: 1, 2: 0}
    """
    below = dict.fromkeys(parents, 0)
    for index in parents:
        above = parents[index]
        while above is not None:
            below[above] += 1
            above = parents[above]
    return below


def local_rewards(
    successes: Mapping[int, float], parents: Mapping[int, int | None], *, bonus: float
) -> dict[int, float]:
    """Own success plus `bonus` times the mean success of the immediate children, found by their parent links.

    Example:
        local_rewards({0: 1.0, 1: 0.0, 2: 1.0}, {0: None, 1: 0, 2: 0}, bonus=0.4)  # {0: 1.2, 1: 0.0, 2: 1.0}
    """
    children: dict[int, list[float]] = {}
    for index, parent in parents.items():
        if parent is not None:
            children.setdefault(parent, []).append(successes[index])
    return {
        index: own + (bonus * mean(children[index]) if index in children else 0.0) for index, own in successes.items()
    }


def depth_weights(depths: Iterable[int]) -> dict[int, float]:
    """The weight of a node at each depth: every depth has the same total, and all weights add up to the nodes.

    Example:
        depth_weights([0, 1, 1])  # {0: 1.5, 1: 0.75}
    """
    counts = Counter(depths)
    return {depth: counts.total() / len(counts) / count for depth, count in counts.items()}
