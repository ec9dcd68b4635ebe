"""Known mistakes of frameworks that train on trees, numbered as in our list of pitfalls."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ramet.credit import Credits, Rule, group_trees
from ramet.credit.broadcast import Broadcast
from ramet.credit.rao import Rao
from ramet.credit.selfcest import Selfcest
from ramet.errors import TrainError
from ramet.types import Tree, Turn
from tests.credit.trees import column, group, plant, singles

every_rule = pytest.mark.parametrize("rule", [Rao(), Selfcest(), Broadcast()], ids=["rao", "selfcest", "broadcast"])
BOTH = (("x", 1.0), ("y", 0.0), ("x", 0.0), ("y", 0.0), ("y", 1.0))  # interleaved tasks


def credited(rule: Rule, trees: Sequence[Tree]) -> Credits:
    return rule.credit(group_trees(trees))


def test_pitfall_3_lineage_comes_from_ids_never_from_text():
    # Every node of these trees has the same goal and the same text.
    twins = plant("a", [1.0, 0.0, 1.0, 0.0], [None, 0, 0, 2])
    rewards = column(Rao(bonus=0.5).credit([group(twins, plant("b", [0.0]))]), "reward")
    assert rewards == [1.25, 0.0, 1.0, 0.0, 0.0]


@every_rule
def test_pitfall_8_no_node_is_credited_with_another_tree_s_numbers(rule: Rule):
    wide = plant("wide", [1.0] * 5, [None, 0, 0, 0, 0])
    deep = plant("deep", [0.0] * 3, [None, 0, 1])
    credits = rule.credit([group(wide, plant("lone", [0.0]), deep)])
    assert all(credits["wide", i].advantage > 0 for i in range(5))
    assert all(credits["deep", i].advantage < 0 for i in range(3))


@every_rule
def test_pitfall_9_groups_are_keyed_by_data_not_by_position(rule: Rule):
    trees = [plant(f"t{i}", [score], task=task) for i, (task, score) in enumerate(BOTH)]
    mixed = credited(rule, trees)
    for task in "xy":
        alone = credited(rule, [tree for tree in trees if tree.task.id == task])
        assert all(mixed[key].advantage == credit.advantage for key, credit in alone.by_node.items())
    assert mixed.summary.groups == 2


@every_rule
def test_pitfall_9_nodes_of_different_depth_make_no_groups_of_one(rule: Rule):
    # Only one tree has a node at depth 2; it is compared through its root, like all others.
    credits = rule.credit([group(plant("a", [1.0, 1.0, 1.0], [None, 0, 1]), plant("b", [0.0]))])
    assert credits["a", 2].advantage == credits["a", 0].advantage != 0


@every_rule
def test_pitfall_10_the_size_of_a_tree_does_not_move_its_group_s_baseline(rule: Rule):
    small = rule.credit([group(plant("a", [1.0]), plant("b", [0.0]), plant("c", [0.0]))])
    large = rule.credit([group(plant("a", [1.0] * 8, [None] + [0] * 7), plant("b", [0.0]), plant("c", [0.0]))])
    for name in "abc":
        assert large[name, 0].baseline == small[name, 0].baseline
        assert large[name, 0].advantage == small[name, 0].advantage


def test_pitfall_10_many_leaves_do_not_outweigh_the_roots():
    bush = plant("a", [1.0] * 9, [None] + [0] * 8)
    credits = Rao().credit([group(bush, plant("b", [0.0]))])
    roots = credits["a", 0].weight + credits["b", 0].weight
    assert roots == pytest.approx(sum(credits["a", i].weight for i in range(1, 9)))


def test_pitfall_11_depths_are_counted_over_the_whole_batch_not_group_by_group():
    first = group(plant("a", [1.0, 1.0], [None, 0]), plant("b", [0.0]))
    second = group(plant("c", [1.0, 1.0, 1.0], [None, 0, 0], task="z"), plant("d", [0.0], task="z"))
    weights = column(Rao().credit([first, second]), "weight")
    assert weights == pytest.approx([7 / 8, 7 / 6, 7 / 8, 7 / 8, 7 / 6, 7 / 6, 7 / 8])


def test_pitfall_12_rewards_are_divided_by_a_deviation_only_by_rules_that_normalise():
    close = singles(0.51, 0.5)
    for rule in (Rao(), Broadcast(), Selfcest(normalise=False)):
        assert max(column(rule.credit([close]), "advantage")) <= 0.01 + 1e-9
    assert max(column(Selfcest().credit([close]), "advantage")) > 0.7


@every_rule
def test_pitfall_13_a_tree_with_missing_nodes_is_refused(rule: Rule):
    torn = plant("torn", [1.0, 1.0, 1.0], [None, 0, 0])
    torn.root.turns = [Turn(tokens=2, finish="stop", started_s=0.0, sampled_s=0.0, children=[1, 2])]
    del torn.nodes[2]
    with pytest.raises(TrainError, match="tree torn, node 0: child 2 is missing; trees must be complete"):
        rule.credit([group(torn, plant("b", [0.0]))])


def test_pitfall_18_no_node_s_reward_overwrites_another_s():
    scores = [1.0, 0.25, 0.5, 0.75]
    assert column(Rao().credit([group(plant("a", scores, [None, 0, 0, 1]), LONE)]), "reward")[:4] == scores


LONE = plant("lone", [0.0])


def test_pitfall_19_returns_follow_parent_links_only():
    # Nodes 1 and 2 are siblings, 3 is a child of 1 and 4 of 2: nothing leaks from one branch to the other.
    parents = [None, 0, 0, 1, 2]
    one = Rao(bonus=0.5).credit([group(plant("a", [1.0, 0.0, 0.0, 1.0, 0.0], parents), LONE)])
    other = Rao(bonus=0.5).credit([group(plant("a", [1.0, 0.0, 0.0, 1.0, 1.0], parents), LONE)])
    assert [one["a", i].reward for i in (0, 1, 3)] == [other["a", i].reward for i in (0, 1, 3)] == [1.0, 0.5, 1.0]
    assert (one["a", 2].reward, other["a", 2].reward) == (0.0, 0.5)


@every_rule
def test_pitfall_20_no_node_is_dropped_silently(rule: Rule):
    sizes = [1, 4, 2, 7, 3]
    trees = [plant(f"t{size}", [size / 7] * size, [None] + [0] * (size - 1)) for size in sizes]
    assert len(rule.credit([group(*trees)]).by_node) == sum(sizes)
