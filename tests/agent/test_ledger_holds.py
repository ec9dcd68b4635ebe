"""Whatever the model, the engine and the user do: real spend <= budget, reported == real, no open loans."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

import ramet
from ramet.agent.goals import same_words
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.engine.scripted import Reply
from ramet.types import Node, Prompt, State
from tests.agent.scripts import call, delegate, words
from tests.conftest import in_virtual_time

GARBAGE = [
    "<tool_call>{not json",
    '<tool_call>{"name": "delegate"}</tool_call>',
    '<tool_call>{"name": "delegate", "arguments": {"goals": 7}}</tool_call>',
    '<tool_call>["delegate"]</tool_call>',
    call("no_such_tool", x=1),
    delegate("", None, 3, {"goal": "a", "tokens": "many"}),
    delegate("x", context=["nowhere"], tokens=[-5], bogus=1),
    "",
]


def wild_policy(seed: int) -> Callable[[Prompt], Reply]:
    """Delegates, writes long texts and makes mistakes. The seed decides how much of each."""
    nature = random.Random(seed)
    eager, slow = nature.choice([0.5, 0.9, 1.0]), nature.choice([0.0, 0.1, 1.0])
    breaks, talks = nature.choice([0.0, 0.01, 0.1]), nature.choice([10, 100, 2000])
    lazy = nature.choice([0.0, 0.0, 0.3, 1.0])
    tries: Counter[tuple[str, int]] = Counter()

    def script(prompt: Prompt) -> Reply:
        attempt = tries[prompt.node_id, len(prompt.messages)] = tries[prompt.node_id, len(prompt.messages)] + 1
        dice = random.Random(f"{seed}/{prompt.depth}/{prompt.goal}/{len(prompt.messages)}/{attempt}")
        if dice.random() < eager / (1 + prompt.turn):
            goals = [f"{prompt.goal}.{i}" for i in range(dice.randint(1, 9))]
            if dice.random() < lazy:  # its own goal, its parent's and the root's, beside a new one or alone
                goals = [prompt.goal, prompt.goal.rpartition(".")[0] or "root", "Root.", *goals[: dice.randint(0, 2)]]
            tokens = [dice.choice([None, None, 5, 200, 10_000]) for _ in goals]
            text = words(dice.randint(0, 20)) + delegate(*goals, tokens=tokens) * dice.choice([1, 1, 1, 2])
        else:
            spoken = words(dice.randint(1, talks))
            text = dice.choice([spoken, f"Answer: {spoken}", f"Answer: {spoken}", dice.choice(GARBAGE)])
        fault = "the server went away" if dice.random() < breaks else None
        return Reply(text=text, seconds=slow * dice.choice([0.0, 0.1, 1.0, 30.0]), fault=fault)

    return script


def always_delegates(fanout: int) -> Callable[[Prompt], str]:
    def script(prompt: Prompt) -> str:
        return words(80) + delegate(*[f"{prompt.goal}.{i}" for i in range(fanout)])

    return script


TIGHT = st.builds(
    ramet.Budget,
    tokens=st.sampled_from([200_000, 50_000, 6000, 2000, 500, 50, 2, 1]),
    nodes=st.sampled_from([400, 80, 30, 9, 1]),
    depth=st.sampled_from([6, 5, 4, 3, 2, 1, 0]),
    seconds=st.sampled_from([None, None, None, 100, 3, 0.05]),
    children=st.sampled_from([8, 4, 2, 1]),
    turns=st.sampled_from([6, 3, 2, 1]),
    repeats=st.sampled_from([None, None, 1, 2]),
    node_tokens=st.sampled_from([None, None, 800, 60, 1]),
    root_tokens=st.sampled_from([None, None, 900, 30, 1]),
    clone_tokens=st.sampled_from([None, None, 500, 50, 1]),
    path_tokens=st.sampled_from([None, None, 2000, 300, 50, 1]),
    max_result_chars=st.sampled_from([None, None, 512, 32]),
    max_calls=st.sampled_from([None, None, 10, 1]),
    shares=st.sampled_from(["equal", "demand"]),
    window=st.sampled_from([6000, 1500, 900]),
    result_bytes=st.sampled_from([32, 200, 2048]),
    reserve=st.sampled_from([20, None, 1, 200]),
    parent_share=st.sampled_from([1.0, 0.25, 0.0, 7.5]),
    money=st.sampled_from([None, None, 1.0, 0.05, 0.005]),
    prices=st.just(ramet.Prices(prompt=1.0, cached=0.5, generated=10.0)),
)


WIDE = st.builds(
    ramet.Budget,
    tokens=st.sampled_from([200_000, 20_000, 5000]),
    nodes=st.sampled_from([400, 100, 20]),
    depth=st.integers(2, 6),
    seconds=st.sampled_from([None, None, 100, 10]),
    children=st.integers(2, 8),
    turns=st.integers(2, 5),
    window=st.sampled_from([6000, 1500]),
    reserve=st.sampled_from([8, 40]),
    clone_tokens=st.sampled_from([None, None, 300]),
    path_tokens=st.sampled_from([None, None, 1500, 400]),
    shares=st.sampled_from(["equal", "demand"]),
    parent_share=st.sampled_from([1.0, 0.0]),
    money=st.sampled_from([None, None, 1.0, 0.1]),
    prices=st.just(ramet.Prices(prompt=1.0, cached=0.5, generated=10.0)),
)
BUDGETS = st.one_of(WIDE, TIGHT)


def check_node(node: Node, budget: ramet.Budget) -> None:
    assert node.stop is not None
    assert node.state is State.ENDED
    assert sum(turn.finish != "cut" for turn in node.turns) <= budget.turns  # a call cut off at a deadline is none
    assert node.usage.peak_window <= budget.window
    assert len(node.token_ids) <= budget.window
    assert node.usage.tokens + node.usage.lost_tokens <= node.grant
    own = budget.own_tokens(root=node.parent is None)
    if own is not None:
        assert node.usage.tokens <= own
    for turn in node.turns:
        assert len(turn.children) <= 2 * budget.children  # the policy makes one or two calls per turn


def check_tree(run: TreeRun, engine: ramet.ScriptedEngine) -> None:
    tree, budget, used = run.tree, run.budget, run.tree.usage
    assert used.tokens == engine.generated  # reported == real
    assert used.tokens + used.lost_tokens <= budget.tokens
    assert len(tree.nodes) <= budget.nodes
    assert tree.depth <= budget.depth
    assert engine.running == 0
    assert run.ledger.open == 0
    assert run.ledger.tokens + used.tokens + used.lost_tokens == budget.tokens
    assert run.ledger.nodes + len(tree.nodes) == budget.nodes
    if budget.path_tokens is not None:
        assert used.critical_path_tokens <= budget.path_tokens
    if budget.money is not None:
        assert used.dollars <= budget.money
        assert (run.ledger.money or 0) >= 0
    if budget.seconds is not None:
        assert tree.seconds <= budget.seconds + 1e-6
    for node in tree.nodes:
        check_node(node, budget)
    by_id = {f"{tree.id}/{node.index}": node for node in tree.nodes}
    for prompt in engine.prompts:  # what the engine saw is a prefix of what is recorded
        assert prompt.ids is not None
        assert by_id[prompt.node_id].token_ids[: len(prompt.ids)] == list(prompt.ids)


def check_goals(tree: ramet.Tree) -> None:
    """No node has the goal of a node above it."""
    for node in tree.nodes:
        above = None if node.parent is None else tree.nodes[node.parent]
        while above is not None:
            assert not same_words(node.goal, above.goal)
            above = None if above.parent is None else tree.nodes[above.parent]


@settings(max_examples=400)
@given(
    seed=st.integers(0, 2**32),
    budget=BUDGETS,
    slots=st.one_of(st.none(), st.integers(1, 64)),
    cancel_after=st.sampled_from([None, None, None, 40.0, 2.0, 0.3]),
    show_budget=st.booleans(),
    allow_same_goal=st.booleans(),
)
def test_no_policy_fault_deadline_or_cancellation_overspends(
    seed: int,
    budget: ramet.Budget,
    slots: int | None,
    cancel_after: float | None,
    show_budget: bool,
    allow_same_goal: bool,
):
    engine = ramet.ScriptedEngine(wild_policy(seed), slots=slots)
    try:
        options = TreeOptions(engine=engine, budget=budget, show_budget=show_budget, allow_same_goal=allow_same_goal)
        run = TreeRun("root", options)
    except ramet.ConfigError:  # the question does not fit this budget
        return

    async def work() -> None:
        with anyio.move_on_after(float("inf") if cancel_after is None else cancel_after):
            with contextlib.suppress(ramet.EngineError):
                await run.run()

    in_virtual_time(work)
    event(f"nodes: {len(run.tree.nodes) // 20 * 20}+, depth: {run.tree.depth}")
    check_tree(run, engine)
    if not allow_same_goal:
        check_goals(run.tree)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), budget=BUDGETS)
@example(seed=0, budget=ramet.Budget(tokens=2000, window=900))
def test_text_only_servers_are_held_to_the_same_budget(seed: int, budget: ramet.Budget):
    """Their prompts are bounded from above until the server counts them."""
    engine = ramet.ScriptedEngine(wild_policy(seed), token_ids=False)
    try:
        run = TreeRun("root", TreeOptions(engine=engine, budget=budget))
    except ramet.ConfigError:
        return

    async def work() -> None:
        with contextlib.suppress(ramet.EngineError):
            await run.run()

    in_virtual_time(work)
    used = run.tree.usage
    assert used.tokens == engine.generated
    assert used.tokens + used.lost_tokens <= budget.tokens
    assert all(node.usage.peak_window <= budget.window for node in run.tree.nodes)
    assert run.ledger.open == 0


def test_the_adversary_that_always_delegates_stays_within_2000_tokens():
    """Depth 3, fan-out 4, 5 turns: other runtimes were measured to spend 129,800 and 5,474,200 tokens here."""
    engine = ramet.ScriptedEngine(always_delegates(4))
    budget = ramet.Budget(tokens=2000, nodes=1000, depth=3, turns=5, children=4)
    run = TreeRun("root", TreeOptions(engine=engine, budget=budget))
    tree = in_virtual_time(run.run)
    assert len(tree.nodes) > 5
    assert engine.generated == tree.usage.tokens <= 2000
    check_tree(run, engine)


def passes_on(prompt: Prompt) -> str:
    return delegate(prompt.goal) if prompt.turn == 0 else "Answer: passed on"


@pytest.mark.parametrize(("allow", "nodes"), [(False, 1), (True, 5)])
def test_a_node_that_passes_its_goal_on_gets_no_clone_unless_that_is_allowed(allow: bool, nodes: int):
    engine = ramet.ScriptedEngine(passes_on)
    budget = ramet.Budget(tokens=10_000, nodes=20, depth=4)
    run = TreeRun("root", TreeOptions(engine=engine, budget=budget, allow_same_goal=allow))
    tree = in_virtual_time(run.run)
    kinds = [refusal.kind for node in tree.nodes for turn in node.turns for refusal in turn.refusals]
    assert (len(tree.nodes), kinds) == (nodes, ["depth" if allow else "same_goal"])
    check_tree(run, engine)


def test_a_money_limit_stops_the_adversary_too():
    prices = ramet.Prices(prompt=3.0, cached=0.3, generated=15.0)
    engine = ramet.ScriptedEngine(always_delegates(4))
    budget = ramet.Budget(
        tokens=10**9, nodes=10**6, depth=3, turns=5, children=4, money=0.05, prices=prices, reserve=32
    )
    run = TreeRun("root", TreeOptions(engine=engine, budget=budget))
    tree = in_virtual_time(run.run)
    prompt_tokens = sum(len(prompt.ids or ()) for prompt in engine.prompts)
    real = (prompt_tokens * 3.0 + engine.generated * 15.0) / 1e6
    assert len(tree.nodes) > 2
    assert real == pytest.approx(tree.usage.dollars)
    assert real <= 0.05


class CountsMore(ramet.ScriptedEngine):
    """Like servers that add a text of their own: 1,000 tokens more in every prompt."""

    async def sample(self, prompt: Prompt, **how: Any) -> ramet.Completion:
        completion = await super().sample(prompt, **how)
        return replace(completion, prompt_tokens=len(prompt.ids or ()) + 1000)


def test_tokens_that_only_the_server_sees_in_a_prompt_are_paid_for_too():
    engine = CountsMore(lambda prompt: "Answer: 1" if prompt.closing else call("nothing"))
    budget = ramet.Budget(tokens=10**6, window=10**6, turns=1000, money=0.05, prices=ramet.Prices(prompt=1.0))
    tree = in_virtual_time(TreeRun("root", TreeOptions(engine=engine, budget=budget)).run)
    assert tree.usage.calls > 10
    assert tree.root.stop is ramet.Stop.BUDGET
    assert 0.04 < tree.usage.dollars <= 0.05 + 0.001  # those of the last call may be beyond


def test_parallel_siblings_cannot_spend_the_same_tokens_twice():
    """Sixteen children each ask for the whole budget."""

    def script(prompt: Prompt) -> Reply:
        if prompt.depth == 0 and prompt.turn == 0:
            return Reply(text=delegate(*map(str, range(16)), tokens=[10_000] * 16))
        return Reply(text=words(5000), seconds=1.0)

    engine = ramet.ScriptedEngine(script)
    budget = ramet.Budget(tokens=1000, nodes=20, depth=1, children=16, reserve=8)
    tree = in_virtual_time(TreeRun("root", TreeOptions(engine=engine, budget=budget)).run)
    assert len(tree.nodes) == 17
    assert engine.generated == tree.usage.tokens <= 1000


def test_a_cancelled_sample_is_paid_for_in_full_and_reported_as_lost():
    engine = ramet.ScriptedEngine(lambda prompt: Reply(text=words(100), seconds=10.0))
    run = TreeRun("root", TreeOptions(engine=engine, budget=ramet.Budget(tokens=1000, seconds=20, reserve=100)))

    async def work() -> None:
        with anyio.move_on_after(5):
            await run.run()

    in_virtual_time(work)
    assert run.tree.usage.tokens == engine.generated == 50  # half of the time, half of the tokens
    assert run.tree.usage.lost_tokens == 850  # the cap was 1000 less the reserve of 100
    assert run.ledger.tokens == 100
    assert run.tree.root.stop is ramet.Stop.CANCELLED
