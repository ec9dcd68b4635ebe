"""The cost of a tree. Expected numbers are worked out by hand."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.budget import Prices
from ramet.evaluate.costs import add_costs, count_parallel_children, critical_path, tree_costs
from ramet.store import RunDir, read_trees
from ramet.types import Prompt
from tests.agent.scripts import cell, delegate, words
from tests.conftest import in_virtual_time
from tests.evaluate.trees import node, tree

# A root that delegates twice: first to 1 and 2 in parallel, then to 3. 2 has a child, 4.
FAMILY = tree(
    node(0, None, turns=[(10, [1, 2]), (20, [3]), (5, [])], time=(0, 10), prompt=100, cached=60, peak=200),
    node(1, 0, depth=1, turns=[(50, [])], time=(1, 4), prompt=30, peak=80),
    node(2, 0, depth=1, turns=[(15, [4]), (5, [])], time=(1, 6), prompt=70, cached=20, peak=90),
    node(3, 0, depth=1, turns=[(7, [])], time=(7, 8), prompt=40, cached=40, peak=47),
    node(4, 2, depth=2, turns=[(35, [])], time=(2, 5), prompt=25, peak=60),
    seconds=10.0,
)


def test_amounts_are_sums_over_all_nodes() -> None:
    costs = tree_costs(FAMILY)
    assert costs.generated == 35 + 50 + 20 + 7 + 35
    assert costs.prompt == 100 + 30 + 70 + 40 + 25
    assert costs.cached == 60 + 20 + 40
    assert (costs.peak_window, costs.nodes, costs.depth, costs.seconds) == (200, 5, 2, 10.0)
    assert (costs.delegated, costs.children) == (True, 4)


def test_the_critical_path_takes_the_longest_child_of_every_turn() -> None:
    # Node 2 with its child is 20 + 35 = 55, longer than node 1 with 50. The root's own turns are 35, round two is 7.
    assert critical_path(FAMILY).tokens == 35 + max(50, 20 + 35) + 7
    assert critical_path(FAMILY).nodes == {0, 2, 3, 4}


def test_uncached_prompt_tokens_can_count_on_the_critical_path() -> None:
    # Uncached: root 40, node 1 30, node 2 50, node 3 0, node 4 25. Through node 2: 55 + 75; through node 1: 50 + 30.
    assert critical_path(FAMILY, prompts=True).tokens == (35 + 40) + (20 + 50 + 35 + 25) + 7


def test_children_of_one_turn_that_ran_one_after_the_other_add_up() -> None:
    # In one code cell: 1, then 2, and 3 in parallel to both.
    serial = tree(
        node(0, None, turns=[(10, [1, 2, 3])], time=(0, 9)),
        node(1, 0, depth=1, turns=[(30, [])], time=(1, 3)),
        node(2, 0, depth=1, turns=[(40, [])], time=(3, 6)),
        node(3, 0, depth=1, turns=[(60, [])], time=(1, 5)),
    )
    assert critical_path(serial).tokens == 10 + max(30 + 40, 60)
    assert critical_path(serial).nodes == {0, 1, 2}
    assert count_parallel_children(serial) == 3


def test_tokens_of_cancelled_calls_are_on_the_critical_path() -> None:
    assert critical_path(tree(node(0, None, turns=[(10, [])], more=6))).tokens == 16


def test_children_that_overlap_with_a_sibling_ran_in_parallel() -> None:
    # 1 and 2 overlap, 3 came later; 4 has no sibling.
    assert count_parallel_children(FAMILY) == 2
    assert tree_costs(FAMILY).concurrent == 2 / 4
    touching = tree(
        node(0, None, turns=[(1, [1, 2])]),
        node(1, 0, depth=1, time=(0, 1)),
        node(2, 0, depth=1, time=(1, 2)),
    )
    assert tree_costs(touching).concurrent == 0.0


def test_a_root_without_children_has_no_share_of_parallel_children() -> None:
    costs = tree_costs(tree(node(0, None, turns=[(10, [])])))
    assert (costs.concurrent, costs.delegated, costs.critical_path) == (None, False, 10)


def test_dollars_follow_the_price_table() -> None:
    # 265 prompt tokens, 120 of them cached, 147 generated: 145 * 2 + 120 * 0.5 + 147 * 10 dollars a million.
    prices = Prices(prompt=2.0, cached=0.5, generated=10.0)
    assert tree_costs(FAMILY, prices=prices).dollars == pytest.approx((145 * 2 + 120 * 0.5 + 147 * 10) / 1e6)
    assert tree_costs(FAMILY).dollars is None


def test_parallel_trees_add_amounts_and_take_the_longest_wait() -> None:
    short = tree(node(0, None, turns=[(3, [])], prompt=9, cached=2, peak=12), seconds=99.0)
    both = add_costs([tree_costs(FAMILY), tree_costs(short)])
    assert (both.generated, both.prompt, both.cached, both.nodes) == (147 + 3, 265 + 9, 120 + 2, 6)
    assert (both.critical_path, both.peak_window, both.depth, both.seconds) == (97, 200, 2, 99.0)
    assert (both.children, both.parallel, both.dollars) == (4, 2, None)


def test_dollars_of_parallel_trees_add_up() -> None:
    prices = Prices(generated=1.0)
    both = add_costs([tree_costs(FAMILY, prices=prices)] * 2)
    assert both.dollars == pytest.approx(2 * 147 / 1e6)


def test_a_stored_tree_costs_the_same(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "costs")
    run.write([FAMILY])
    (again,) = read_trees(run)
    assert tree_costs(again) == tree_costs(FAMILY)


# Compared with the usage that the runtime counts.


def restless(seed: int) -> ramet.ScriptedEngine:
    """Delegates at random, with delays."""

    def script(prompt: Prompt) -> ramet.Reply:
        dice = random.Random(f"{seed}/{prompt.goal}/{prompt.turn}")
        goals = [f"{prompt.goal}.{i}" for i in range(dice.randint(1, 3))]
        done = dice.random() > 0.7 / (1 + prompt.turn) or prompt.closing
        text = words(dice.randint(1, 30)) + ("\nAnswer: done" if done else delegate(*goals))
        return ramet.Reply(text=text, seconds=dice.choice([0.5, 1.0, 7.0]))

    return ramet.ScriptedEngine(script)


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_the_critical_path_equals_the_one_counted_by_the_runtime(seed: int) -> None:
    prices = Prices(prompt=1.0, cached=0.5, generated=4.0)
    budget = ramet.Budget(tokens=4000, nodes=40, depth=3, reserve=20, turns=5, prices=prices)

    async def run() -> ramet.Tree:
        return await TreeRun("root", TreeOptions(engine=restless(seed), budget=budget)).run()

    grown = in_virtual_time(run)
    costs, used = tree_costs(grown), grown.usage
    assert costs.critical_path == used.critical_path_tokens
    assert (costs.generated, costs.prompt, costs.peak_window) == (used.tokens, used.prompt_tokens, used.peak_window)
    assert costs.dollars == pytest.approx(used.dollars)
    assert costs.critical_path <= costs.generated
    assert costs.critical_path <= costs.critical_path_prompts <= costs.generated + costs.prompt


@pytest.mark.anyio
async def test_children_awaited_one_after_the_other_in_a_cell_are_one_chain() -> None:
    def script(prompt: Prompt) -> ramet.Reply:
        if prompt.depth:
            return ramet.Reply(text=words(20) + "\n" + cell("finish('x')"), seconds=0.02)
        if prompt.turn:
            return ramet.Reply(text=cell("finish('y')"))
        return ramet.Reply(text=cell("a = await delegate('one')", "b = await delegate('two ' + a)"))

    grown = await ramet.run("root", engine=ramet.ScriptedEngine(script), dialect="python")
    assert len(grown.nodes) == 3
    assert critical_path(grown).tokens == grown.usage.critical_path_tokens == grown.usage.tokens
    assert tree_costs(grown).concurrent == 0.0
