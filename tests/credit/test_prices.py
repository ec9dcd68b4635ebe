"""Prices of clones and tokens: what is counted, and who pays."""

from __future__ import annotations

from functools import partial

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramet
from ramet.credit import Group
from ramet.credit.prices import amount_due, node_prices, num_descendants, num_prompt_tokens, subtree_sums
from ramet.credit.rao import Rao
from ramet.credit.selfcest import Selfcest
from ramet.engine.scripted import WordTokenizer
from ramet.types import Prompt
from tests.agent.scripts import delegate
from tests.credit.trees import batches, column, group, plant

PARENTS = [None, 0, 1, 0]
LOST = plant("lost", [0.0])


def six(values: list[float]) -> list[float]:
    return [round(value, 6) for value in values]


# What is counted.


def test_a_node_pays_for_itself_and_for_all_below_it():
    parents = {0: None, 1: 0, 2: 1, 3: 0}
    assert subtree_sums({0: 5, 1: 3, 2: 2, 3: 7}, parents) == {0: 17, 1: 5, 2: 2, 3: 7}
    assert num_descendants(parents) == {0: 3, 1: 1, 2: 0, 3: 0}


def test_clones_generated_tokens_and_prompt_tokens_have_a_price_each():
    tree = plant("a", [1.0] * 4, PARENTS, tokens=[100, 50, 30, 20], prompts=[400, 300, 200, 100])
    clones = node_prices(tree, clone_cost=0.1, token_cost=0.0, prompt_cost=0.0)
    assert six(list(clones.values())) == [0.3, 0.1, 0.0, 0.0]
    tokens = node_prices(tree, clone_cost=0.0, token_cost=1.0, prompt_cost=0.0)
    assert six(list(tokens.values())) == [0.2, 0.08, 0.03, 0.02]  # 200, 80, 30 and 20 of 1,000
    prompts = node_prices(tree, clone_cost=0.0, token_cost=0.0, prompt_cost=0.5)
    assert six(list(prompts.values())) == [0.5, 0.25, 0.1, 0.05]  # 1,000, 500, 200 and 100 of 1,000, at a half
    together = node_prices(tree, clone_cost=0.1, token_cost=1.0, prompt_cost=0.5)
    assert six(list(together.values())) == [1.0, 0.43, 0.13, 0.07]


def test_without_costs_everything_is_free():
    tree = plant("a", [1.0] * 4, PARENTS, prompts=[9] * 4)
    assert node_prices(tree, clone_cost=0.0, token_cost=0.0, prompt_cost=0.0) == dict.fromkeys(range(4), 0.0)


def test_prompt_tokens_of_a_tree_without_ids_are_the_window_minus_what_was_generated():
    tree = plant("a", [1.0], tokens=[40])
    tree.root.usage.peak_window = 340
    assert num_prompt_tokens(tree.root) == 300


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_every_prompt_token_counts_once_however_often_it_is_read(calls: int):
    """Of a tree that really ran: all ids of the nodes are those they were given and those they sampled."""

    def script(prompt: Prompt) -> str:
        if prompt.depth or prompt.turn == calls - 1:
            return "Answer: fine"
        return delegate(f"part {prompt.turn}")

    engine = ramet.ScriptedEngine(script, renderer=ramet.TokenRenderer(WordTokenizer()))
    tree = anyio.run(partial(ramet.run, "q", engine=engine))
    assert (len(tree.nodes), tree.root.usage.calls) == (calls, calls)
    for node in tree.nodes:
        assert num_prompt_tokens(node) + sum(node.mask) == len(node.token_ids)
        once = node.usage.calls == 1
        assert (num_prompt_tokens(node) == node.usage.prompt_tokens) is once


# Who pays: rao.


def test_only_nodes_that_succeeded_pay():
    tree = plant("a", [1.0, 0.0, 1.0, 0.5], PARENTS)  # 3, 1, 0 and 0 clones below
    everyone = Rao(clone_cost=0.1).credit([group(tree, LOST)])
    assert six(column(everyone, "reward")) == [0.7, -0.1, 1.0, 0.5, 0.0]
    winners = Rao(clone_cost=0.1, charge="success").credit([group(tree, LOST)])
    assert six(column(winners, "reward")) == [0.7, 0.0, 1.0, 0.5, 0.0]


def test_a_failing_tree_is_not_taught_to_be_small():
    large, small = plant("large", [0.0, 0.0, 0.0, 0.0], PARENTS), plant("small", [0.0])
    everyone = Rao(clone_cost=0.1).credit([group(large, small)])
    assert six([everyone[name, 0].advantage for name in ("large", "small")]) == [-0.3, 0.3]
    winners = Rao(clone_cost=0.1, charge="success").credit([group(large, small)])
    assert column(winners, "advantage") == [0.0] * 5
    assert winners.summary.without_signal


def test_a_successful_tree_still_is():
    large, small = plant("large", [1.0] * 4, PARENTS), plant("small", [1.0])
    credits = Rao(clone_cost=0.1, charge="success").credit([group(large, small)])
    assert six([credits[name, 0].advantage for name in ("large", "small")]) == [-0.3, 0.3]


def test_a_partial_success_pays_its_share_of_the_price():
    tree = plant("a", [0.5, 0.25], [None, 0], tokens=[300, 100])
    rewards = column(Rao(token_cost=1.0, charge="success").credit([group(tree, LOST)]), "reward")
    assert six(rewards) == [0.3, 0.225, 0.0]  # 0.5 * (1 - 0.4) and 0.25 * (1 - 0.1)


def test_the_bonus_is_not_charged():
    tree = plant("a", [1.0, 1.0], [None, 0])
    failed = plant("b", [0.0, 1.0], [None, 0])
    rule = Rao(bonus=0.4, clone_cost=0.1, charge="success")
    assert six(column(rule.credit([group(tree, failed)]), "reward")) == [1.3, 1.0, 0.4, 1.0]


def test_with_sparse_success_nodes_pay_if_their_root_succeeded():
    tree = plant("a", [1.0, None], [None, 0], tokens=[200, 100])
    failed = plant("b", [0.0, None], [None, 0], tokens=[200, 100])
    rule = Rao(success="sparse", token_cost=1.0, charge="success")
    assert six(column(rule.credit([group(tree, failed)]), "reward")) == [0.7, 0.9, 0.0, 0.0]


def test_a_success_is_never_worth_less_than_a_failure():
    assert amount_due(0.3, 0.5, "all") == 0.3
    assert amount_due(0.3, 0.5, "success") == 0.15
    assert amount_due(7.0, 1.0, "success") == 1.0
    huge = plant("a", [1.0] * 4, PARENTS)
    rewards = column(Rao(clone_cost=0.5, charge="success").credit([group(huge, LOST)]), "reward")
    assert rewards == [0.0, 0.5, 1.0, 1.0, 0.0]


def test_prompt_tokens_are_paid_for_like_others():
    tree = plant("a", [1.0, 0.0], [None, 0], tokens=[100, 100], prompts=[600, 400])
    rule = Rao(token_cost=1.0, prompt_cost=0.2)
    assert six(column(rule.credit([group(tree, plant("b", [0.0], tokens=[0]))]), "reward")) == [0.6, -0.18, 0.0]


@given(batches, st.sampled_from([0.0, 0.05, 3.0]))
def test_charged_for_success_no_reward_is_below_zero_or_above_the_success(batch: list[Group], cost: float):
    credits = Rao(clone_cost=cost, token_cost=cost, charge="success").credit(batch)
    for one in batch:
        for tree in one.trees:
            for node in tree.nodes:
                assert node.verdict is not None
                assert 0.0 <= credits[tree.id, node.index].reward <= node.verdict.score


@given(batches)
def test_where_all_succeed_it_does_not_matter_who_is_charged(batch: list[Group]):
    for one in batch:
        for tree in one.trees:
            for node in tree.nodes:
                node.verdict = ramet.Verdict(score=1.0, how="exact")
    everyone, winners = (Rao(clone_cost=0.03, charge=charge).credit(batch) for charge in ("all", "success"))
    assert everyone == winners


# Who pays: selfcest.


def test_all_costs_of_a_tree_scale_its_success():
    words = [delegate("x", "y") * 4, "Answer: 1", "Answer: 2"]
    right, wrong = (
        plant(name, [score, 1.0, 1.0], [None, 0, 0], tokens=[640, 1024, 600], words=words, prompts=[100, 100, 300])
        for name, score in (("a", 1.0), ("b", 0.0))
    )
    # Lengths cost 0.118041 and 0.126424, two calls beyond the free ones 0.2: 0.444465 together.
    published = column(Selfcest().credit([group(right, wrong)]), "reward")
    assert six(published) == [0.555535, 0.555535, 0.555535, -0.444465, -0.444465, -0.444465]
    charged = column(Selfcest(charge="success").credit([group(right, wrong)]), "reward")
    assert six(charged) == [0.555535, 0.555535, 0.555535, 0.0, 0.0, 0.0]
    # Two clones at 0.01, 2,264 generated tokens at 0.05 and 500 prompt tokens at 0.02 per 1,000: 0.1432 more.
    more = Selfcest(charge="success", clone_cost=0.01, token_cost=0.05, prompt_cost=0.02)
    assert six(column(more.credit([group(right, wrong)]), "reward"))[::3] == [0.412335, 0.0]


def test_a_partial_score_pays_its_share_and_repairs_cost_always():
    half = plant("a", [0.5], tokens=[640], repairs=1)
    wrong = plant("b", [0.0], tokens=[640], repairs=1)
    rewards = column(Selfcest(charge="success").credit([group(half, wrong)]), "reward")
    assert six(rewards) == [0.39098, -0.05]  # 0.5 * (1 - 0.118041) - 0.05
