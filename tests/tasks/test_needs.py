"""Oracles that ask for tokens: how much each part needs, and that asking never does harm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.budget import Budget
from ramet.interfaces import Ask, Move, View
from ramet.tasks.codes import Codes
from ramet.tasks.needs import A_REQUEST, Asking, Need, ample, bounded, needs_of, round_up
from ramet.tasks.oracle import Direct
from ramet.tasks.play import demonstrate
from ramet.tasks.registry import load_taskset
from ramet.types import Node, Refusal, Stop, Task, Tree, Turn, Usage

BUDGET = Budget(tokens=1000, reserve=20)


def node(index: int, parent: int | None, tokens: int, *, children: Sequence[int] = (), refused: int = 0) -> Node:
    refusals = [Refusal(goal="g", reason="r", kind="k")] * refused
    return Node(
        index=index,
        parent=parent,
        depth=0 if parent is None else 1,
        path=(),
        goal=f"goal {index}",
        grant=1,
        usage=Usage(tokens=tokens),
        turns=[
            Turn(tokens=tokens, finish="stop", started_s=0, sampled_s=0, children=list(children), refusals=refusals)
        ],
    )


def test_a_need_is_what_a_node_and_its_clones_cost_with_reserves_and_a_margin() -> None:
    tree = Tree(
        id="t",
        budget=BUDGET,
        task=Task(question="q"),
        nodes=[node(0, None, 100, children=[1, 2], refused=1), node(1, 0, 40), node(2, 0, 2)],
    )
    needs = needs_of(tree, BUDGET)
    assert needs[1, "goal 1"] == Need(own=60, total=90)  # (40 + 20) * 1.5
    assert needs[1, "goal 2"] == Need(own=22, total=40)  # 33, but the smallest grant is twice the reserve
    own = 100 + 20 + 3 * A_REQUEST  # 156
    assert needs[0, "goal 0"] == Need(own=own, total=360)  # (156 + 60 + 22) * 1.5 = 357


def test_a_node_of_several_turns_has_the_smallest_grant_left_before_the_last_of_them() -> None:
    several = node(0, None, 4)
    several.turns = [Turn(tokens=tokens, finish="stop", started_s=0, sampled_s=0) for tokens in (2, 1, 1)]
    tree = Tree(id="t", budget=BUDGET, task=Task(question="q"), nodes=[several])
    assert needs_of(tree, BUDGET)[0, "goal 0"] == Need(own=24, total=50)  # 2 + 1 + 2 * 20 = 43, more than 24 * 1.5


@pytest.mark.parametrize(("tokens", "rounded"), [(1, 10), (612, 620), (999, 1000), (6120, 6200), (61_200, 62_000)])
def test_numbers_are_rounded_up(tokens: int, rounded: int) -> None:
    assert round_up(tokens) == rounded


@given(st.lists(st.integers(1, 10**6), min_size=1), st.integers(-100, 10**6))
def test_requests_together_stay_within_what_is_left(wanted: list[int], left: int) -> None:
    asked = bounded(wanted, left)
    assert all(1 <= tokens <= want for tokens, want in zip(asked, wanted, strict=True))
    assert sum(asked) <= max(0, left) + len(wanted)  # each asks for 1 at least


def test_a_request_asks_for_its_need_or_for_its_share_of_what_is_left() -> None:
    class Two:
        def move(self, view: View) -> Move:
            return Move(asks=(Ask(goal="a"), Ask(goal="b"), Ask(goal="new")))

    needs = {(0, "q"): Need(own=100, total=0), (1, "a"): Need(own=0, total=600), (1, "b"): Need(own=0, total=160)}
    oracle = Asking(Two(), needs, budget=BUDGET)
    assert [ask.tokens for ask in oracle.move(View(goal="q", depth=0)).asks] == [600, 160, 40]
    assert [ask.tokens for ask in oracle.move(View(goal="q", depth=0, tokens=500)).asks] == [300, 80, 20]
    direct = Asking(Direct("7"), needs, budget=BUDGET)
    assert direct.move(View(goal="q", depth=0)) == Move(answer="7")


def test_an_ample_budget_changes_only_tokens() -> None:
    assert ample(Budget(tokens=1000)) == Budget(tokens=64_000, reserve=25)


# Played.


def show(name: str, index: int, *, asking: bool, dialect: str = "tools", share: float = 1.0) -> Tree:
    taskset = load_taskset(name, ask_tokens=asking)
    task = taskset.task("train", index)
    budget = taskset.budget(task)
    budget = replace(budget, tokens=int(share * budget.tokens), reserve=budget.answer_tokens)
    return anyio.run(partial(demonstrate, taskset, task, dialect=dialect, seed=index, budget=budget))


def costs(tree: Tree) -> list[int]:
    """Tokens that each node and its clones used."""
    totals = [node.usage.tokens for node in tree.nodes]
    for node in reversed(tree.nodes):
        if node.parent is not None:
            totals[node.parent] += totals[node.index]
    return totals


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's, with mean ranks for ties."""

    def ranks(values: Sequence[float]) -> list[float]:
        return [sum(a < b for a in values) + sum(a == b for a in values) / 2 for b in values]

    first, second = ranks(one), ranks(other)
    mean = sum(first) / len(first)
    total = sum((a - mean) * (b - mean) for a, b in zip(first, second, strict=True))
    spread = sum((a - mean) ** 2 for a in first) * sum((b - mean) ** 2 for b in second)
    return total / spread**0.5


def test_rank_correlation_of_a_known_example() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(0.6)


@pytest.mark.parametrize("dialect", ["tools", "terse"])
@pytest.mark.parametrize("name", ["arithmetic", "codes", "countdown"])
def test_grants_follow_the_size_of_the_parts(name: str, dialect: str) -> None:
    trees = [show(name, index, asking=True, dialect=dialect) for index in range(20)]
    pairs = [
        (node.grant, cost) for tree in trees for node, cost in zip(tree.nodes, costs(tree), strict=True) if node.depth
    ]
    assert rank_correlation(*zip(*pairs, strict=True)) > 0.8  # type: ignore[arg-type]
    assert all(node.stop is Stop.ANSWERED for tree in trees for node in tree.nodes)


@pytest.mark.parametrize("dialect", ["tools", "terse"])
def test_clones_that_take_several_short_turns_are_granted_enough_to_answer(dialect: str) -> None:
    for index in range(3):
        tree = show("search", index, asking=True, dialect=dialect)
        assert [node.stop for node in tree.nodes] == [Stop.ANSWERED] * len(tree.nodes)


def test_a_larger_pattern_gets_more_tokens_than_a_smaller_one() -> None:
    taskset = Codes(ask_tokens=True)
    grants: dict[int, set[int]] = {}
    for index in range(20):
        tree = anyio.run(partial(demonstrate, taskset, taskset.task("train", index), dialect="terse", seed=index))
        for child in tree.nodes[1:]:
            if not any(other.parent == child.index for other in tree.nodes):  # it went through its codes itself
                grants.setdefault(child.goal.count("?"), set()).add(child.grant)
    sizes = sorted(grants)
    assert len(sizes) > 2
    assert all(max(grants[a]) < min(grants[b]) for a, b in pairwise(sizes[1:]))


@pytest.mark.parametrize("share", [1.0, 0.2])
@pytest.mark.parametrize(
    "name", ["arithmetic", "codes", "countdown", "number_search", "multihop", "aggregate", "craft"]
)
def test_with_asking_at_least_as_many_trees_succeed_within_the_same_budget(name: str, share: float) -> None:
    right = {
        asking: sum(
            tree.root.verdict is not None and tree.root.verdict.is_right
            for index in range(6)
            for tree in [show(name, index, asking=asking, share=share)]
        )
        for asking in (False, True)
    }
    assert right[True] >= right[False]


@pytest.mark.parametrize(
    ("dialect", "form"), [("tools", '"tokens": ['), ("python", ", tokens="), ("terse", "(last digit) #")]
)
def test_requests_name_tokens_in_every_dialect(dialect: str, form: str) -> None:
    written = {
        asking: "".join(
            piece.text for piece in show("codes", 1, asking=asking, dialect=dialect).root.pieces if piece.sampled
        )
        for asking in (False, True)
    }
    assert form in written[True]
    assert form not in written[False]
