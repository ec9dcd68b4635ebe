"""The control: every node of a tree gets its root's advantage, as if the tree had been one agent.

This is what most frameworks do when one attempt gives several rows. Who was right and who was wrong inside the tree
plays no part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ramet.credit.average import leave_one_out, mean, scaled, spread
from ramet.credit.check import check, root_of, score
from ramet.credit.records import Credit, Credits, Group, Key, settle
from ramet.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """A group needs two trees or more; only roots need a verdict."""

    baseline: Literal["mean", "leave_one_out"] = "mean"  # of the roots' scores: all of them, or the others'
    normalise: bool = False  # divide by the group's standard deviation: loud groups and quiet ones sound alike
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < math.inf:
            raise ConfigError(f"broadcast.epsilon is a number from 0 up; got {self.epsilon!r}")

    def credit(self, groups: Sequence[Group]) -> Credits:
        check(groups, least=2)
        return settle(groups, {key: one for group in groups for key, one in self._group(group).items()})

    def _group(self, group: Group) -> dict[Key, Credit]:
        rewards = [score(tree, root_of(tree), needed="broadcast needs one at every root") for tree in group.trees]
        lone = self.baseline == "leave_one_out"
        baselines = leave_one_out(rewards) if lone else [mean(rewards)] * len(rewards)
        deviation = spread(rewards)
        found: dict[Key, Credit] = {}
        for tree, reward, baseline in zip(group.trees, rewards, baselines, strict=True):
            advantage = reward - baseline
            if self.normalise:
                advantage = scaled(advantage, deviation, epsilon=self.epsilon)
            credit = Credit(reward=reward, baseline=baseline, advantage=advantage)
            found |= {(tree.id, node.index): credit for node in tree.nodes}
        return found
