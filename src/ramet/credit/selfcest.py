"""Credit after SELFCEST ("General learned delegation by clones", arXiv 2602.13262): one reward for the whole tree.

    shared reward  S = root's score - cost of the root's length - cost of the longest clone's - cost of extra calls
    root           R = S - cost of its repaired calls
    advantage      A = (R - mean R of the group) / (standard deviation of R in the group + epsilon)
    clone          A of its root, times a clone weight: 0 for a long answer that is not marked as one, else its share

The formulas are those of the authors' code. Its defaults are here; for mathematics it uses `clone_share = 0.4`,
`call_cost = 0`, `length_cap = 0.5`, `floor = 0`. Scores come from the taskset. Two things differ by default and can be
had back: the clone weight is written as a gate (`clone_weight = "ratio"` is the code's form, which also turns a clone's
advantage round or off when S is near zero), and a group of one is refused (`lone = "reward"`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from ramet.credit.average import mean, scaled, spread
from ramet.credit.check import check, root_of, score
from ramet.credit.protocol import marks_answer, num_calls, num_repairs
from ramet.credit.records import Credit, Credits, Group, Key, settle
from ramet.errors import ConfigError
from ramet.types import Node, Tree

TINY = 1e-8  # what a root's reward of zero counts as in a ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Selfcest:
    """A group needs two trees or more, unless `lone` says otherwise; only roots need a verdict."""

    root_free: int = 512  # tokens a root may generate at no cost; see `length_cost`
    root_scale: float = 256.0
    root_most: float = 0.3
    clone_free: int = 512  # the same for the longest clone anywhere in the tree
    clone_scale: float = 512.0
    clone_most: float = 0.2
    call_cost: float = 0.1  # for each of the root's calls for clones beyond the free ones
    free_calls: int = 2
    clone_cost: float = 0.0  # for every clone anywhere in the tree; not in the paper
    repair_cost: float = 0.05
    length_cap: float | None = None  # both lengths together cost at most this
    floor: float | None = None  # the shared reward is at least this
    clone_weight: Literal["gate", "ratio", "one"] = "gate"
    clone_share: float = 1.0  # of the shared reward, for a clone
    gate_tokens: int = 192  # a clone this short may leave its answer unmarked
    ratio_bound: float = 1.5
    baseline: Literal["group", "difference", "counterfactual"] = "group"  # of clones; see `expected`
    normalise: bool = True
    epsilon: float = 1e-6
    lone: Literal["refuse", "reward"] = "refuse"  # a group of one: refuse it, or take the reward as the advantage

    def __post_init__(self) -> None:
        for knob in fields(self):
            value, least = getattr(self, knob.name), -math.inf if knob.name == "floor" else 0
            if isinstance(value, int | float) and not least <= value < math.inf:
                raise ConfigError(f"selfcest.{knob.name} is a number from 0 up; got {value!r}")
        if not self.root_scale or not self.clone_scale:
            raise ConfigError("selfcest.root_scale and selfcest.clone_scale are above 0")

    def credit(self, groups: Sequence[Group]) -> Credits:
        check(groups, least=2 if self.lone == "refuse" else 1)
        return settle(groups, {key: one for group in groups for key, one in self._group(group).items()})

    def _group(self, group: Group) -> dict[Key, Credit]:
        shared = [self._shared(tree) for tree in group.trees]
        rewards = [
            one - self.repair_cost * num_repairs(root_of(tree)) for tree, one in zip(group.trees, shared, strict=True)
        ]
        average, deviation = (mean(rewards), spread(rewards)) if len(rewards) > 1 else (0.0, 1.0)
        places = [frozenset(node.path for node in tree.nodes) for tree in group.trees]
        found: dict[Key, Credit] = {}
        for i, tree in enumerate(group.trees):
            for node in tree.nodes:
                own, weight, baseline = rewards[i], 1.0, average
                if node.parent is not None:
                    own = self._clone_reward(tree, node, shared[i])
                    weight = self._clone_weight(tree, node, own, rewards[i])
                    baseline = self._clone_baseline(i, rewards, [node.path in place for place in places], average)
                advantage = rewards[i] - baseline
                if self.normalise:
                    advantage = scaled(advantage, deviation, epsilon=self.epsilon)
                found[tree.id, node.index] = Credit(reward=own, baseline=baseline, advantage=weight * advantage)
        return found

    def _shared(self, tree: Tree) -> float:
        """What the whole tree is worth."""
        root = root_of(tree)
        longest = max((node.usage.tokens for node in tree.nodes if node.parent is not None), default=0)
        length = length_cost(root.usage.tokens, free=self.root_free, scale=self.root_scale, most=self.root_most)
        length += length_cost(longest, free=self.clone_free, scale=self.clone_scale, most=self.clone_most)
        if self.length_cap is not None:
            length = min(length, self.length_cap)
        calls = self.call_cost * max(0, num_calls(tree, root) - self.free_calls)
        clones = self.clone_cost * (len(tree.nodes) - 1)
        shared = score(tree, root, needed="selfcest needs one at every root") - length - calls - clones
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

    def _clone_baseline(self, i: int, rewards: Sequence[float], there: Sequence[bool], average: float) -> float:
        if self.baseline == "group" or len(rewards) == 1:
            return average
        return expected(i, rewards, there, wanted=self.baseline == "counterfactual")


def length_cost(tokens: int, *, free: int, scale: float, most: float) -> float:
    """What generated tokens cost: the first `free` nothing, the rest more and more, but never more than `most`.

    `scale` tokens beyond the free ones cost 63 % of `most`.

    Example:
        length_cost(640, free=512, scale=256.0, most=0.3)  # 0.1180408
    """
    return 0.0 if tokens <= free else -most * math.expm1((free - tokens) / scale)


def ratio(clone: float, root: float, *, bound: float) -> float:
    """A clone's reward over its root's, at most `bound` either way. A root's zero counts as a tiny positive number.

    Where the two differ in sign, the clone's advantage is the opposite of its root's.

    Example:
        ratio(0.4, 1.0, bound=1.5)  # 0.4
        ratio(0.06, -0.04, bound=1.5)  # -1.5
    """
    return max(-bound, min(bound, clone / math.copysign(max(abs(root), TINY), root or 1.0)))


def expected(i: int, rewards: Sequence[float], there: Sequence[bool], *, wanted: bool) -> float:
    """What the task pays when this clone is not the one that acts, told by the group's other trees.

    `there` says which trees have a clone in the same place (its path from the root). A difference reward asks what the
    tree would be worth had the clone never been started: the mean over other trees without it (`wanted` False). A
    counterfactual baseline asks what it is worth on average with another draw in its place: the mean over other trees
    that have one (`wanted` True). Where the group has no such tree, all others stand in. Other trees know nothing of
    what this clone said, so neither biases its gradient. The paper names both ideas; the form is ours.

    Example:
        expected(0, [1.0, 0.0, 0.6], [True, True, False], wanted=False)  # 0.6
    """
    others = [j for j in range(len(rewards)) if j != i]
    alike = [j for j in others if there[j] is wanted]
    return mean([rewards[j] for j in alike or others])
