"""Credit after Recursive Agent Optimization (arXiv 2605.06639): every node is rewarded for its own task.

    reward     R = own success + bonus * mean success of the immediate children                          (Eq. 1)
    advantage  A = R - mean reward of the roots of the group's other trees, for every node of the tree   (Eq. 3)
    weight     w = (nodes / depths) / nodes at this depth, counted over the batch                        (Eq. 4)

The bonus is a mean, so more children do not earn more, and a mean of successes, not of rewards, so bonuses do not add
up over levels. The baseline depends on other trees only, so it leaves the gradient unbiased. The weights give every
depth the same total, however many leaves there are. Rewards are not divided by a standard deviation.

Two settings are not in the paper. `clone_cost` subtracts a cost for every clone below a node. `baseline = "same_goal"`
compares a node with nodes of the other trees that had the same goal, where there are any: a clone's goal may be far
easier than its root's, and then the roots are a poor baseline for the clone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ramet.credit.average import leave_one_out, mean
from ramet.credit.check import check_groups, required_score, root_of
from ramet.credit.records import Credit, Credits, Group, Key, make_credits
from ramet.errors import ConfigError
from ramet.types import Node, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Rao:
    """The settings are the paper's ablations. A group needs at least two trees, unless there is no baseline."""

    bonus: float = 0.0  # lambda; in the paper 0 where the initial policy already delegates, 0.4 on Oolong
    success: Literal["dense", "sparse"] = "dense"  # the verdict of each node, or the root's for all
    baseline: Literal["leave_one_out", "mean", "none", "same_goal"] = "leave_one_out"  # mean: of all roots
    depth_weights: bool = True
    clone_cost: float = 0.0  # per clone at any depth below a node

    def __post_init__(self) -> None:
        for name in ("bonus", "clone_cost"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"rao.{name} must be 0 or more; got {getattr(self, name)!r}")
        if self.bonus and self.success == "sparse":
            raise ConfigError(
                "rao.bonus needs rao.success = dense: with sparse success, "
                "children inherit the root's and the bonus would reward delegation itself"
            )

    def credit(self, groups: Sequence[Group]) -> Credits:
        check_groups(groups, min_trees=1 if self.baseline == "none" else 2)
        weights = self._weights([tree for group in groups for tree in group.trees])
        by_node = {key: credit for group in groups for key, credit in self._group(group, weights).items()}
        return make_credits(groups, by_node)

    def _group(self, group: Group, weights: Mapping[int, float]) -> dict[Key, Credit]:
        rewards = [self._rewards(tree) for tree in group.trees]
        baselines = self._baselines([reward[0] for reward in rewards])
        same_goal = SameGoalBaseline(group.trees, rewards) if self.baseline == "same_goal" else None
        credits: dict[Key, Credit] = {}
        for place, tree in enumerate(group.trees):
            for node in tree.nodes:
                reward, baseline = rewards[place][node.index], baselines[place]
                if same_goal is not None:
                    baseline = same_goal.baseline(node, place, default=baseline)
                weight = weights.get(node.depth, 0.0)
                credits[tree.id, node.index] = Credit(
                    reward=reward, baseline=baseline, advantage=reward - baseline, weight=weight
                )
        return credits

    def _rewards(self, tree: Tree) -> dict[int, float]:
        if self.success == "sparse":
            shared = required_score(tree, root_of(tree), needs="rao needs one at every root")
            return self._minus_clone_costs(tree, dict.fromkeys((node.index for node in tree.nodes), shared))
        needs = "rao needs one at every node (success = sparse needs only the root's)"
        successes = {node.index: required_score(tree, node, needs=needs) for node in tree.nodes}
        parents = {node.index: node.parent for node in tree.nodes}
        return self._minus_clone_costs(tree, local_rewards(successes, parents, bonus=self.bonus))

    def _minus_clone_costs(self, tree: Tree, rewards: dict[int, float]) -> dict[int, float]:
        if not self.clone_cost:
            return rewards
        below = num_descendants({node.index: node.parent for node in tree.nodes})
        return {index: reward - self.clone_cost * below[index] for index, reward in rewards.items()}

    def _baselines(self, roots: Sequence[float]) -> list[float]:
        if self.baseline == "none":
            return [0.0] * len(roots)
        return [mean(roots)] * len(roots) if self.baseline == "mean" else leave_one_out(roots)

    def _weights(self, trees: Sequence[Tree]) -> dict[int, float]:
        """By depth. Nodes that sampled nothing have no tokens in the update, so they are not counted."""
        depths = [node.depth for tree in trees for node in tree.nodes if node.has_sampled]
        return depth_weights(depths) if self.depth_weights else dict.fromkeys(depths, 1.0)


class SameGoalBaseline:
    """Rewards of a group's nodes by goal. The goal of a root is the task, which all trees of the group share."""

    def __init__(self, trees: Sequence[Tree], rewards: Sequence[Mapping[int, float]]) -> None:
        self._by_goal: dict[str | None, dict[int, list[float]]] = {}
        for place, (tree, reward) in enumerate(zip(trees, rewards, strict=True)):
            for node in tree.nodes:
                self._by_goal.setdefault(_goal(node), {}).setdefault(place, []).append(reward[node.index])

    def baseline(self, node: Node, place: int, *, default: float) -> float:
        """The mean reward of nodes with this goal in the other trees, so this tree cannot affect it."""
        others = [
            reward for other, rewards in self._by_goal[_goal(node)].items() if other != place for reward in rewards
        ]
        return mean(others) if others else default


def _goal(node: Node) -> str | None:
    return None if node.parent is None else " ".join(node.goal.split())


def num_descendants(parents: Mapping[int, int | None]) -> dict[int, int]:
    """The number of clones below each node, at any depth.

    Example:
        num_descendants({0: None, 1: 0, 2: 1})  # {0: 2, 1: 1, 2: 0}
    """
    counts = dict.fromkeys(parents, 0)
    for index in parents:
        ancestor = parents[index]
        while ancestor is not None:
            counts[ancestor] += 1
            ancestor = parents[ancestor]
    return counts


def local_rewards(
    successes: Mapping[int, float], parents: Mapping[int, int | None], *, bonus: float
) -> dict[int, float]:
    """Own success plus `bonus` times the mean success of the immediate children, by their parent links.

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
    """The weight of a node at each depth: every depth has the same total, and the weights sum to the number of nodes.

    Example:
        depth_weights([0, 1, 1])  # {0: 1.5, 1: 0.75}
    """
    counts = Counter(depths)
    return {depth: counts.total() / len(counts) / count for depth, count in counts.items()}
