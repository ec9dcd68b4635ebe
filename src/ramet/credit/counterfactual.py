"""Credit for decisions by taking them the other way: what would the root have scored if the node had not delegated?

A share of the turns that started clones is replayed. The tree is forked at that turn with an alternative, run to its
end and graded:

    alone       the node may not delegate from this turn on
    one_less    the turn stays as it is, and one of its clones, drawn at random, is refused

    outcome     O = score of the root - clone_cost * clones in the tree
    advantage   A = O - mean O of the replays, for the tokens of the turn that decided

All other tokens get the credit of the rule that is in use, and so do all decisions that were not replayed. The weight
of a turn is that of its node.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ramet.credit.average import mean
from ramet.credit.check import required_score, root_of
from ramet.credit.records import Credit, Credits, Group, TurnKey, make_credits
from ramet.errors import ConfigError
from ramet.interfaces import Rule
from ramet.types import Node, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A turn that started clones, and the clone that is refused if it is replayed with one less."""

    tree: Tree
    node: int
    turn: int
    clone: int | None = None

    @property
    def key(self) -> TurnKey:
        return self.tree.id, self.node, self.turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """Which decisions are replayed, and how. `with_outcomes` lays the result over a credit rule.

    Example:
        counterfactual = Counterfactual(share=0.5)
        decisions = counterfactual.decisions(trees, seed=0)
        credits = counterfactual.with_outcomes(load_rule("rao"), {decisions[0].key: [1.0]}).credit(groups)
    """

    share: float = 0.0  # of the turns that started clones; 0: nothing is replayed
    alternative: Literal["alone", "one_less"] = "alone"
    replays: int = 1  # per decision
    max_tokens: int | None = None  # generated for replays in one step; None: no limit but the trees' own budgets
    clone_cost: float = 0.0  # per clone, in both outcomes

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"counterfactual.share is a share from 0 to 1; got {self.share!r}")
        if self.replays < 1:
            raise ConfigError(f"counterfactual.replays is a whole number from 1 up; got {self.replays!r}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"counterfactual.max_tokens is a whole number from 1 up; got {self.max_tokens!r}")
        if not 0 <= self.clone_cost < math.inf:
            raise ConfigError(f"counterfactual.clone_cost must be 0 or more; got {self.clone_cost!r}")

    def with_outcomes(self, rule: Rule, outcomes: Mapping[TurnKey, Sequence[float]]) -> ReplayedDecisions:
        """A rule that also knows the outcomes of the replays of each decision."""
        return ReplayedDecisions(rule=rule, counterfactual=self, outcomes=outcomes)

    def decisions(self, trees: Sequence[Tree], *, seed: int) -> list[Decision]:
        """The decisions to replay: a share of all, at least one if there is any, drawn at random."""
        dice = random.Random(seed)
        found = [
            Decision(tree=tree, node=node.index, turn=number, clone=self._clone(node, number, dice))
            for tree in trees
            for node in tree.nodes
            for number, turn in enumerate(node.turns)
            if turn.children
        ]
        wanted = math.ceil(self.share * len(found))
        chosen = sorted(dice.sample(range(len(found)), wanted))
        return [found[i] for i in chosen]

    def outcome(self, tree: Tree) -> float:
        """What a tree is worth: its root's score minus the cost of its clones."""
        score = required_score(tree, root_of(tree), needs="replaying decisions needs one at every root")
        return score - self.clone_cost * (len(tree.nodes) - 1)

    def _clone(self, node: Node, turn: int, dice: random.Random) -> int | None:
        return dice.choice(node.turns[turn].children) if self.alternative == "one_less" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedDecisions:
    """The credit of a rule, except for the turns that were replayed."""

    rule: Rule
    counterfactual: Counterfactual
    outcomes: Mapping[TurnKey, Sequence[float]]  # of the replays, by decision

    def credit(self, groups: Sequence[Group]) -> Credits:
        base = self.rule.credit(groups)
        trees = {tree.id: tree for group in groups for tree in group.trees}
        turns = dict(base.by_turn)
        for (tree, node, turn), outcomes in self.outcomes.items():
            if tree in trees and outcomes:
                reward, baseline = self.counterfactual.outcome(trees[tree]), mean(outcomes)
                turns[tree, node, turn] = Credit(
                    reward=reward,
                    baseline=baseline,
                    advantage=reward - baseline,
                    weight=base[tree, node].weight,
                )
        return make_credits(groups, base.by_node, turns)
