"""A forked tree has the recorded prefix and its own continuation, within what the budget left at that point."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, event, example, given, settings
from hypothesis import strategies as st

import ramet
from ramet.agent.fork import ForkRun
from ramet.agent.options import TreeOptions
from ramet.agent.recording import CUT_SHORT, ForkPoint, Recording
from ramet.agent.tree import TreeRun
from ramet.engine.scripted import Reply, ScriptedEngine, WordTokenizer
from ramet.inputs.settings import RunConfig
from ramet.interfaces import HostFunction
from ramet.serve.settings import ServeConfig
from ramet.tokens.render import TokenRenderer
from ramet.types import Node, Prompt, Tree
from tests.agent.scripts import call, cell, delegate, gather
from tests.agent.test_ledger_holds import BUDGETS, check_node, wild_policy
from tests.conftest import in_virtual_time

PLENTY = ramet.Budget(tokens=5000, nodes=20, depth=3)
Script = Callable[[Prompt], str | Reply]


def canonical(tree: Tree) -> dict[tuple[int, ...], dict[str, Any]]:
    """A tree without ids and times; nodes are named by their paths."""
    paths = {node.index: node.path for node in tree.nodes}
    return {node.path: _facts(node, paths) for node in tree.nodes}


def _facts(node: Node, paths: Mapping[int, tuple[int, ...]]) -> dict[str, Any]:
    turns = [
        (turn.tokens, turn.finish, turn.closing, [paths[child] for child in turn.children], turn.refusals, turn.faults)
        for turn in node.turns
    ]
    return {
        "goal": node.goal,
        "grant": node.grant,
        "stop": node.stop,
        "answer": node.answer,
        "pieces": node.pieces,
        "turns": turns,
        "usage": node.usage,
    }


def play(script: Script, *, budget: ramet.Budget = PLENTY, world: Any = None, slots: int | None = None) -> Tree:
    """A recorded tree, in virtual time."""
    engine = ScriptedEngine(script, renderer=TokenRenderer(WordTokenizer()), slots=slots)
    run = TreeRun("root", TreeOptions(engine=engine, budget=budget, world=world))
    TOKENIZERS[run.tree.id] = engine.tokenizer
    return in_virtual_time(run.run)


TOKENIZERS: dict[str, Any] = {}  # by tree: a fork needs the tokens of its tree


def make_fork(tree: Tree, point: ForkPoint, script: Script, *, world: Any = None) -> tuple[ForkRun, ScriptedEngine]:
    engine = ScriptedEngine(script, renderer=TokenRenderer(TOKENIZERS[tree.id]))
    return ForkRun(tree, point, TreeOptions(engine=engine, world=world)), engine


def fork(tree: Tree, point: ForkPoint, script: Script, *, world: Any = None) -> Tree:
    return in_virtual_time(make_fork(tree, point, script, world=world)[0].run)


def was_interrupted(tree: Tree) -> bool:
    return any(node.usage.calls != len(node.turns) or node.stop in CUT_SHORT for node in tree.nodes)


@settings(max_examples=80)
@given(seed=st.integers(0, 2**32), budget=BUDGETS, where=st.integers(0, 10**6), slots=st.sampled_from([None, 3]))
def test_a_fork_that_continues_as_recorded_is_the_recorded_tree(
    seed: int, budget: ramet.Budget, where: int, slots: int | None
) -> None:
    budget = replace(budget, seconds=None)
    try:
        tree = play(wild_policy(seed), budget=budget, slots=slots)
    except (ramet.ConfigError, ramet.EngineError):
        assume(False)
        raise
    places = [(node.index, i) for node in tree.nodes for i in range(len(node.turns))]
    assume(places)
    node, turn = places[where % len(places)]
    if was_interrupted(tree):  # what such a call had cost is not recorded, so the tree may be refused
        event("interrupted")
        return
    event(f"forked at depth {tree.nodes[node].depth}")
    again = fork(tree, ForkPoint(node=node, turn=turn), wild_policy(seed))
    assert canonical(again) == canonical(tree)


@example(  # a repeated branch with one more call, cut off before it brought a turn
    seeds=(27688, 239),
    budget=ramet.Budget(
        tokens=200_000,
        nodes=400,
        depth=2,
        seconds=10,
        children=2,
        turns=2,
        window=6000,
        reserve=40,
        prices=ramet.Prices(prompt=1.0, cached=0.5, generated=10.0),
    ),
    where=1,
    change="none",
)
@settings(max_examples=80)
@given(
    seeds=st.tuples(st.integers(0, 2**32), st.integers(0, 2**32)),
    budget=BUDGETS,
    where=st.integers(0, 10**6),
    change=st.sampled_from(["none", "alone", "clone", "say"]),
)
def test_a_forked_tree_keeps_its_prefix_and_never_overspends(
    seeds: tuple[int, int], budget: ramet.Budget, where: int, change: str
) -> None:
    try:
        tree = play(wild_policy(seeds[0]), budget=budget)
    except (ramet.ConfigError, ramet.EngineError):
        assume(False)
        raise
    places = [(node, i) for node in tree.nodes for i, turn in enumerate(node.turns) if turn.children]
    places = places or [(node, i) for node in tree.nodes for i in range(len(node.turns))]
    assume(places)
    node, turn = places[where % len(places)]
    point = ForkPoint(node=node.index, turn=turn, without_delegation=change == "alone")
    if change == "say":
        point = replace(point, say="Answer: this")
    if change == "clone" and node.turns[turn].children:
        point = replace(point, without_clone=node.turns[turn].children[0])
    try:
        run, engine = make_fork(tree, point, wild_policy(seeds[1]))
        forked = in_virtual_time(run.run)
    except (ramet.ForkError, ramet.EngineError):
        return
    used = forked.usage
    assert run.tokens == engine.generated + used.lost_tokens  # what is new is all that was sampled
    assert used.tokens + used.lost_tokens <= budget.tokens
    assert len(forked.nodes) <= budget.nodes
    assert forked.depth <= budget.depth
    ledger = run.tree_run.ledger
    assert ledger.open == 0
    assert ledger.tokens + used.tokens + used.lost_tokens == budget.tokens
    assert ledger.nodes + len(forked.nodes) == budget.nodes
    if budget.money is not None:
        assert used.dollars <= budget.money
        assert (ledger.money or 0) >= 0
    if budget.seconds is not None:
        assert forked.seconds <= budget.seconds + 1e-6
    for made in forked.nodes:
        check_node(made, budget)
    check_prefix(tree, forked, point)
    check_change(forked, node, point)


def check_prefix(tree: Tree, forked: Tree, point: ForkPoint) -> None:
    """Every turn before the fork is there, with the pieces before it; those after it are not repeated on the line."""
    again = {node.path: node for node in forked.nodes}
    for path, number in Recording(tree, point).order():
        before = next(node for node in tree.nodes if node.path == path)
        place = [i for i, piece in enumerate(before.pieces) if piece.sampled][number]
        assert again[path].pieces[: place + 1] == before.pieces[: place + 1]
        assert again[path].turns[number].sampled_s == before.turns[number].sampled_s


def check_change(forked: Tree, node: Node, point: ForkPoint) -> None:
    again = next(made for made in forked.nodes if made.path == node.path)
    if point.without_delegation:
        assert not any(turn.children for turn in again.turns[point.turn :])
    if point.without_clone is not None:
        ordinal = len([child for turn in node.turns[: point.turn] for child in turn.children])
        assert (*node.path, ordinal) not in {made.path for made in forked.nodes}


# Two clones, then an answer from what they found.


def splits(prompt: Prompt) -> str:
    if prompt.depth:
        return f"Answer: {prompt.goal} is done"
    return delegate("one", "two") if prompt.turn == 0 else f"Answer: {prompt.last.count('is done')} parts"


def test_without_delegation_the_root_is_one_that_cannot_delegate() -> None:
    tree = play(splits)
    alone = fork(tree, ForkPoint(node=0, turn=0, without_delegation=True), lambda prompt: "Answer: alone")
    assert [node.answer for node in alone.nodes] == ["alone"]
    assert "delegate" in tree.root.pieces[0].text
    assert "delegate" not in alone.root.pieces[0].text
    stubborn = fork(tree, ForkPoint(node=0, turn=0, without_delegation=True), splits)
    assert [refusal.kind for refusal in stubborn.root.turns[0].refusals] == ["depth", "depth"]


def test_without_one_clone_its_siblings_are_kept_and_only_the_parent_goes_on() -> None:
    tree = play(splits)
    run, engine = make_fork(tree, ForkPoint(node=0, turn=0, without_clone=1), splits)
    forked = in_virtual_time(run.run)
    assert [(node.path, node.answer) for node in forked.nodes] == [((), "1 parts"), ((1,), "two is done")]
    assert [refusal.kind for refusal in forked.root.turns[0].refusals] == ["nodes"]
    assert [(prompt.depth, prompt.turn) for prompt in engine.prompts] == [(0, 1)]
    assert run.tokens == forked.root.turns[1].tokens
    assert forked.nodes[1].usage == tree.nodes[2].usage


def test_a_said_turn_costs_nothing_and_is_not_trained_on() -> None:
    tree = play(splits)
    said = fork(tree, ForkPoint(node=1, turn=0, say="Answer: nothing found"), splits)
    assert [node.answer for node in said.nodes] == ["1 parts", "nothing found", "two is done"]
    turn, piece = said.nodes[1].turns[0], said.nodes[1].pieces[1]
    assert (turn.tokens, said.nodes[1].usage.tokens) == (0, 0)
    assert (piece.text, piece.taught) == ("Answer: nothing found", False)
    with pytest.raises(ramet.ForkError, match="the turn may have at most"):
        fork(tree, ForkPoint(node=1, turn=0, say="word " * 9000), splits)


def test_branches_beside_the_fork_are_kept_and_ancestors_go_on_anew() -> None:
    tree = play(splits)
    run, engine = make_fork(tree, ForkPoint(node=1, turn=0), lambda prompt: "Answer: other")
    forked = in_virtual_time(run.run)
    assert [node.answer for node in forked.nodes] == ["other", "other", "two is done"]
    assert [(prompt.depth, prompt.goal) for prompt in engine.prompts] == [(1, "one"), (0, "root")]


# Worlds.


class Tickets:
    """Hands out numbers: the order of calls decides who gets which."""

    context: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.given = 0
        self.functions: Mapping[str, HostFunction] = {"take": self.take}

    def take(self) -> int:
        """The next number."""
        self.given += 1
        return self.given


class OrderedTickets(Tickets):
    order_matters = True


class CarelessTickets(Tickets):
    order_matters = False


def takers(prompt: Prompt) -> Reply:
    """Three clones take two tickets each, and take turns in an order of their own."""
    if not prompt.depth:
        return Reply(text=delegate("a", "b", "c") if prompt.turn == 0 else f"Answer: {prompt.last}")
    pace = {"a": 5.0, "b": 3.0, "c": 4.0}[prompt.goal]
    return Reply(text=call("take") if prompt.turn < 2 else f"Answer: {prompt.last}", seconds=pace)


def test_a_world_whose_order_matters_goes_through_the_same_states() -> None:
    tree = play(takers, world=OrderedTickets())
    # b at 3 and 6 s, c at 4 and 8 s, a at 5 and 10 s: tickets 1 and 4, 2 and 5, 3 and 6.
    again = fork(tree, ForkPoint(node=0, turn=1), takers, world=OrderedTickets())
    assert canonical(again) == canonical(tree)


def test_a_world_that_declares_a_wrong_order_is_found_out() -> None:
    tree = play(takers, world=CarelessTickets())
    with pytest.raises(ramet.ForkError, match="does not read what is recorded"):
        fork(tree, ForkPoint(node=0, turn=1), takers, world=CarelessTickets())


def test_a_shared_world_is_in_the_state_of_the_forked_turn() -> None:
    tree = play(takers, world=OrderedTickets())
    # Node 1 is `a`. Its second call is asked for at 5 s, after three tickets were given, and gets the next one.
    world = OrderedTickets()
    said = fork(tree, ForkPoint(node=1, turn=1, say=call("take")), takers, world=world)
    assert "take: 4" in said.nodes[1].pieces[4].text
    assert world.given == 6


class Elsewhere(Tickets):
    """A world that gives other numbers when it is played again."""

    order_matters = True

    def __init__(self, first: int) -> None:
        super().__init__()
        self.given = first


def test_what_cannot_be_repeated_is_refused_with_a_reason() -> None:
    tree = play(splits)
    for point, reason in [
        (ForkPoint(node=3, turn=0), "has nodes 0 to 2, not 3"),
        (ForkPoint(node=0, turn=2), "has turns 0 to 1, not 2"),
        (ForkPoint(node=1, turn=-1), "has only turn 0, not -1"),
        (ForkPoint(node=0, turn=1, without_clone=2), "it started none"),
        (ForkPoint(node=0, turn=0, without_clone=0), "it started 1, 2"),
    ]:
        with pytest.raises(ramet.ForkError, match=reason):
            fork(tree, point, splits)
    with pytest.raises(ramet.ForkError, match="exclude each other"):
        ForkPoint(node=0, turn=0, without_delegation=True, say="x")
    tickets = play(takers, world=Tickets())
    with pytest.raises(ramet.ForkError, match="nothing declares that calls of take can be repeated"):
        fork(tickets, ForkPoint(node=0, turn=1), takers, world=Tickets())
    ordered = play(takers, world=OrderedTickets())
    with pytest.raises(ramet.ForkError, match="does not read what is recorded"):
        fork(ordered, ForkPoint(node=0, turn=1), takers, world=Elsewhere(7))
    with pytest.raises(ramet.ForkError, match="does not read what is recorded"):
        fork(ordered, ForkPoint(node=0, turn=1), takers)


def test_a_tree_without_token_ids_and_an_engine_without_them_are_refused() -> None:
    engine = ScriptedEngine(splits, token_ids=False)
    run = TreeRun("root", TreeOptions(engine=engine, budget=PLENTY))
    tree = in_virtual_time(run.run)
    with_ids = ScriptedEngine(splits)
    for one in (engine, with_ids):
        with pytest.raises(
            ramet.ForkError, match="no token ids were recorded for node 0; over HTTP, run it with --tok"
        ):
            ForkRun(tree, ForkPoint(node=0, turn=1), TreeOptions(engine=one))
    exact = in_virtual_time(TreeRun("root", TreeOptions(engine=with_ids, budget=PLENTY)).run)
    with pytest.raises(ramet.ForkError, match="takes text only"):
        ForkRun(exact, ForkPoint(node=0, turn=1), TreeOptions(engine=engine))


def test_a_tree_that_takes_another_course_before_the_fork_ends_with_a_reason() -> None:
    """A world that makes a clone end early must not leave the others waiting for its turns."""

    def impatient(prompt: Prompt) -> Reply:
        reply = takers(prompt)
        return replace(reply, text="Answer: full") if "take: 9" in prompt.last else reply

    tree = play(impatient, world=OrderedTickets())
    with pytest.raises(ramet.ForkError, match="cannot be forked there"):
        fork(tree, ForkPoint(node=0, turn=1), impatient, world=Elsewhere(7))


def test_a_deadline_that_ended_a_branch_cannot_be_repeated() -> None:
    def slow(prompt: Prompt) -> Reply:
        return Reply(text=str(splits(prompt)), seconds=100.0 if prompt.goal == "two" else 1.0)

    tree = play(slow, budget=replace(PLENTY, seconds=20))
    with pytest.raises(ramet.ForkError, match=r"node 2 was stopped by deadline|a call of node 2 was interrupted"):
        fork(tree, ForkPoint(node=1, turn=0), splits)
    early = fork(tree, ForkPoint(node=0, turn=0, without_delegation=True), lambda prompt: "Answer: alone")
    assert early.answer == "alone"


def test_time_used_before_the_fork_stays_used() -> None:
    def paced(prompt: Prompt) -> Reply:
        return Reply(text=str(splits(prompt)), seconds=4.0)

    tree = play(paced, budget=replace(PLENTY, seconds=20))
    forked = fork(tree, ForkPoint(node=0, turn=1), lambda prompt: Reply(text="Answer: late", seconds=100.0))
    assert forked.root.started_s == 0.0
    assert forked.root.turns[0].sampled_s == 4.0
    assert forked.seconds == pytest.approx(20.0)


@pytest.mark.anyio
async def test_a_python_node_has_its_variables_at_the_forked_turn() -> None:
    def cells(prompt: Prompt) -> str:
        if prompt.depth:
            return cell(f"finish({prompt.goal!r} + '!')")
        return cell(gather(["one", "two"]), "print(parts)") if prompt.turn == 0 else cell("finish(parts[0])")

    renderer = TokenRenderer(WordTokenizer())
    tree = await ramet.run("root", engine=ScriptedEngine(cells, renderer=renderer), budget=PLENTY, dialect="python")
    assert tree.answer == "one!"
    say = cell("finish(parts[1] + '?')")
    engine = ScriptedEngine(cells, renderer=renderer)
    other = await ramet.fork(tree, node=0, turn=1, engine=engine, say=say)
    assert (other.answer, engine.prompts) == ("two!?", [])


def test_clones_with_an_engine_of_their_own_keep_it_in_a_fork() -> None:
    def root(prompt: Prompt) -> str:
        return delegate("one", "two") if prompt.turn == 0 else "Answer: by the root"

    def clone(text: str) -> Callable[[Prompt], str]:
        return lambda prompt: f"Answer: {text} {prompt.goal}"

    renderer = TokenRenderer(WordTokenizer())
    engines = {name: ScriptedEngine(script, renderer=renderer) for name, script in (("root", root), ("a", clone("a")))}
    options = TreeOptions(engine=engines["root"], clone_engine=engines["a"], budget=PLENTY)
    tree = in_virtual_time(TreeRun("root", options).run)
    assert [node.answer for node in tree.nodes] == ["by the root", "a one", "a two"]
    other = replace(options, clone_engine=ScriptedEngine(clone("b"), renderer=renderer))
    forked = in_virtual_time(ForkRun(tree, ForkPoint(node=2, turn=0), other).run)
    assert [node.answer for node in forked.nodes] == ["by the root", "a one", "b two"]
    text_only = replace(other, clone_engine=ScriptedEngine(clone("b"), token_ids=False))
    with pytest.raises(ramet.ForkError, match="takes text only"):
        ForkRun(tree, ForkPoint(node=2, turn=0), text_only)


def test_a_tree_and_a_fork_of_it_have_the_same_temperature_by_default_everywhere():
    defaults = [inspect.signature(function).parameters["temperature"].default for function in (ramet.run, ramet.fork)]
    commands = [RunConfig(question="q").temperature, ServeConfig().temperature]
    assert {*defaults, *commands, TreeOptions(engine=ScriptedEngine(str)).temperature} == {0.7}


def test_a_fork_stays_within_the_window_of_a_smaller_model() -> None:
    tree = play(lambda prompt: "Answer: 4")
    sizes: list[int] = []

    class Small(ScriptedEngine):
        window = 900

    def ramble(prompt: Prompt) -> str:
        sizes.append(len(prompt.ids or ()))
        return "word " * 150 + call("unknown")

    engine = Small(ramble, renderer=TokenRenderer(TOKENIZERS[tree.id]))
    forked = in_virtual_time(ForkRun(tree, ForkPoint(node=0, turn=0), TreeOptions(engine=engine)).run)
    assert forked.budget.window == 900
    assert forked.root.stop is ramet.Stop.WINDOW
    assert max(sizes) < 900
