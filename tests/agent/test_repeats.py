"""A node that repeats its turn, with the same results, is asked for its answer after so many repetitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio
import pytest

import ramet
from ramet.agent.limits import Repeats
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.interfaces import HostFunction, Result
from ramet.types import Prompt, Stop, Tree
from tests.agent.scripts import call, cell, delegate
from tests.conftest import in_virtual_time


class Shelf:
    """A world with one function that always fails in the same way, and one whose result changes."""

    def __init__(self) -> None:
        self.context: Mapping[str, str] = {}
        self.functions: Mapping[str, HostFunction] = {"take": self.take, "count": self.count}
        self.counted = 0

    def take(self, item: str) -> str:
        """Take an item."""
        return f"error: no {item} here"

    def count(self) -> str:
        """Count up."""
        self.counted += 1
        return f"{self.counted}"


def run(script: Callable[[Prompt], str], *, dialect: str = "tools", world: Shelf | None = None, **limits: int) -> Tree:
    engine = ramet.ScriptedEngine(script)
    budget = ramet.Budget(**({"turns": 10} | limits))  # pyright: ignore[reportArgumentType]
    work = TreeRun("root", TreeOptions(engine=engine, budget=budget, dialect=dialect, world=world or Shelf()))
    return anyio.run(work.run) if dialect == "python" else in_virtual_time(work.run)


def closing_or(text: str) -> Callable[[Prompt], str]:
    return lambda prompt: "Answer: could not" if prompt.closing else text


@pytest.mark.parametrize(("repeats", "turns"), [(1, 3), (2, 4), (3, 5)])
def test_the_first_turn_its_repetitions_and_the_answer_are_all_there_is(repeats: int, turns: int) -> None:
    tree = run(closing_or(call("take", item="cup")), repeats=repeats)
    assert (tree.answer, tree.root.stop, len(tree.root.turns)) == ("could not", Stop.REPEATS, turns)
    assert [turn.closing for turn in tree.root.turns] == [None] * (turns - 1) + [Stop.REPEATS]


def test_without_the_limit_a_node_repeats_itself_until_its_turns_end() -> None:
    tree = run(closing_or(call("take", item="cup")))
    assert (tree.root.stop, len(tree.root.turns)) == (Stop.TURNS, 10)


def test_the_thinking_before_a_call_does_not_matter() -> None:
    tree = run(lambda prompt: f"Try {prompt.turn}. {call('take', item='cup')}", repeats=2)
    assert (tree.root.stop, len(tree.root.turns)) == (Stop.REPEATS, 4)


def test_the_same_call_with_another_result_is_no_repetition() -> None:
    tree = run(closing_or(call("count")), repeats=1)
    assert (tree.root.stop, len(tree.root.turns)) == (Stop.TURNS, 10)


def test_another_call_with_the_same_result_is_no_repetition() -> None:
    """Both calls name a tool that does not exist; results of one name are the same whatever its arguments."""
    tree = run(lambda prompt: call("lift", weight=prompt.turn), repeats=1)
    assert tree.root.stop is Stop.TURNS


def test_repetitions_count_only_in_a_row() -> None:
    items = ("cup", "cup", "jug", "cup", "cup", "jug")

    def script(prompt: Prompt) -> str:
        return "Answer: done" if prompt.turn == len(items) else call("take", item=items[prompt.turn])

    tree = run(script, repeats=2)
    assert (tree.answer, tree.root.stop) == ("done", Stop.ANSWERED)


def test_turns_that_cannot_be_read_are_compared_by_their_text() -> None:
    tree = run(lambda prompt: "Answer: none" if prompt.closing else "<tool_call>{oops</tool_call>", repeats=2)
    assert (tree.root.stop, len(tree.root.turns)) == (Stop.REPEATS, 4)


def test_clones_that_give_the_same_answers_again_are_a_repetition() -> None:
    """The labels of their results have the number of the turn and differ."""

    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return "Answer: 7"
        return "Answer: end" if prompt.closing else delegate("part")

    tree = run(script, repeats=1, depth=1)
    assert (tree.answer, tree.root.stop, len(tree.nodes)) == ("end", Stop.REPEATS, 3)


def test_the_node_reads_why_it_must_answer() -> None:
    engine = ramet.ScriptedEngine(closing_or(call("take", item="cup")))
    options = TreeOptions(engine=engine, budget=ramet.Budget(repeats=1), world=Shelf())
    in_virtual_time(TreeRun("root", options).run)
    assert "The same turn gave the same results again. Give your final answer now" in engine.prompts[-1].last
    assert "error: no cup here" in engine.prompts[-1].last


def test_in_the_python_dialect_the_cell_is_compared() -> None:
    def script(prompt: Prompt) -> str:
        again = cell("print(take(item='cup'))")
        return cell("finish('none')") if prompt.closing else f"Try {prompt.turn}.\n{again}"

    tree = run(script, dialect="python", repeats=2)
    assert (tree.answer, tree.root.stop, len(tree.root.turns)) == ("none", Stop.REPEATS, 4)


def test_two_cells_without_output_are_no_repetition() -> None:
    def script(prompt: Prompt) -> str:
        return cell("finish(x)") if prompt.turn == 4 else cell(f"x = {prompt.turn}")

    tree = run(script, dialect="python", repeats=1)
    assert (tree.answer, tree.root.stop) == ("3", Stop.ANSWERED)


def test_in_the_terse_dialect_the_goals_are_compared() -> None:
    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return "= 7"
        return "= end" if prompt.closing else f"try {prompt.turn}\n> part"

    engine = ramet.ScriptedEngine(script)
    options = TreeOptions(engine=engine, budget=ramet.Budget(repeats=2, depth=1), dialect="terse")
    tree = in_virtual_time(TreeRun("root", options).run)
    assert (tree.answer, tree.root.stop, len(tree.root.turns)) == ("end", Stop.REPEATS, 4)


@pytest.mark.parametrize("dialect", ["tools", "python"])
def test_room_for_its_message_is_kept_only_with_the_limit(dialect: str) -> None:
    """It has eight words where the longest reason of the other limits has six: a scripted model counts words."""

    def make(**limits: int) -> int:
        engine = ramet.ScriptedEngine(lambda prompt: "")
        budget = ramet.Budget(**limits)  # pyright: ignore[reportArgumentType]
        tree_run = TreeRun("root", TreeOptions(engine=engine, budget=budget, dialect=dialect))
        return tree_run.closing_size(engine.renderer)

    assert make(repeats=2) - make() == 2


def test_repetitions_are_counted_by_action_and_texts() -> None:
    repeats = Repeats()
    turns = [("a", "x"), ("a", "x"), ("a", "x"), ("a", "y"), ("b", "y"), ("b", "y")]
    counts: list[int] = []
    for place, (action, text) in enumerate(turns):
        repeats.add(action, [Result(f"clone {place}.1", text)])
        counts.append(repeats.count)
    assert counts == [0, 1, 2, 0, 0, 1]


@pytest.mark.parametrize("value", [0, -1, 2.0, True])
def test_a_limit_that_is_no_whole_number_from_one_up_is_refused(value: int) -> None:
    with pytest.raises(ramet.ConfigError, match=r"budget\.repeats is a whole number from 1 up"):
        ramet.Budget(repeats=value)
