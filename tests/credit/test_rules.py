"""What holds for every rule: one credit per node, by id, or a clear error."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.credit import RULES, Group, Rule, group_trees, load_rule, rule_class
from ramet.credit.average import leave_one_out, mean, scaled, spread
from ramet.credit.broadcast import Broadcast
from ramet.credit.rao import Rao
from ramet.credit.selfcest import Selfcest
from ramet.errors import ConfigError, TrainError
from ramet.types import Piece, Task, Turn
from tests.credit.trees import batches, column, group, plant, singles

rules = st.sampled_from(
    [
        Rao(bonus=0.4),
        Rao(success="sparse", depth_weights=False),
        Rao(baseline="mean"),
        Rao(baseline="same_goal", clone_cost=0.03),
        Rao(baseline="depth", token_cost=0.1, prompt_cost=0.1, charge="success"),
        Selfcest(),
        Selfcest(clone_weight="ratio", clone_share=0.4, floor=0.0, length_cap=0.5),
        Selfcest(baseline="difference"),
        Selfcest(clone_cost=0.03, token_cost=0.1, charge="success", call_count="published"),
        Selfcest(baseline="counterfactual", normalise=False),
        Broadcast(),
        Broadcast(baseline="leave_one_out", normalise=True),
    ]
)
every_rule = pytest.mark.parametrize("rule", [load_rule(name) for name in RULES], ids=list(RULES))


# Names and settings.


def test_rules_are_found_by_name():
    assert [rule_class(name) for name in ("rao", "selfcest", "broadcast")] == [Rao, Selfcest, Broadcast]
    assert load_rule("rao", {"bonus": 0.4, "success": "dense"}) == Rao(bonus=0.4)


def test_an_unknown_rule_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"'grpo': .*; GRPO is rule=broadcast credit\.normalise=true$"):
        load_rule("grpo")
    with pytest.raises(ConfigError, match=r"unknown credit rule 'roa': did you mean rao\?"):
        rule_class("roa")
    with pytest.raises(ConfigError, match=r"'xyzzy': accepted: rao, selfcest, broadcast"):
        rule_class("xyzzy")


def test_an_unknown_setting_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"'credit\.bonsu': did you mean credit\.bonus"):
        load_rule("rao", {"bonsu": 0.4})
    with pytest.raises(ConfigError, match=r"credit\.baseline: input should be"):
        load_rule("rao", {"baseline": "loo"})


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("rao", {"bonus": -0.1}, r"credit\.bonus must be 0 or more"),
        ("rao", {"bonus": math.nan}, r"credit\.bonus must be 0 or more"),
        ("rao", {"bonus": math.inf}, r"credit\.bonus must be 0 or more"),
        ("selfcest", {"epsilon": math.inf}, r"credit\.epsilon must be 0 or more"),
        ("rao", {"bonus": 0.4, "success": "sparse"}, "credit.bonus needs credit.success = dense"),
        ("selfcest", {"repair_cost": -1}, r"credit\.repair_cost must be 0 or more"),
        ("rao", {"token_cost": -0.1}, r"credit\.token_cost must be 0 or more"),
        ("rao", {"prompt_cost": math.nan}, r"credit\.prompt_cost must be 0 or more"),
        ("rao", {"charge": "succes"}, r"credit\.charge: input should be 'all' or 'success'"),
        ("rao", {"chrage": "success"}, r"'credit\.chrage': did you mean credit\.charge\?"),
        ("selfcest", {"token_cost": math.inf}, r"credit\.token_cost must be 0 or more"),
        ("selfcest", {"prompt_cost": -1}, r"credit\.prompt_cost must be 0 or more"),
        ("selfcest", {"call_count": "all"}, r"credit\.call_count: input should be 'delegate' or 'published'"),
        ("selfcest", {"floor": math.nan}, r"credit\.floor must be finite"),
        ("selfcest", {"root_scale": 0}, "above 0"),
        ("broadcast", {"epsilon": math.inf}, r"credit\.epsilon must be 0 or more"),
    ],
)
def test_invalid_settings_are_refused(name: str, settings: dict[str, float | str], message: str):
    with pytest.raises(ConfigError, match=message):
        load_rule(name, settings)


# Averages.


def test_averages_of_equal_numbers_are_exactly_that_number():
    assert sum([0.1] * 3) / 3 != 0.1
    assert mean([0.1] * 3) == 0.1
    assert leave_one_out([0.1] * 4) == [0.1] * 4
    assert spread([0.1] * 4) == 0.0


def test_a_standard_deviation_has_the_divisor_n_minus_one():
    assert spread([1.0, 0.0, 0.0, 0.0]) == 0.5
    assert scaled(0.75, 0.5, epsilon=0.0) == 1.5
    assert scaled(0.0, 0.0, epsilon=0.0) == 0.0


# One credit per node, in any order.


@given(batches, rules)
def test_every_node_has_one_finite_credit(batch: list[Group], rule: Rule):
    credits = rule.credit(batch)
    nodes = [(tree.id, node.index) for one in batch for tree in one.trees for node in tree.nodes]
    assert list(credits.by_node) == nodes
    assert all(math.isfinite(credit.weight * credit.advantage) for credit in credits.by_node.values())
    assert (credits.summary.groups, credits.summary.nodes) == (len(batch), len(nodes))
    assert credits.summary.trees == sum(len(one.trees) for one in batch)


@given(batches, rules, st.randoms(use_true_random=False))
def test_the_order_of_groups_trees_and_nodes_changes_no_number(batch: list[Group], rule: Rule, dice: random.Random):
    before = rule.credit(batch)
    shuffled: list[Group] = []
    for one in dice.sample(batch, len(batch)):
        mixed = [replace(tree, nodes=dice.sample(tree.nodes, len(tree.nodes))) for tree in one.trees]
        shuffled.append(replace(one, trees=tuple(dice.sample(mixed, len(mixed)))))
    after = rule.credit(shuffled)
    assert after.by_node == before.by_node
    assert set(after.summary.flat) == set(before.summary.flat)


@given(batches, rules)
def test_crediting_changes_no_tree(batch: list[Group], rule: Rule):
    before = repr(batch)
    rule.credit(batch)
    assert repr(batch) == before


@every_rule
def test_an_empty_batch_gives_no_credits(rule: Rule):
    credits = rule.credit([])
    assert not credits.by_node
    assert credits.summary.reward is None


# Groups.


def test_trees_are_grouped_by_task_or_by_a_given_key():
    trees = [plant(name, [1.0], task=task) for name, task in [("a", "x"), ("b", "y"), ("c", "x")]]
    assert [(one.key, [tree.id for tree in one.trees]) for one in group_trees(trees)] == [
        ("x", ["a", "c"]),
        ("y", ["b"]),
    ]
    finer = group_trees(trees, key=lambda tree: f"{tree.task.id} with {tree.budget.tokens} tokens")
    assert [len(one.trees) for one in finer] == [2, 1]


@every_rule
def test_a_group_of_one_is_refused(rule: Rule):
    with pytest.raises(TrainError, match=r"group sums/1 has 1 tree\(s\), where 2 or more are needed"):
        rule.credit([singles(1.0)])


@every_rule
def test_a_group_without_trees_is_refused(rule: Rule):
    with pytest.raises(TrainError, match=r"group none has 0 tree\(s\)"):
        rule.credit([Group(key="none", trees=())])


@every_rule
def test_a_group_that_mixes_tasks_is_refused(rule: Rule):
    mixed = Group(key="g", trees=(plant("a", [1.0], task="x"), plant("b", [0.0], task="y")))
    with pytest.raises(TrainError, match=r"group g mixes 2 tasks \(x, y\)"):
        rule.credit([mixed])


@every_rule
def test_two_questions_under_one_task_id_are_two_tasks(rule: Rule):
    other = replace(plant("b", [0.0]), task=Task(question="2+2", id="sums/1"))
    with pytest.raises(TrainError, match=r"mixes 2 tasks \(sums/1\), which share their id"):
        rule.credit([group(plant("a", [1.0]), other)])


@every_rule
def test_a_group_with_equal_rewards_has_no_signal_and_is_listed_as_flat(rule: Rule):
    credits = rule.credit([singles(0.1, 0.1, 0.1), singles(1.0, 0.0, task="sums/2")])
    assert column(credits, "advantage")[:3] == [0.0, 0.0, 0.0]
    assert any(column(credits, "advantage")[3:])
    assert credits.summary.flat == ("sums/1",)
    assert not credits.summary.without_signal
    assert rule.credit([singles(1.0, 1.0)]).summary.without_signal


def test_the_summary_has_the_mean_reward_of_the_roots():
    assert Rao().credit([singles(1.0, 0.0, 0.5)]).summary.reward == 0.5


def test_advantages_and_weights_of_a_tree_are_keyed_by_node_index():
    oak = plant("oak", [1.0, 0.0], [None, 0])
    credits = Rao().credit([group(oak, plant("elm", [0.0, 0.0], [None, 0]))])
    assert credits.of(oak) == {0: (1.0, 1.0), 1: (0.0, 1.0)}


# Errors name the tree and the node.


@every_rule
@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, 7.0, -3.0, 1.001])
def test_a_score_that_is_not_from_0_to_1_is_named_with_its_tree_and_node(rule: Rule, score: float):
    bad = plant("oak", [1.0, score], [None, 0])
    with pytest.raises(TrainError, match=rf"tree oak, node 1: score is {score}"):
        rule.credit([group(plant("elm", [1.0]), bad)])


@every_rule
def test_a_root_without_a_verdict_is_named(rule: Rule):
    with pytest.raises(TrainError, match=r"tree oak, node 0: no verdict, and \w+ needs one at every"):
        rule.credit([group(plant("elm", [1.0]), plant("oak", [None]))])


def test_a_child_without_a_verdict_is_refused_only_by_the_rule_that_needs_it():
    batch = [group(plant("elm", [1.0]), plant("oak", [0.0, None], [None, 0]))]
    with pytest.raises(TrainError, match=r"tree oak, node 1: no verdict, and rao needs one at every node"):
        Rao().credit(batch)
    for rule in (Rao(success="sparse"), Selfcest(), Broadcast()):
        assert rule.credit(batch).summary.nodes == 3


def test_a_number_that_overflows_is_named():
    huge = [group(plant("elm", [0.0]), plant("oak", [1.0, 1.0, 1.0], [None, 0, 0]))]
    with pytest.raises(TrainError, match="tree oak, node 0: reward is -inf"):
        Rao(clone_cost=1e308).credit(huge)


@every_rule
def test_a_tree_that_appears_twice_is_refused(rule: Rule):
    with pytest.raises(TrainError, match="tree oak appears twice"):
        rule.credit([group(plant("oak", [1.0]), plant("oak", [0.0]))])


@every_rule
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: tree.nodes.clear(), "tree oak: exactly one node, node 0, must have no parent"),
        (lambda tree: tree.nodes.pop(1), "not numbered 0 to 1"),
        (lambda tree: setattr(tree.nodes[2], "index", 1), "not numbered 0 to 2"),
        (lambda tree: setattr(tree.nodes[2], "parent", None), "exactly one node, node 0"),
        (lambda tree: setattr(tree.nodes[2], "parent", 7), r"node 2: parent 7 is not an earlier node"),
        (lambda tree: setattr(tree.nodes[1], "parent", 2), r"node 1: parent 2 is not an earlier node"),
        (lambda tree: setattr(tree.nodes[2], "depth", 2), r"node 2: depth 2 is not one more"),
    ],
)
def test_a_tree_whose_links_are_broken_is_refused(rule: Rule, change: object, message: str):
    broken = plant("oak", [1.0, 1.0, 0.0], [None, 0, 0])
    change(broken)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TrainError, match=message):
        rule.credit([group(plant("elm", [1.0]), broken)])


# Nodes that sampled nothing.


@every_rule
def test_a_node_cancelled_before_its_first_token_has_no_weight(rule: Rule):
    oak = plant("oak", [1.0, 0.0, 1.0], [None, 0, 0])
    oak.nodes[1].pieces = [Piece(sampled=False, text="a prompt")]
    credits = rule.credit([group(oak, plant("elm", [0.0]))])
    assert credits["oak", 1].weight == 0.0
    assert credits["oak", 2].weight > 0.0


def test_a_tree_with_all_the_children_its_turns_name_is_accepted():
    oak = plant("oak", [1.0, 0.0], [None, 0])
    oak.nodes[0].turns = [Turn(tokens=2, finish="stop", started_s=0.0, sampled_s=0.0, children=[1])]
    assert Rao().credit([group(oak, plant("elm", [0.0]))]).summary.nodes == 3
