"""A node that reaches a limit still answers, and records which limit it was."""

from __future__ import annotations

import anyio
import pytest

import ramet
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.engine.scripted import Reply
from ramet.types import Prompt
from tests.agent.scripts import cell, delegate, gather, words
from tests.conftest import in_virtual_time


def run(script: object, **budget: object) -> ramet.Tree:
    engine = ramet.ScriptedEngine(script)  # pyright: ignore[reportArgumentType]
    return in_virtual_time(TreeRun("root", TreeOptions(engine=engine, budget=ramet.Budget(**budget))).run)  # pyright: ignore[reportArgumentType]


def test_a_root_out_of_tokens_answers_from_its_reserve():
    def script(prompt: Prompt) -> str:
        return "Answer: the best I have" if prompt.closing else words(5000)

    tree = run(script, tokens=500, reserve=50)
    assert tree.answer == "the best I have"
    assert tree.root.stop is ramet.Stop.BUDGET
    assert [turn.closing for turn in tree.root.turns] == [None, ramet.Stop.BUDGET]
    assert tree.root.turns[0].tokens == 450  # all but the reserve


def test_a_root_out_of_turns_answers_in_its_last_one():
    def script(prompt: Prompt) -> str:
        return "Answer: enough" if prompt.closing else delegate("again")

    tree = run(script, turns=3, depth=1, nodes=10)
    assert (tree.answer, tree.root.stop, len(tree.root.turns)) == ("enough", ramet.Stop.TURNS, 3)


def test_a_root_whose_time_runs_out_while_children_work_uses_the_answers_it_has():
    """One child is quick, one would take an hour: the answer of the quick one reaches the root."""

    def script(prompt: Prompt) -> Reply:
        if prompt.depth:
            slow = prompt.goal == "slow" and not prompt.closing
            return Reply(text=f"Answer: {prompt.goal} done", seconds=3600 if slow else 1)
        if prompt.turn == 0:
            return Reply(text=delegate("quick", "slow"), seconds=1)
        return Reply(text=f"Answer: {prompt.last.splitlines()[1]}", seconds=1)

    tree = run(script, seconds=100, depth=1)
    root, quick, slow = tree.nodes
    assert quick.stop is ramet.Stop.ANSWERED
    assert (slow.stop, slow.answer) == (ramet.Stop.DEADLINE, "slow done")  # it answered within its time reserve
    assert root.answer == "clone 1.1: quick done"
    assert tree.seconds <= 100


def test_a_root_whose_own_turn_takes_too_long_is_asked_before_the_deadline():
    def script(prompt: Prompt) -> Reply:
        return Reply(text="Answer: in a hurry" if prompt.closing else words(10), seconds=1 if prompt.closing else 3600)

    tree = run(script, seconds=60)
    assert (tree.answer, tree.root.stop) == ("in a hurry", ramet.Stop.DEADLINE)
    assert tree.seconds == pytest.approx(55)  # nine tenths of the time, then one second


def test_the_root_answers_without_children_that_never_answer():
    def script(prompt: Prompt) -> Reply:
        if prompt.depth:
            return Reply(text=words(5), seconds=3600)
        if prompt.turn == 0:
            return Reply(text=delegate("a", "b"))
        return Reply(text="Answer: without them")

    tree = run(script, seconds=60, depth=1)
    assert tree.answer == "without them"
    assert [(node.stop, node.answer) for node in tree.nodes[1:]] == [(ramet.Stop.DEADLINE, None)] * 2
    results = tree.root.pieces[2].text
    assert "clone 1.1: no answer, stopped by deadline [goal: a]" in results


def test_an_answer_is_kept_when_a_sibling_never_ends():
    def script(prompt: Prompt) -> Reply:
        if prompt.depth:
            return Reply(text="Answer: found it", seconds=3600 if prompt.goal == "stuck" else 1)
        return Reply(text=delegate("stuck", "quick") if prompt.turn == 0 else "Answer: saved")

    tree = run(script, seconds=60, depth=1)
    results = tree.root.pieces[2].text
    assert "clone 1.1: no answer, stopped by deadline [goal: stuck]" in results
    assert "clone 1.2: found it" in results
    assert (tree.answer, tree.root.stop) == ("saved", ramet.Stop.DEADLINE)


def test_results_are_reported_only_once():
    """Time runs out while the root samples after it has read the results."""

    def script(prompt: Prompt) -> Reply:
        if prompt.depth or prompt.turn == 0:
            return Reply(text="Answer: once" if prompt.depth else delegate("a"))
        return Reply(text="Answer: done", seconds=0 if prompt.closing else 3600)

    engine = ramet.ScriptedEngine(script)
    tree = in_virtual_time(TreeRun("root", TreeOptions(engine=engine, budget=ramet.Budget(seconds=60, depth=1))).run)
    assert (tree.answer, tree.root.stop) == ("done", ramet.Stop.DEADLINE)
    assert "".join(piece.text for piece in tree.root.pieces).count("clone 1.1: once") == 1
    roles = [message.role for message in engine.prompts[-1].messages]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]


def test_a_node_with_a_full_window_answers_in_its_reserved_room():
    def script(prompt: Prompt) -> str:
        return "Answer: full" if prompt.closing else delegate("read") if prompt.depth == 0 else f"Answer: {words(400)}"

    tree = run(script, tokens=100_000, window=900, turns=50, nodes=60, depth=1, result_bytes=1000, reserve=20)
    assert (tree.answer, tree.root.stop) == ("full", ramet.Stop.WINDOW)
    assert tree.root.usage.peak_window <= 900


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_a_partial_answer_reaches_the_root_from_any_depth(depth: int):
    """The deepest node runs out of tokens; its partial answer is passed up to the root."""

    def script(prompt: Prompt) -> str:
        if prompt.depth == depth:
            return "Answer: bottom" if prompt.closing else words(10_000)
        deeper = delegate(f"down {prompt.depth}")
        return deeper if prompt.turn == 0 else f"Answer: {prompt.last.splitlines()[1].rpartition(' ')[2]}"

    tree = run(script, tokens=20_000, window=50_000, depth=depth, reserve=30)
    assert tree.answer == "bottom"
    assert [node.stop for node in tree.nodes] == [ramet.Stop.ANSWERED] * depth + [ramet.Stop.BUDGET]
    assert "(partial, stopped by budget) bottom" in tree.nodes[-2].pieces[2].text


def test_results_that_do_not_fit_are_cut_to_one_length_and_none_is_dropped():
    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return f"Answer: {prompt.goal} {words(300)}"
        return delegate("alpha", "beta", "gamma") if prompt.turn == 0 else "Answer: ok"

    tree = run(script, tokens=50_000, window=1000, depth=1, result_bytes=5000, reserve=20)
    results = tree.root.pieces[2].text
    assert tree.answer == "ok"
    assert all(f"clone 1.{i}: {name}" in results for i, name in enumerate(["alpha", "beta", "gamma"], start=1))
    assert results.count("bytes in all") == 3


def test_a_long_answer_is_cut_without_cutting_those_of_its_siblings():
    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return f"Answer: {words(2000)}" if prompt.goal == "long" else "Answer: short"
        return delegate("long", "short") if prompt.turn == 0 else "Answer: ok"

    tree = run(script, tokens=50_000, window=20_000, depth=1, result_bytes=100)
    lines = tree.root.pieces[2].text.splitlines()
    long = next(line for line in lines if line.startswith("clone 1.1: "))
    assert len(long.removeprefix("clone 1.1: ").encode()) <= 100
    assert long.endswith("(9,999 bytes in all)")
    assert "clone 1.2: short" in lines


def test_a_closing_turn_that_still_delegates_starts_nothing():
    def script(prompt: Prompt) -> str:
        return f"I think 7. {delegate('more')}"

    tree = run(script, turns=2, depth=3, nodes=50)
    assert tree.answer == "I think 7."
    assert tree.root.turns[-1].children == []


def test_a_python_root_out_of_turns_can_finish_with_a_value():
    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return cell("finish(len(context))")
        return cell("finish(sum(parts))") if prompt.closing else cell(gather(["a", "b"]), "print(parts)")

    engine = ramet.ScriptedEngine(script)
    work = TreeRun("root", TreeOptions(engine=engine, budget=ramet.Budget(turns=2, depth=1), dialect="python"))
    tree = anyio.run(work.run)
    assert (tree.root.value, tree.root.stop) == (0, ramet.Stop.TURNS)


def test_one_turn_is_enough_to_answer():
    tree = run(lambda prompt: "Answer: 4", turns=1)
    assert (tree.answer, tree.root.stop) == ("4", ramet.Stop.ANSWERED)
