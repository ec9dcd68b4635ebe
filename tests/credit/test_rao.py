"""Recursive Agent Optimization: the paper's equations by hand, and credit of children that ran in parallel."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import product

import pytest
from hypothesis import given

import ramet
from ramet.agent.options import TreeOptions
from ramet.credit import Group, group_trees
from ramet.credit.average import leave_one_out
from ramet.credit.prices import num_descendants
from ramet.credit.rao import Rao, depth_weights, local_rewards
from ramet.errors import ConfigError
from ramet.tasks.arithmetic import Arithmetic
from ramet.tasks.play import play
from ramet.types import Piece, Prompt, Task, Tree
from tests.agent.scripts import delegate
from tests.conftest import in_virtual_time
from tests.credit.trees import batches, column, group, plant, singles

FORKED = group(  # two trees whose roots had two clones and one
    plant("a", [1.0, 0.0, 1.0], [None, 0, 0]),
    plant("b", [0.0, 1.0], [None, 0]),
)


def six(values: list[float]) -> list[float]:
    return [round(value, 6) for value in values]


# The paper's equations.


def test_a_reward_is_own_success_plus_the_mean_success_of_the_children():
    assert local_rewards({0: 1.0, 1: 0.0, 2: 1.0}, {0: None, 1: 0, 2: 0}, bonus=0.4) == {0: 1.2, 1: 0.0, 2: 1.0}
    assert local_rewards({0: 1.0, 1: 1.0, 2: 0.0}, {0: None, 1: 0, 2: 0}, bonus=0.5) == {0: 1.25, 1: 1.0, 2: 0.0}


def test_more_children_do_not_earn_more():
    few = local_rewards({0: 0.0, 1: 1.0}, {0: None, 1: 0}, bonus=0.4)
    many = local_rewards(dict.fromkeys(range(6), 1.0) | {0: 0.0}, {0: None} | dict.fromkeys(range(1, 6), 0), bonus=0.4)
    assert few[0] == many[0] == 0.4


def test_children_without_a_verdict_of_their_own_are_not_part_of_the_mean():
    parents = {0: None, 1: 0, 2: 0, 3: 0}
    successes = {0: 1.0, 1: 1.0, 2: 0.0, 3: 1.0}
    assert local_rewards(successes, parents, bonus=0.4, inherited={1})[0] == 1.2  # of 0 and 1
    assert local_rewards(successes, parents, bonus=0.4, inherited={1, 3})[0] == 1.0  # of 0
    assert local_rewards(successes, parents, bonus=0.4, inherited={1, 2, 3})[0] == 1.0  # no bonus


def test_bonuses_do_not_add_up_over_levels():
    chain = local_rewards({0: 0.0, 1: 0.0, 2: 1.0}, {0: None, 1: 0, 2: 1}, bonus=0.5)
    assert chain == {0: 0.0, 1: 0.5, 2: 1.0}


def test_the_baseline_is_the_mean_of_the_other_roots():
    assert six(leave_one_out([1.0, 0.0, 0.5, 1.0])) == [0.5, 0.833333, 0.666667, 0.5]
    credits = Rao().credit([singles(1.0, 0.0, 0.5, 1.0)])
    assert six(column(credits, "baseline")) == [0.5, 0.833333, 0.666667, 0.5]
    assert six(column(credits, "advantage")) == [0.5, -0.833333, -0.166667, 0.5]


def test_depth_weights_of_the_paper_s_example():
    weights = depth_weights([0] * 2 + [1] * 4 + [2] * 8)
    assert six(list(weights.values())) == [2.333333, 1.166667, 0.583333]


def test_the_paper_s_example_as_a_batch_of_two_trees():
    parents = [None, 0, 0, 1, 1, 2, 2]
    credits = Rao().credit([group(plant("a", [1.0] * 7, parents), plant("b", [0.0] * 7, parents))])
    weights = column(credits, "weight")
    assert six(weights[:7]) == [2.333333, 1.166667, 1.166667, 0.583333, 0.583333, 0.583333, 0.583333]
    assert round(sum(weights), 6) == 14.0


def test_every_number_of_a_small_group():
    credits = Rao(bonus=0.4).credit([FORKED])
    assert six(column(credits, "reward")) == [1.2, 0.0, 1.0, 0.4, 1.0]
    assert six(column(credits, "baseline")) == [0.4, 0.4, 0.4, 1.2, 1.2]
    assert six(column(credits, "advantage")) == [0.8, -0.4, 0.6, -0.8, -0.2]
    assert six(column(credits, "weight")) == [1.25, 0.833333, 0.833333, 1.25, 0.833333]


# The settings.


def test_without_a_bonus_children_do_not_enter_their_parent_s_reward():
    assert six(column(Rao().credit([FORKED]), "reward")) == [1.0, 0.0, 1.0, 0.0, 1.0]


def test_sparse_gives_every_node_the_root_s_success():
    credits = Rao(success="sparse").credit([FORKED])
    assert column(credits, "reward") == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert column(credits, "advantage") == [1.0, 1.0, 1.0, -1.0, -1.0]


def test_a_mean_baseline_includes_the_tree_itself():
    credits = Rao(bonus=0.4, baseline="mean").credit([FORKED])
    assert six(column(credits, "baseline")) == [0.8] * 5
    assert six(column(credits, "advantage")) == [0.4, -0.8, 0.2, -0.4, 0.2]


def test_without_a_baseline_the_advantage_is_the_reward_even_in_a_group_of_one():
    credits = Rao(baseline="none").credit([singles(1.0)])
    assert column(credits, "advantage") == [1.0]


def test_without_depth_weights_all_weights_are_one():
    assert column(Rao(depth_weights=False).credit([FORKED]), "weight") == [1.0] * 5


# Properties of the equations.


@given(batches)
def test_every_depth_has_the_same_total_weight_and_the_weights_sum_to_the_number_of_nodes(batch: list[Group]):
    credits = Rao().credit(batch)
    totals: Counter[int] = Counter()
    num_sampled = 0
    for one in batch:
        for tree in one.trees:
            for node in tree.nodes:
                totals[node.depth] += credits[tree.id, node.index].weight  # pyright: ignore[reportArgumentType]
                num_sampled += node.has_sampled
    assert sum(totals.values()) == pytest.approx(num_sampled)
    assert list(totals.values()) == pytest.approx([num_sampled / len(totals)] * len(totals))


def test_weights_count_only_nodes_that_enter_the_update():
    oak = plant("oak", [1.0, 0.0, 1.0], [None, 0, 0])
    oak.nodes[1].pieces = [Piece(sampled=False, text="a prompt")]
    credits = Rao().credit([group(oak, plant("elm", [0.0, 1.0], [None, 0]))])
    assert column(credits, "weight") == [1.0, 0.0, 1.0, 1.0, 1.0]


def test_a_child_that_sampled_nothing_still_counts_among_its_parent_s_children():
    oak = plant("oak", [1.0, 0.0, 1.0], [None, 0, 0])
    oak.nodes[1].pieces = []
    assert Rao(bonus=0.4).credit([group(oak, plant("elm", [0.0]))])["oak", 0].reward == 1.2


@given(batches)
def test_all_nodes_of_a_tree_share_one_baseline_made_of_other_trees(batch: list[Group]):
    credits = Rao(bonus=0.4).credit(batch)
    for one in batch:
        roots = {tree.id: credits[tree.id, 0].reward for tree in one.trees}
        for tree in one.trees:
            others = [reward for name, reward in roots.items() if name != tree.id]
            for node in tree.nodes:
                credit = credits[tree.id, node.index]
                assert credit.baseline == pytest.approx(sum(others) / len(others))
                assert credit.advantage == credit.reward - credit.baseline


def test_the_leave_one_out_baseline_leaves_the_gradient_unbiased_and_the_mean_shrinks_it():
    """All outcomes of three one-node trees: succeed with chance p; the gradient of p's logit is E[A (outcome - p)]."""
    p = 0.3

    def gradient(rule: Rao) -> float:
        total = 0.0
        for outcome in product([0.0, 1.0], repeat=3):
            chance = p ** sum(outcome) * (1 - p) ** (3 - sum(outcome))
            advantages = column(rule.credit([singles(*outcome)]), "advantage")
            total += chance * sum(a * (won - p) for a, won in zip(advantages, outcome, strict=True)) / 3
        return total

    truth = p * (1 - p)
    assert gradient(Rao(baseline="none")) == pytest.approx(truth)
    assert gradient(Rao()) == pytest.approx(truth)
    assert gradient(Rao(baseline="mean")) == pytest.approx(truth * 2 / 3)


# Children that really run in parallel.


@pytest.mark.parametrize(
    ("first", "second", "reward"),
    [
        (("6", 1.0), ("wrong", 2.0), 1.2),
        (("wrong", 1.0), ("9", 2.0), 1.2),
        (("6", 9.0), ("9", 1.0), 1.4),
        (("wrong", 9.0), ("9", 1.0), 1.2),
        (("wrong", 1.0), ("wrong", 1.0), 1.0),
    ],
)
def test_parallel_children_are_credited_by_id_in_any_order_of_ending(
    first: tuple[str, float], second: tuple[str, float], reward: float
):
    def script(prompt: Prompt) -> str | ramet.Reply:
        if prompt.depth:
            text, seconds = first if "2*3" in prompt.goal else second
            return ramet.Reply(text=f"Answer: {text}", seconds=seconds)
        return delegate("Compute 2*3", "Compute 4+5") if prompt.turn == 0 else "Answer: 15"

    task = Task(id="arithmetic:test/0", question="Compute 2*3+(4+5)", reference=15)
    engine = ramet.ScriptedEngine(script)
    trees = [in_virtual_time(partial(play, Arithmetic(), task, TreeOptions(engine=engine))) for _ in range(2)]
    credits = Rao(bonus=0.4).credit(group_trees(trees))
    for tree in trees:
        assert credits[tree.id, 0].reward == pytest.approx(reward)
        assert credits[tree.id, 1].reward == (first[0] == "6")
        assert credits[tree.id, 2].reward == (second[0] == "9")


def joke_tree(*, right: bool) -> Tree:
    """A root that delegates a goal that has no exact check, and then answers by itself."""

    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return "Answer: A clone walks into itself."
        return delegate("tell me a joke") if prompt.turn == 0 else f"Answer: {15 if right else 'unknown'}"

    task = Task(id="arithmetic:test/0", question="Compute 2*3+(4+5)", reference=15)
    options = TreeOptions(engine=ramet.ScriptedEngine(script))
    return in_virtual_time(partial(play, Arithmetic(), task, options))


def test_a_root_that_delegates_a_joke_earns_no_bonus_for_it():
    trees = [joke_tree(right=True), joke_tree(right=False)]
    assert [[node.verdict.how for node in tree.nodes if node.verdict] for tree in trees] == [["exact", "root"]] * 2
    credits = Rao(bonus=0.4).credit(group_trees(trees))
    assert [credits[trees[0].id, index].reward for index in (0, 1)] == [1.0, 1.0]  # not 1.4
    assert [credits[trees[1].id, index].reward for index in (0, 1)] == [0.0, 0.0]


def test_a_clone_that_inherits_its_verdict_earns_the_root_s_score_and_no_more():
    lazy = plant("a", [1.0, 1.0], [None, 0], inherited={1})
    credits = Rao(bonus=0.4, depth_weights=False).credit([group(lazy, plant("b", [0.0]), plant("c", [0.5]))])
    assert [credits["a", index].advantage for index in (0, 1)] == [0.75, 0.75]


def test_inherited_verdicts_below_a_clone_do_not_count_either():
    deep = plant("a", [1.0, 1.0, 1.0, 0.0], [None, 0, 1, 1], inherited={2})
    rewards = column(Rao(bonus=0.4).credit([group(deep, plant("b", [0.0]))]), "reward")
    assert rewards == [1.4, 1.0, 1.0, 0.0, 0.0]  # node 1: its checked child failed


# Not in the paper: prices, and baselines of nodes with the same goal or at the same depth.


def test_every_clone_below_a_node_costs_its_price():
    assert num_descendants({0: None, 1: 0, 2: 1, 3: 0}) == {0: 3, 1: 1, 2: 0, 3: 0}
    tree = plant("a", [1.0, 1.0, 0.0, 1.0], [None, 0, 1, 0])
    credits = Rao(clone_cost=0.1).credit([group(tree, plant("b", [0.0]))])
    assert six(column(credits, "reward")) == [0.7, 0.9, 0.0, 1.0, 0.0]
    assert six(column(credits, "baseline")) == [0.0, 0.0, 0.0, 0.0, 0.7]
    assert column(Rao(success="sparse", clone_cost=0.1).credit([group(tree, plant("b", [0.0]))]), "reward")[0] == 0.7


def test_a_clone_is_compared_with_clones_of_other_trees_that_had_the_same_goal():
    first = plant("a", [0.0, 1.0, 0.0], [None, 0, 0], goals=["all", "left", "right"])
    second = plant("b", [1.0, 0.5, 1.0], [None, 0, 0], goals=["all", " left\n", "else"])
    third = plant("c", [0.5, 0.0], [None, 0], goals=["all", "left"])
    credits = Rao(baseline="same_goal", depth_weights=False).credit([group(first, second, third)])
    assert six([credits["a", index].baseline for index in range(3)]) == [0.75, 0.25, 0.75]  # left: 0.5 and 0.0
    assert six([credits["b", index].baseline for index in range(3)]) == [
        0.25,
        0.5,
        0.25,
    ]  # else: the roots
    assert six([credits["c", index].baseline for index in range(2)]) == [0.5, 0.75]
    assert credits["a", 1].advantage == 0.75


def test_a_tree_never_affects_its_own_baseline():
    other = plant("b", [1.0, 0.5], [None, 0], goals=["all", "left"])
    for scores in ([1.0, 1.0, 0.0], [0.0, 0.0, 1.0]):
        twice = plant("a", scores, [None, 0, 0], goals=["all", "left", "left"])
        credits = Rao(baseline="same_goal").credit([group(twice, other)])
        assert [credits["a", index].baseline for index in range(3)] == [1.0, 0.5, 0.5]


def test_a_node_is_compared_with_nodes_of_other_trees_at_its_depth():
    first = plant("a", [0.0, 1.0, 0.0], [None, 0, 0])
    second = plant("b", [1.0, 0.5, 1.0, 0.25], [None, 0, 1, 1])
    third = plant("c", [0.5, 0.0], [None, 0])
    credits = Rao(baseline="depth", depth_weights=False).credit([group(first, second, third)])
    # Depth 0: 0, 1, 0.5. Depth 1: 1 and 0; 0.5; 0. Depth 2: only in b, so it is compared with the roots 0 and 0.5.
    assert six([credits["a", index].baseline for index in range(3)]) == [0.75, 0.25, 0.25]
    assert six([credits["b", index].baseline for index in range(4)]) == [0.25, 0.333333, 0.25, 0.25]
    assert six([credits["c", index].baseline for index in range(2)]) == [0.5, 0.5]
    assert six([credits["a", index].advantage for index in range(3)]) == [-0.75, 0.75, -0.25]


def test_a_tree_never_affects_its_own_baseline_by_depth():
    other = plant("b", [1.0, 0.5], [None, 0])
    for scores in ([1.0, 1.0, 0.0], [0.0, 0.0, 1.0]):
        credits = Rao(baseline="depth").credit([group(plant("a", scores, [None, 0, 0]), other)])
        assert [credits["a", index].baseline for index in range(3)] == [1.0, 0.5, 0.5]


def test_the_baseline_by_depth_leaves_equal_rewards_without_an_advantage():
    trees = [plant(name, [0.1] * 4, [None, 0, 0, 1]) for name in "abc"]
    credits = Rao(baseline="depth").credit([group(*trees)])
    assert column(credits, "advantage") == [0.0] * 12
    assert credits.summary.flat == ("sums/1",)


@given(batches)
def test_in_trees_of_one_node_the_baseline_by_depth_is_that_of_the_other_roots(batch: list[Group]):
    roots = [
        group(*(plant(tree.id, [tree.root.verdict.score], task=tree.task.id) for tree in one.trees)) for one in batch
    ]  # pyright: ignore[reportOptionalMemberAccess]
    assert Rao(baseline="depth").credit(roots) == Rao().credit(roots)


def test_the_baseline_by_depth_leaves_the_gradient_of_clones_unbiased():
    """All outcomes of three trees: a root delegates with chance q, its clone is right with chance p."""
    q, p = 0.6, 0.3
    chances = {"none": 1 - q, "wrong": q * (1 - p), "right": q * p}
    total = 0.0
    for outcome in product(chances, repeat=3):
        chance = chances[outcome[0]] * chances[outcome[1]] * chances[outcome[2]]
        trees = [
            plant(f"t{i}", [0.4]) if one == "none" else plant(f"t{i}", [0.4, float(one == "right")], [None, 0])
            for i, one in enumerate(outcome)
        ]
        credits = Rao(baseline="depth").credit([group(*trees)])
        for i, one in enumerate(outcome):
            if one != "none":
                total += chance * credits[f"t{i}", 1].advantage * ((one == "right") - p) / 3
    assert total == pytest.approx(q * p * (1 - p))


def test_goals_of_other_groups_are_not_compared():
    near, far = (
        group(plant(one, [score, score], [None, 0], task=one, goals=["all", "left"]), plant(other, [root], task=one))
        for one, other, score, root in (("a", "b", 1.0, 0.0), ("c", "d", 0.0, 0.5))
    )
    credits = Rao(baseline="same_goal").credit([near, far])
    assert credits["a", 1].baseline == 0.0
    assert credits["c", 1].baseline == 0.5


@pytest.mark.parametrize("name", ["bonus", "clone_cost", "token_cost", "prompt_cost"])
def test_a_cost_or_bonus_below_zero_is_refused(name: str):
    with pytest.raises(ConfigError, match=f"credit.{name} must be 0 or more; got -1"):
        Rao(**{name: -1.0})  # pyright: ignore[reportArgumentType]
