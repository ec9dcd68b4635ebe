"""Credit after SELFCEST ("General learned delegation by clones", arXiv 2602.13262): one reward for the whole tree.

    shared reward  S = root's score - length cost of the root - length cost of the longest clone - cost of extra calls
    root           R = S - cost of its repaired calls
    advantage      A = (R - mean R of the group) / (standard deviation of R in the group + epsilon)
    clone          A of its root, times a clone weight: 0 for a long text without a marked answer, else its share

The formulas and defaults are those of the authors' code; for mathematics it uses `clone_share = 0.4`, `call_cost = 0`,
`length_cap = 0.5`, `floor = 0`. Scores come from the taskset. Three defaults differ. The clone weight is a gate;
`clone_weight = "ratio"` is the code's form, which also flips or zeroes a clone's advantage when S is near zero. A group
of one is refused; `group_of_one = "reward"` is the code's form. Only calls for clones cost; `call_count = "published"`
counts every tool call, as the code does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from ramet.credit.adherence import marks_answer, num_calls, num_published_calls, num_repairs
from ramet.credit.average import mean, scaled, spread
from ramet.credit.check import check_groups, required_score, root_of
from ramet.credit.prices import Charge, amount_due, node_prices
from ramet.credit.records import Credit, Credits, Group, Key, make_credits
from ramet.errors import ConfigError
from ramet.types import Node, Tree

TINY = 1e-8  # stands in for a root's reward of zero in a ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Selfcest:
    """A group needs at least two trees, unless `group_of_one` is "reward"; only roots need a verdict."""

    root_free: int = 512  # tokens a root may generate at no cost; see `length_cost`
    root_scale: float = 256.0
    root_most: float = 0.3
    clone_free: int = 512  # the same for the longest clone anywhere in the tree
    clone_scale: float = 512.0
    clone_most: float = 0.2
    call_cost: float = 0.1  # per request of the root for clones, after the free ones
    free_calls: int = 2
    call_count: Literal["delegate", "published"] = (
        "delegate"  # which calls cost: see `num_calls`, `num_published_calls`
    )
    clone_cost: float = 0.0  # per clone in the tree; not in the paper
    token_cost: float = 0.0  # per 1,000 tokens generated in the tree; not in the paper
    prompt_cost: float = 0.0  # per 1,000 tokens that its nodes were given to read; not in the paper
    charge: Charge = "all"  # whether every tree pays for length, calls, clones and tokens, or only what succeeded
    repair_cost: float = 0.05
    length_cap: float | None = None  # the most that both lengths cost together
    floor: float | None = None  # the least shared reward
    clone_weight: Literal["gate", "ratio", "one"] = "gate"
    clone_share: float = 1.0  # a clone's share of the shared reward
    gate_tokens: int = 192  # a clone of at most this length may leave its answer unmarked
    ratio_bound: float = 1.5
    baseline: Literal["group", "difference", "counterfactual"] = "group"  # of clones; see `other_trees_reward`
    normalise: bool = True
    epsilon: float = 1e-6
    group_of_one: Literal["refuse", "reward"] = "refuse"  # refuse it, or take the reward as the advantage

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, least = getattr(self, setting.name), -math.inf if setting.name == "floor" else 0
            if isinstance(value, int | float) and not least <= value < math.inf:
                accepted = "finite" if setting.name == "floor" else "0 or more"
                raise ConfigError(f"credit.{setting.name} must be {accepted}; got {value!r}")
        if not self.root_scale or not self.clone_scale:
            raise ConfigError("credit.root_scale and credit.clone_scale must be above 0")

    def credit(self, groups: Sequence[Group]) -> Credits:
        check_groups(groups, min_trees=2 if self.group_of_one == "refuse" else 1)
        by_node = {key: credit for group in groups for key, credit in self._group(group).items()}
        return make_credits(groups, by_node)

    def _group(self, group: Group) -> dict[Key, Credit]:
        shared = [self._shared(tree) for tree in group.trees]
        repairs = [self.repair_cost * num_repairs(root_of(tree)) for tree in group.trees]
        rewards = [reward - cost for reward, cost in zip(shared, repairs, strict=True)]
        average, deviation = (mean(rewards), spread(rewards)) if len(rewards) > 1 else (0.0, 1.0)
        paths = [frozenset(node.path for node in tree.nodes) for tree in group.trees]
        credits: dict[Key, Credit] = {}
        for i, tree in enumerate(group.trees):
            for node in tree.nodes:
                own, weight, baseline = rewards[i], 1.0, average
                if node.parent is not None:
                    own = self._clone_reward(tree, node, shared[i])
                    weight = self._clone_weight(tree, node, own, rewards[i])
                    baseline = self._clone_baseline(i, rewards, [node.path in known for known in paths], average)
                advantage = rewards[i] - baseline
                if self.normalise:
                    advantage = scaled(advantage, deviation, epsilon=self.epsilon)
                credits[tree.id, node.index] = Credit(reward=own, baseline=baseline, advantage=weight * advantage)
        return credits

    def _shared(self, tree: Tree) -> float:
        """The reward that all nodes of a tree share."""
        root = root_of(tree)
        longest = max((node.usage.tokens for node in tree.nodes if node.parent is not None), default=0)
        length = length_cost(root.usage.tokens, free=self.root_free, scale=self.root_scale, most=self.root_most)
        length += length_cost(longest, free=self.clone_free, scale=self.clone_scale, most=self.clone_most)
        if self.length_cap is not None:
            length = min(length, self.length_cap)
        count = num_published_calls if self.call_count == "published" else num_calls
        calls = self.call_cost * max(0, count(tree, root) - self.free_calls)
        prices = node_prices(tree, clone_cost=self.clone_cost, token_cost=self.token_cost, prompt_cost=self.prompt_cost)
        score = required_score(tree, root, needs="selfcest needs one at every root")
        if self.charge == "all":
            shared = score - length - calls - prices[root.index]
        else:
            shared = score - amount_due(length + calls + prices[root.index], score, self.charge)
        return shared if self.floor is None else max(self.floor, shared)

    def _clone_reward(self, tree: Tree, clone: Node, shared: float) -> float:
        return self.clone_share * shared if self._well_formed(tree, clone) else 0.0

    def _well_formed(self, tree: Tree, clone: Node) -> bool:
        return clone.usage.tokens <= self.gate_tokens or marks_answer(tree, clone)

    def _clone_weight(self, tree: Tree, clone: Node, own: float, root: float) -> float:
        if self.clone_weight == "ratio":
            return ratio(own, root, bound=self.ratio_bound)
        if self.clone_weight == "one":
            return 1.0
        return self.clone_share if self._well_formed(tree, clone) else 0.0

    def _clone_baseline(self, i: int, rewards: Sequence[float], has_clone: Sequence[bool], average: float) -> float:
        if self.baseline == "group" or len(rewards) == 1:
            return average
        return other_trees_reward(i, rewards, has_clone, with_clone=self.baseline == "counterfactual")


def length_cost(tokens: int, *, free: int, scale: float, most: float) -> float:
    """The cost of generated tokens: none for the first `free`, then rising towards `most`.

    `scale` tokens after the free ones cost 63% of `most`.

    Example:
        length_cost(640, free=512, scale=256.0, most=0.3)  # 0.1180408
    """
    return 0.0 if tokens <= free else -most * math.expm1((free - tokens) / scale)


def ratio(clone: float, root: float, *, bound: float) -> float:
    """A clone's reward divided by its root's, within `bound` of zero. A root's zero counts as a tiny positive number.

    If they differ in sign, the clone's advantage is the opposite of its root's.

    Example:
        ratio(0.4, 1.0, bound=1.5)  # 0.4
        ratio(0.06, -0.04, bound=1.5)  # -1.5
    """
    return max(-bound, min(bound, clone / math.copysign(max(abs(root), TINY), root or 1.0)))


def other_trees_reward(i: int, rewards: Sequence[float], has_clone: Sequence[bool], *, with_clone: bool) -> float:
    """The baseline of a clone of tree `i`: the mean reward of the group's other trees with, or without, such a clone.

    `has_clone` tells which trees have a clone at the same path from the root. A difference reward asks what the tree
    would be worth without the clone: the mean over other trees that have none (`with_clone` False). A counterfactual
    baseline asks what the tree is worth with another sample in its place: the mean over other trees that have one
    (`with_clone` True). If the group has no such tree, the mean is over all others. Other trees do not depend on this
    clone, so neither baseline biases its gradient. The paper names both ideas; these formulas are ours.

    Example:
        other_trees_reward(0, [1.0, 0.0, 0.6], [True, True, False], with_clone=False)  # 0.6
    """
    others = [j for j in range(len(rewards)) if j != i]
    chosen = [j for j in others if has_clone[j] is with_clone]
    return mean([rewards[j] for j in chosen or others])
