"""Caps by role, on calls of a turn and on the text of their results, in all dialects; shares that follow demand."""

from __future__ import annotations

import math
from typing import Literal

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramet
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.agent.wording import cut_characters, shorten
from ramet.engine.scripted import Script
from ramet.interfaces import Result
from ramet.tasks.arithmetic import Arithmetic
from ramet.tasks.codes import Codes
from ramet.tasks.play import goal_measure
from ramet.types import Prompt, Refusal
from tests.agent.scripts import call, cell, delegate, words
from tests.conftest import in_virtual_time


class Bells:
    """A world with one function."""

    def __init__(self) -> None:
        self.context = {"short": "x" * 10, "long": "y" * 390}
        self.functions = {"ring": self.ring}
        self.rung: list[int] = []

    def ring(self, times: int) -> str:
        """Ring a bell."""
        self.rung.append(times)
        return "ding" * times


def run(script: object, *, world: Bells | None = None, dialect: str = "tools", **budget: object) -> ramet.Tree:
    engine = ramet.ScriptedEngine(script)  # pyright: ignore[reportArgumentType]
    limits = ramet.Budget(**({"tokens": 20_000, "depth": 2, "nodes": 40} | budget))  # pyright: ignore[reportArgumentType]
    options = TreeOptions(engine=engine, budget=limits, world=world, dialect=dialect)
    if dialect == "python":
        return anyio.run(TreeRun("root", options).run)
    return in_virtual_time(TreeRun("root", options).run)


def turns(*texts: str, child: str = "Answer: ok") -> Script:
    """A root that writes these turns and then ends; every clone writes `child`."""

    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return child
        return texts[prompt.turn] if prompt.turn < len(texts) else "Answer: end"

    return script


# Tokens by role.


def test_root_and_clones_have_their_own_caps():
    def script(prompt: Prompt) -> str:
        return delegate("a", "b") if prompt.depth == 0 and prompt.turn == 0 else words(5000)

    tree = run(script, root_tokens=200, clone_tokens=60, node_tokens=1000, reserve=20, window=100_000)
    root, *clones = tree.nodes
    assert root.usage.tokens == 200
    assert [clone.usage.tokens for clone in clones] == [60, 60]
    assert {node.stop for node in tree.nodes} == {ramet.Stop.BUDGET}
    assert min(clone.grant for clone in clones) > 1000  # the cap is on what a node generates itself, not on its loan


def test_without_a_cap_of_its_role_a_node_has_that_of_every_node():
    script = turns(delegate("a"), *[words(5000)] * 9, child=words(5000))
    tree = run(script, clone_tokens=60, node_tokens=300, reserve=20)
    assert [node.usage.tokens for node in tree.nodes] == [300, 60]


# Tokens on the critical path.


def test_a_chain_of_clones_is_cut_and_every_node_of_it_can_still_answer():
    """Every node writes 40 words and asks for one more clone."""

    def script(prompt: Prompt) -> str:
        if prompt.closing:
            return f"Answer: {words(50)}"
        return words(40) + delegate(f"{prompt.goal} and more")

    free, cut = (run(script, depth=9, nodes=40, reserve=20, path_tokens=limit) for limit in (None, 400))
    assert free.usage.critical_path_tokens > 400
    assert 300 < cut.usage.critical_path_tokens <= 400
    assert len(cut.nodes) < len(free.nodes)
    assert {node.stop for node in cut.nodes} == {ramet.Stop.BUDGET}
    assert all(node.answer for node in cut.nodes)


def test_a_clone_is_refused_when_its_turn_and_both_answers_no_longer_fit_the_path():
    """With a reserve of 20, a clone needs 40 tokens after the root's turn and 20 more are kept for the root."""
    script = turns(delegate("a"))
    spent = run(script, reserve=20).root.turns[0].tokens
    fits, short = (run(script, reserve=20, path_tokens=spent + 20 + left) for left in (40, 39))
    assert len(fits.nodes) == 2
    assert len(short.nodes) == 1
    reason = "the chain of work up to here has 39 tokens left for a clone, which needs 40 or more: do it yourself"
    assert short.root.turns[0].refusals == [Refusal(goal="a", reason=reason, kind="path")]
    assert short.root.answer == "end"


def test_clones_side_by_side_share_one_path_and_those_after_each_other_do_not():
    """Clones that write 100 tokens, in a tree with 300 tokens on the critical path and a reserve of 20."""
    child = words(100)
    beside = run(turns(delegate("a", "b", "c"), child=f"Answer: {child}"), path_tokens=300, reserve=20)
    after = run(
        turns(delegate("a"), delegate("b"), delegate("c"), child=f"Answer: {child}"), path_tokens=300, reserve=20
    )
    assert len(beside.nodes) == 4
    assert beside.root.stop is ramet.Stop.ANSWERED
    assert len(after.nodes) < 4
    assert after.usage.critical_path_tokens <= 300
    assert after.usage.tokens < beside.usage.tokens
    assert after.root.answer == "end"


# Characters of results.


@given(st.text(max_size=300), st.integers(0, 200))
def test_cut_characters_keeps_to_its_limit_and_counts_what_it_cut(text: str, limit: int):
    shown = cut_characters(text, limit)
    assert len(shown) <= max(limit, 0) or shown == text
    if len(text) > limit >= 32:
        kept, _, mark = shown.rpartition(" … (")
        assert text.startswith(kept)
        assert mark == f"{len(text) - len(kept):,} characters cut)"


@given(st.lists(st.text(max_size=200), max_size=6), st.integers(32, 400))
def test_the_results_of_a_call_share_its_characters(texts: list[str], limit: int):
    results = [Result("r", text) for text in texts]
    shown = shorten(results, limit)
    assert len(shown) == len(results)
    assert sum(len(result.text) for result in shown) <= limit or shown == results
    if sum(map(len, texts)) <= limit:
        assert shown == results
    assert shorten(results, None) == results


def test_only_the_long_results_of_a_call_are_cut():
    # 100 characters for 10, 20 and 200: the first two stay, the third has the other 70.
    results = [Result("a", "a" * 10), Result("b", "b" * 200), Result("c", "c" * 20)]
    shown = shorten(results, 100)
    assert [len(result.text) for result in shown] == [10, 70, 20]
    assert shown[1].text.endswith("b … (153 characters cut)")


def test_answers_of_one_call_share_512_characters_and_each_call_has_its_own():
    script = turns(delegate("a", "b") + call("ring", times=500) + call("ring", times=2), child="Answer: " + "z" * 400)
    tree = run(script, world=Bells(), max_result_chars=512)
    _, *lines, _ = tree.root.pieces[2].text.split("<tool_response>")[1].split("</tool_response>")[0].split("\n")
    texts = [line.partition(": ")[2] for line in lines]
    assert [len(text) for text in texts] == [256, 256, 512, 8]
    assert texts[0].endswith("z … (167 characters cut)")
    assert texts[2].endswith("… (1,513 characters cut)")


def test_output_of_a_cell_and_answers_in_terse_are_cut_too():
    tree = run(turns(cell("print('p' * 300)")), dialect="python", max_result_chars=100)
    shown = tree.root.pieces[2].text.split("[cell 1]\n")[1].split("<|im_end|>")[0]
    assert (len(shown), shown.endswith("p … (223 characters cut)")) == (100, True)
    tree = run(turns("> a\n> b", "= end", child="= " + "z" * 300), dialect="terse", max_result_chars=100)
    lines = [line for line in tree.root.pieces[2].text.split("\n") if line.startswith("< ")]
    assert [len(line.removesuffix("<|im_end|>")) for line in lines] == [102, 102]  # each line that asks is a call


# Calls of a turn.


@pytest.mark.parametrize(
    "limit",
    [
        {"node_tokens": 600},
        {"path_tokens": 600},
        {"money": 0.01, "prices": ramet.Prices(prompt=1.0, generated=1.0)},
    ],
    ids=str,
)
def test_a_node_whose_own_limit_is_used_up_says_so_though_its_window_holds_less_than_the_tree_has(limit: object):
    cells = turns(*[call("nothing")] * 100)
    tree = run(cells, tokens=100_000, window=4000, turns=100, **limit)  # pyright: ignore[reportCallIssue]
    assert tree.root.stop is ramet.Stop.BUDGET
    assert tree.usage.peak_window < 2000


def test_calls_beyond_the_limit_are_refused_with_a_reason():
    world = Bells()
    script = turns(call("ring", times=1) + delegate("a") + call("ring", times=2) + delegate("b"))
    tree = run(script, world=world, max_calls=2)
    assert world.rung == [1]
    assert [node.goal for node in tree.nodes] == ["root", "a"]
    text = tree.root.pieces[2].text
    assert "ring: refused: one turn makes at most 2 calls; make this one in your next turn" in text
    assert "delegate: refused: one turn makes at most 2 calls" in text
    assert tree.root.turns[0].faults == 2


def test_calls_of_a_cell_beyond_the_limit_are_refused_with_a_reason():
    world = Bells()
    code = cell(
        "import asyncio",
        "ring(1)",
        "parts = await asyncio.gather(*[delegate(g) for g in 'abc'])",
        "print(parts[0], parts[2])",
        "ring(2)",
    )
    tree = run(turns(code, child=cell("finish('ok')")), world=world, dialect="python", max_calls=3)
    assert [node.goal for node in tree.nodes] == ["root", "a", "b"]
    assert world.rung == [1]
    text = tree.root.pieces[2].text
    assert "ok [refused: one turn makes at most 3 calls; make this one in your next turn]" in text
    assert "ValueError: refused: one turn makes at most 3 calls" in text


def test_every_cell_has_its_own_calls():
    world = Bells()
    tree = run(
        turns(cell("ring(1)"), cell("ring(2)"), cell("finish('ok')")), world=world, dialect="python", max_calls=1
    )
    assert (world.rung, tree.answer) == ([1, 2], "ok")


def test_lines_that_ask_beyond_the_limit_are_refused_in_terse():
    tree = run(turns("> a\n> b\n> c", "= end", child="= ok"), dialect="terse", max_calls=2)
    assert [node.goal for node in tree.nodes] == ["root", "a", "b"]
    assert "< ok\n< ok\n< no" in tree.root.pieces[2].text
    assert tree.root.turns[0].faults == 1


# Shares that follow demand.


def grants(tree: ramet.Tree) -> list[int]:
    return [node.grant for node in tree.nodes[1:]]


def test_shares_follow_the_length_of_goals_and_texts():
    goals = [{"goal": "read", "context": ["short"]}, {"goal": "read!", "context": ["long"]}]
    equal, demand = (
        run(turns(delegate(*goals)), world=Bells(), reserve=100, tokens=6000, parent_share=0.0, shares=shares)
        for shares in ("equal", "demand")
    )
    lent = 2 * ((6000 - equal.root.turns[0].tokens - 100) // 2)
    assert grants(equal) == [lent // 2] * 2
    # The goals are 4 and 5 characters, their texts 10 and 390: the first gets 14 parts of 409.
    assert [node.size for node in demand.nodes[1:]] == [14.0, 395.0]
    assert sum(grants(demand)) == lent
    assert grants(demand)[0] == pytest.approx(lent * 14 / 409, abs=1)


def test_shares_follow_the_sizes_of_a_taskset_and_what_was_asked_for_is_granted():
    taskset = Arithmetic()
    task = taskset.task("train", 0)
    engine = ramet.ScriptedEngine(
        turns(delegate("Compute 1+2", {"goal": "Compute 5*6", "tokens": 500}, "Compute 1+2+3+4"))
    )
    budget = ramet.Budget(tokens=6000, reserve=100, parent_share=0.0, shares="demand")
    options = TreeOptions(engine=engine, budget=budget, goal_size=goal_measure(taskset, task))
    run = TreeRun("root", options)
    tree = in_virtual_time(run.run)
    rest = 6000 - 100 - tree.root.turns[0].tokens - 500
    assert [node.size for node in tree.nodes[1:]] == [1, 1, 3]
    first, asked, third = grants(tree)
    assert (asked, first + third) == (500, rest // 2 * 2)
    assert third == pytest.approx(3 * first, abs=2)
    assert run.ledger.tokens == 6000 - tree.usage.tokens  # what clones did not use came back


def test_nodes_follow_the_sizes_of_goals_too():
    small, large = "Compute 1+2", "Compute 1+2+3+4"

    def script(prompt: Prompt) -> str:
        if prompt.turn or prompt.depth == 2:
            return "Answer: ok"
        return delegate(*([f"Compute {number}+5" for number in range(6)] if prompt.depth else [small, large]))

    def clones(shares: Literal["equal", "demand"]) -> list[int]:
        measure = goal_measure(Arithmetic(), Arithmetic().task("train", 0))
        budget = ramet.Budget(tokens=20_000, nodes=10, depth=2, shares=shares)
        options = TreeOptions(engine=ramet.ScriptedEngine(script), budget=budget, goal_size=measure)
        tree = in_virtual_time(TreeRun("root", options).run)
        return [sum(node.parent == clone.index for node in tree.nodes) for clone in tree.nodes if clone.depth == 1]

    # Seven nodes are left after the two clones: three each and one that is not lent, or by size, which is 1 and 3.
    assert clones("equal") == [3, 3]
    assert clones("demand") == [2, 5]


def test_a_goal_that_the_taskset_cannot_measure_makes_all_count_by_length():
    assert goal_measure(Codes(), Codes().task("train", 0)) is not None
    engine = ramet.ScriptedEngine(turns(delegate("Compute 1+2+3", "say hello")))
    measure = goal_measure(Arithmetic(), Arithmetic().task("train", 0))
    tree = in_virtual_time(TreeRun("root", TreeOptions(engine=engine, goal_size=measure)).run)
    assert [node.size for node in tree.nodes[1:]] == [13.0, 9.0]


@pytest.mark.parametrize("size", [math.nan, math.inf, -1.0])
def test_sizes_that_are_no_amount_make_all_goals_count_by_length(size: float):
    sizes = iter([3.0, size])
    engine = ramet.ScriptedEngine(turns(delegate("first", "second")))
    options = TreeOptions(engine=engine, budget=ramet.Budget(shares="demand"), goal_size=lambda goal: next(sizes))
    tree = in_virtual_time(TreeRun("root", options).run)
    assert [node.size for node in tree.nodes[1:]] == [5.0, 6.0]


def test_codes_measures_a_goal_by_its_codes():
    codes = Codes()
    task = codes.task("train", 0)
    assert codes.goal_size(task, "Add longest runs of 1?0?01?1 (last digit)") == 8
    assert codes.goal_size(task, "hello") is None
