"""What a tree cost: every number of these trees is worked out by hand beside it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet.agent.tree import TreeRun
from ramet.budget import Prices
from ramet.evaluate.costs import concurrent_children, costs_of, critical_path, side_by_side
from ramet.store import RunDir, read_trees
from ramet.types import Prompt
from tests.agent.scripts import cell, delegate, words
from tests.conftest import in_virtual_time
from tests.evaluate.trees import node, tree

# A root that delegates twice: first to 1 and 2 side by side, then to 3 alone. 2 has a child, 4.
FAMILY = tree(
    node(0, None, turns=[(10, [1, 2]), (20, [3]), (5, [])], time=(0, 10), prompt=100, cached=60, peak=200),
    node(1, 0, depth=1, turns=[(50, [])], time=(1, 4), prompt=30, peak=80),
    node(2, 0, depth=1, turns=[(15, [4]), (5, [])], time=(1, 6), prompt=70, cached=20, peak=90),
    node(3, 0, depth=1, turns=[(7, [])], time=(7, 8), prompt=40, cached=40, peak=47),
    node(4, 2, depth=2, turns=[(35, [])], time=(2, 5), prompt=25, peak=60),
    seconds=10.0,
)


def test_amounts_are_sums_over_all_nodes() -> None:
    costs = costs_of(FAMILY)
    assert costs.generated == 35 + 50 + 20 + 7 + 35
    assert costs.prompt == 100 + 30 + 70 + 40 + 25
    assert costs.cached == 60 + 20 + 40
    assert (costs.peak_window, costs.nodes, costs.depth, costs.seconds) == (200, 5, 2, 10.0)
    assert (costs.delegated, costs.children) == (True, 4)


def test_the_critical_path_goes_through_the_slower_child_of_every_round() -> None:
    # Node 2 with its child is 20 + 35 = 55, longer than node 1 with 50. The root's own turns are 35, round two is 7.
    assert critical_path(FAMILY) == 35 + max(50, 20 + 35) + 7


def test_prompts_on_the_critical_path_count_where_no_cache_held_them() -> None:
    # Read anew: root 40, node 1 30, node 2 50, node 3 0, node 4 25. Through node 2: 55 + 75; through node 1: 50 + 30.
    assert critical_path(FAMILY, prompts=True) == (35 + 40) + (20 + 50 + 35 + 25) + 7


def test_children_of_one_turn_that_waited_for_each_other_add_up() -> None:
    # In one code cell: 1, then 2 after it, and 3 beside both.
    serial = tree(
        node(0, None, turns=[(10, [1, 2, 3])], time=(0, 9)),
        node(1, 0, depth=1, turns=[(30, [])], time=(1, 3)),
        node(2, 0, depth=1, turns=[(40, [])], time=(3, 6)),
        node(3, 0, depth=1, turns=[(60, [])], time=(1, 5)),
    )
    assert critical_path(serial) == 10 + max(30 + 40, 60)
    assert concurrent_children(serial) == 3


def test_tokens_of_calls_that_broke_off_are_on_the_path_too() -> None:
    assert critical_path(tree(node(0, None, turns=[(10, [])], more=6))) == 16


def test_a_share_of_children_ran_beside_a_sibling() -> None:
    # 1 and 2 overlap, 3 came later; 4 has no sibling.
    assert concurrent_children(FAMILY) == 2
    assert costs_of(FAMILY).concurrent == 2 / 4
    touching = tree(
        node(0, None, turns=[(1, [1, 2])]),
        node(1, 0, depth=1, time=(0, 1)),
        node(2, 0, depth=1, time=(1, 2)),
    )
    assert costs_of(touching).concurrent == 0.0


def test_a_lone_root_has_no_share_of_concurrent_children() -> None:
    costs = costs_of(tree(node(0, None, turns=[(10, [])])))
    assert (costs.concurrent, costs.delegated, costs.critical_path) == (None, False, 10)


def test_money_follows_a_price_table() -> None:
    # 265 prompt tokens, 120 of them cached, 147 generated: 145 * 2 + 120 * 0.5 + 147 * 10 dollars a million.
    prices = Prices(prompt=2.0, cached=0.5, generated=10.0)
    assert costs_of(FAMILY, prices=prices).dollars == pytest.approx((145 * 2 + 120 * 0.5 + 147 * 10) / 1e6)
    assert costs_of(FAMILY).dollars is None


def test_trees_side_by_side_add_amounts_and_wait_for_the_longest() -> None:
    short = tree(node(0, None, turns=[(3, [])], prompt=9, cached=2, peak=12), seconds=99.0)
    both = side_by_side([costs_of(FAMILY), costs_of(short)])
    assert (both.generated, both.prompt, both.cached, both.nodes) == (147 + 3, 265 + 9, 120 + 2, 6)
    assert (both.critical_path, both.peak_window, both.depth, both.seconds) == (97, 200, 2, 99.0)
    assert (both.children, both.beside, both.dollars) == (4, 2, None)


def test_money_of_trees_side_by_side_adds_up() -> None:
    prices = Prices(generated=1.0)
    both = side_by_side([costs_of(FAMILY, prices=prices)] * 2)
    assert both.dollars == pytest.approx(2 * 147 / 1e6)


def test_a_tree_read_back_from_its_file_costs_the_same(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "costs")
    run.write([FAMILY])
    (again,) = read_trees(run)
    assert costs_of(again) == costs_of(FAMILY)


# Against what the runtime books while it runs.


def restless(seed: int) -> ramet.ScriptedEngine:
    """Delegates at random and takes its time."""

    def script(prompt: Prompt) -> ramet.Reply:
        dice = random.Random(f"{seed}/{prompt.goal}/{prompt.turn}")
        goals = [f"{prompt.goal}.{i}" for i in range(dice.randint(1, 3))]
        done = dice.random() > 0.7 / (1 + prompt.turn) or prompt.closing
        text = words(dice.randint(1, 30)) + ("\nAnswer: done" if done else delegate(*goals))
        return ramet.Reply(text=text, seconds=dice.choice([0.5, 1.0, 7.0]))

    return ramet.ScriptedEngine(script)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6))
def test_the_critical_path_is_the_one_the_runtime_booked(seed: int) -> None:
    prices = Prices(prompt=1.0, cached=0.5, generated=4.0)
    budget = ramet.Budget(tokens=4000, nodes=40, depth=3, reserve=20, turns=5, prices=prices)

    async def run() -> ramet.Tree:
        return await TreeRun("root", engine=restless(seed), budget=budget).run()

    grown = in_virtual_time(run)
    costs, used = costs_of(grown), grown.usage
    assert costs.critical_path == used.critical_path_tokens
    assert (costs.generated, costs.prompt, costs.peak_window) == (used.tokens, used.prompt_tokens, used.peak_window)
    assert costs.dollars == pytest.approx(used.dollars)
    assert costs.critical_path <= costs.generated
    assert costs.critical_path <= costs.critical_path_prompts <= costs.generated + costs.prompt


@pytest.mark.anyio
async def test_children_that_a_cell_awaits_one_after_the_other_are_one_chain() -> None:
    def script(prompt: Prompt) -> ramet.Reply:
        if prompt.depth:
            return ramet.Reply(text=words(20) + "\n" + cell("finish('x')"), seconds=0.02)
        if prompt.turn:
            return ramet.Reply(text=cell("finish('y')"))
        return ramet.Reply(text=cell("a = await delegate('one')", "b = await delegate('two ' + a)"))

    grown = await ramet.run("root", engine=ramet.ScriptedEngine(script), dialect="python")
    assert len(grown.nodes) == 3
    assert critical_path(grown) == grown.usage.critical_path_tokens == grown.usage.tokens
    assert costs_of(grown).concurrent == 0.0
