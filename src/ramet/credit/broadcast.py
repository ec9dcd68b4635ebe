"""The control: every node of a tree gets the advantage of its root, as if the tree were a single agent.

Most frameworks do this when one attempt gives several rows. Verdicts of children are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ramet.credit.average import leave_one_out, mean, scaled, spread
from ramet.credit.check import check_groups, required_score, root_of
from ramet.credit.records import Credit, Credits, Group, Key, make_credits
from ramet.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """A group needs at least two trees; only roots need a verdict."""

    baseline: Literal["mean", "leave_one_out"] = "mean"  # of the scores of all roots, or of the other roots
    normalise: bool = False  # divide by the standard deviation of the group
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < math.inf:
            raise ConfigError(f"credit.epsilon must be 0 or more; got {self.epsilon!r}")

    def credit(self, groups: Sequence[Group]) -> Credits:
        check_groups(groups, min_trees=2)
        by_node = {key: credit for group in groups for key, credit in self._group(group).items()}
        return make_credits(groups, by_node)

    def _group(self, group: Group) -> dict[Key, Credit]:
        needs = "broadcast needs one at every root"
        rewards = [required_score(tree, root_of(tree), needs=needs) for tree in group.trees]
        baselines = leave_one_out(rewards) if self.baseline == "leave_one_out" else [mean(rewards)] * len(rewards)
        deviation = spread(rewards)
        credits: dict[Key, Credit] = {}
        for tree, reward, baseline in zip(group.trees, rewards, baselines, strict=True):
            advantage = reward - baseline
            if self.normalise:
                advantage = scaled(advantage, deviation, epsilon=self.epsilon)
            credit = Credit(reward=reward, baseline=baseline, advantage=advantage)
            credits |= {(tree.id, node.index): credit for node in tree.nodes}
        return credits
