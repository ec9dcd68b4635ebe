"""Decisions taken the other way: which are replayed, and what their turns earn."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.credit import load_rule
from ramet.credit.counterfactual import Counterfactual
from ramet.credit.records import Credit, Credits, Group, make_credits
from ramet.errors import ConfigError
from ramet.types import Tree, Turn
from tests.credit.trees import group, plant


def delegating(name: str, score: float, *, clones: int = 2) -> Tree:
    """A root that starts clones in its first turn and answers in its second."""
    tree = plant(name, [score] + [1.0] * clones, [None] + [0] * clones)
    children = list(range(1, clones + 1))
    tree.root.turns = [
        Turn(tokens=2, finish="stop", started_s=0.0, sampled_s=0.0, children=children),
        Turn(tokens=2, finish="stop", started_s=0.0, sampled_s=0.0),
    ]
    return tree


def test_a_decision_earns_the_difference_to_its_alternative() -> None:
    trees = [delegating("helped", 1.0), delegating("hurt", 0.0), delegating("idle", 1.0), delegating("half", 1.0)]
    outcomes = {("helped", 0, 0): [0.0], ("hurt", 0, 0): [1.0], ("idle", 0, 0): [1.0], ("half", 0, 0): [1.0, 0.0]}
    base = load_rule("rao", {"depth_weights": False})
    credits = Counterfactual(share=1.0).with_outcomes(base, outcomes).credit([group(*trees)])
    assert {key[0]: credit.advantage for key, credit in credits.by_turn.items()} == {
        "helped": 1.0,
        "hurt": -1.0,
        "idle": 0.0,
        "half": 0.5,
    }
    assert credits.by_node == base.credit([group(*trees)]).by_node
    assert credits.turns_of(trees[1]) == {(0, 0): (-1.0, 1.0)}


def test_clones_cost_in_both_outcomes() -> None:
    settings = Counterfactual(share=1.0, clone_cost=0.1)
    assert settings.outcome(delegating("three", 1.0, clones=3)) == pytest.approx(0.7)
    assert settings.outcome(plant("none", [1.0])) == 1.0


def test_the_weight_of_a_turn_is_that_of_its_node() -> None:
    trees = [delegating("a", 1.0), delegating("b", 0.0)]
    credits = Counterfactual(share=1.0).with_outcomes(load_rule("rao"), {("a", 0, 0): [0.0]}).credit([group(*trees)])
    # Six nodes at two depths: three for each depth, shared by two roots.
    assert credits["a", 0].weight == credits.by_turn["a", 0, 0].weight == 1.5


def test_a_group_whose_only_signal_is_a_decision_is_not_flat() -> None:
    trees = [delegating("a", 1.0), delegating("b", 1.0)]
    base, settings = load_rule("rao"), Counterfactual(share=1.0)
    assert base.credit([group(*trees)]).summary.without_signal
    assert not settings.with_outcomes(base, {("a", 0, 0): [0.0]}).credit([group(*trees)]).summary.without_signal
    assert settings.with_outcomes(base, {("a", 0, 0): [1.0]}).credit([group(*trees)]).summary.without_signal


class OwnTurns:
    """A rule that credits the first turn of every root by itself."""

    def credit(self, groups: Sequence[Group]) -> Credits:
        own = Credit(reward=1.0, baseline=0.5, advantage=0.5)
        base = load_rule("rao").credit(groups).by_node
        return make_credits(groups, base, {(tree.id, 0, 0): own for each in groups for tree in each.trees})


def test_turns_that_were_not_replayed_keep_the_credit_that_a_rule_of_ones_own_gives_them() -> None:
    trees = [delegating("a", 1.0), delegating("b", 1.0)]
    credits = Counterfactual(share=0.5).with_outcomes(OwnTurns(), {("a", 0, 0): [0.0]}).credit([group(*trees)])
    assert {key: credit.advantage for key, credit in credits.by_turn.items()} == {("a", 0, 0): 1.0, ("b", 0, 0): 0.5}


@given(share=st.floats(0.01, 1.0), num=st.integers(0, 9), seed=st.integers(0, 99))
def test_a_share_of_the_decisions_is_drawn_the_same_way_each_time(share: float, num: int, seed: int) -> None:
    trees = [plant("alone", [1.0]), *(delegating(f"t{i}", 1.0) for i in range(num))]
    settings = Counterfactual(share=share, alternative="one_less")
    drawn = settings.decisions(trees, seed=seed)
    assert [decision.key for decision in drawn] == [decision.key for decision in settings.decisions(trees, seed=seed)]
    assert len({decision.key for decision in drawn}) == len(drawn)
    assert share * num <= len(drawn) < share * num + 1
    assert all(decision.clone in (1, 2) and decision.turn == 0 for decision in drawn)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"share": 1.5}, "counterfactual.share is a share from 0 to 1; got 1.5"),
        ({"replays": 0}, "counterfactual.replays is a whole number from 1 up; got 0"),
        ({"max_tokens": 0}, "counterfactual.max_tokens is a whole number from 1 up; got 0"),
        ({"clone_cost": -1.0}, "counterfactual.clone_cost must be 0 or more; got -1.0"),
    ],
)
def test_a_bad_setting_is_one_line(settings: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        Counterfactual(**settings)  # pyright: ignore[reportArgumentType]
    assert str(error.value) == said
