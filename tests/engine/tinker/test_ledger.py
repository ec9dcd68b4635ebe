"""The ledger holds on an engine that neither streams nor cancels, whatever the model, the server and the user do."""

from __future__ import annotations

import contextlib

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.engine.scripted import Reply
from ramet.types import Prompt
from tests.agent.scripts import delegate, words
from tests.agent.test_ledger_holds import BUDGETS, always_delegates, check_goals, check_node, wild_policy
from tests.conftest import in_virtual_time
from tests.engine.tinker.scripted import ScriptedServer


def check_spending(run: TreeRun, server: ScriptedServer) -> None:
    tree, budget, used = run.tree, run.budget, run.tree.usage
    assert server.generated == used.tokens + server.unseen  # reported, and generated for callers that had gone
    assert server.unseen <= used.lost_tokens  # paid for all the same
    if server.chunk is not None:
        assert server.unseen <= server.chunk * server.cancelled  # a chunk at most
    assert server.generated <= used.tokens + used.lost_tokens <= budget.tokens
    assert server.waiting == 0
    assert run.ledger.open == 0
    assert run.ledger.tokens + used.tokens + used.lost_tokens == budget.tokens
    assert run.ledger.nodes + len(tree.nodes) == budget.nodes
    if budget.path_tokens is not None:
        assert used.critical_path_tokens <= budget.path_tokens
    if budget.seconds is not None:
        assert tree.seconds <= budget.seconds + 1e-6
    for node in tree.nodes:
        check_node(node, budget)
        for piece in node.pieces:
            assert not piece.sampled or piece.policy_version == 7
            assert not piece.sampled or len(piece.logprobs) == len(piece.token_ids)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    budget=BUDGETS,
    chunk=st.sampled_from([None, 1, 7, 64]),
    cancel_after=st.sampled_from([None, None, 40.0, 2.0, 0.3]),
)
def test_no_policy_fault_deadline_or_cancellation_overspends(
    seed: int, budget: ramet.Budget, chunk: int | None, cancel_after: float | None
):
    server = ScriptedServer(wild_policy(seed), chunk=chunk)
    try:
        run = TreeRun("root", TreeOptions(engine=server, budget=budget))
    except ramet.ConfigError:  # the question does not fit this budget
        return

    async def work() -> None:
        with anyio.move_on_after(float("inf") if cancel_after is None else cancel_after):
            with contextlib.suppress(ramet.EngineError):
                await run.run()

    in_virtual_time(work)
    check_spending(run, server)
    check_goals(run.tree)


def test_the_adversary_that_always_delegates_stays_within_2000_tokens():
    server = ScriptedServer(always_delegates(4))
    budget = ramet.Budget(tokens=2000, nodes=1000, depth=3, turns=5, children=4)
    run = TreeRun("root", TreeOptions(engine=server, budget=budget))
    tree = in_virtual_time(run.run)
    assert len(tree.nodes) > 5
    assert server.generated == tree.usage.tokens <= 2000
    check_spending(run, server)


@pytest.mark.parametrize(("chunk", "seen", "generated"), [(16, 48, 64), (None, 0, 101)])
def test_a_cancelled_sample_costs_a_chunk_beyond_what_was_seen(chunk: int | None, seen: int, generated: int):
    """100 words and an end of turn in 10 s, cancelled after 5 s: three chunks of 16 came, a fourth is under way."""
    server = ScriptedServer(lambda prompt: Reply(text=words(100), seconds=10.0), chunk=chunk)
    run = TreeRun("root", TreeOptions(engine=server, budget=ramet.Budget(tokens=1000, seconds=20, reserve=100)))

    async def work() -> None:
        with anyio.move_on_after(5):
            await run.run()

    in_virtual_time(work)
    assert (run.tree.usage.tokens, server.generated) == (seen, generated)
    assert run.tree.usage.lost_tokens == 900 - seen  # the cap was 1000 less the reserve of 100
    assert run.tree.root.token_ids[-seen or None :] or seen == 0
    assert run.tree.root.stop is ramet.Stop.CANCELLED


def test_parallel_siblings_cannot_spend_the_same_tokens_twice():
    def script(prompt: Prompt) -> Reply:
        if prompt.depth == 0 and prompt.turn == 0:
            return Reply(text=delegate(*map(str, range(16)), tokens=[10_000] * 16))
        return Reply(text=words(5000), seconds=1.0)

    server = ScriptedServer(script)
    budget = ramet.Budget(tokens=1000, nodes=20, depth=1, children=16, reserve=8)
    tree = in_virtual_time(TreeRun("root", TreeOptions(engine=server, budget=budget)).run)
    assert len(tree.nodes) == 17
    assert server.generated == tree.usage.tokens <= 1000
