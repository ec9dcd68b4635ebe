"""`returns` in tool calls: a parent asks for the type of an answer and gets checked JSON."""

from __future__ import annotations

import pytest

import ramet
from ramet.agent.dialects import make_dialect
from ramet.agent.options import TreeOptions
from ramet.agent.returns import parse_type, read_answer
from ramet.agent.tree import TreeRun
from ramet.errors import MalformedAction
from ramet.types import Prompt
from tests.agent.scripts import delegate
from tests.conftest import in_virtual_time


def run(*child: str, dialect: str = "tools", asks: str = "", **budget: object) -> ramet.Tree:
    """The root asks one clone, which writes these turns, and then ends."""

    def script(prompt: Prompt) -> str:
        if prompt.depth == 0:
            return (asks or delegate("count", returns="list[int]")) if prompt.turn == 0 else "Answer: end"
        return child[min(prompt.turn, len(child) - 1)]

    engine = ramet.ScriptedEngine(script)
    limits = ramet.Budget(**({"depth": 1} | budget))  # pyright: ignore[reportArgumentType]
    return in_virtual_time(TreeRun("root", TreeOptions(engine=engine, budget=limits, dialect=dialect)).run)


def shown(tree: ramet.Tree) -> str:
    return tree.root.pieces[2].text


def test_the_clone_is_asked_for_the_type_and_its_answer_comes_back_as_json():
    tree = run("I count. Answer: [1, 2,  3]")
    assert "Answer with JSON of type list[int]." in tree.nodes[1].pieces[0].text
    assert "clone 1.1: [1,2,3]\n" in shown(tree)
    assert tree.nodes[1].value == [1, 2, 3]


def test_a_wrong_answer_is_an_error_that_the_clone_reads_and_corrects():
    tree = run("Answer: three", 'Answer: ["a"]', "Answer: [3]")
    clone = tree.nodes[1]
    assert "note: the answer must be JSON of type list[int], got 'three'" in clone.pieces[2].text
    assert "note: the answer must be JSON of type list[int], got \"['a']\"" in clone.pieces[4].text
    assert (clone.answer, clone.stop, [turn.faults for turn in clone.turns]) == ("[3]", ramet.Stop.ANSWERED, [1, 1, 0])
    assert "clone 1.1: [3]\n" in shown(tree)


def test_a_clone_that_never_gets_it_right_answers_partially_with_what_it_wrote():
    tree = run("Answer: three", turns=3)
    assert (tree.nodes[1].stop, tree.nodes[1].value) == (ramet.Stop.TURNS, None)
    assert "clone 1.1: (partial, stopped by turns) three" in shown(tree)


def test_a_right_answer_in_the_final_turn_is_checked_json_too():
    tree = run("Answer: three", "Answer: [4, 5]", turns=2)
    assert tree.nodes[1].value == [4, 5]
    assert "(partial, stopped by turns) [4,5]" in shown(tree)


def test_a_value_too_large_to_return_is_an_error_the_clone_can_correct():
    tree = run(f"Answer: {list(range(100, 200))}", "Answer: [1]", result_bytes=100)
    assert "note: the answer is 401 bytes; at most 100 go back: answer with less" in tree.nodes[1].pieces[2].text
    assert "clone 1.1: [1]\n" in shown(tree)


def test_types_are_given_for_all_goals_for_each_or_inside_a_goal():
    asks = delegate("a", "b", {"goal": "c", "returns": "str"}, returns=["int", None])
    tree = run("Answer: 12", asks=asks)
    assert [node.value for node in tree.nodes[1:]] == [12, None, "12"]
    assert 'clone 1.1: 12\nclone 1.2: 12\nclone 1.3: "12"' in shown(tree)
    tree = run("Answer: 12", asks=delegate("a", "b", returns="float"))
    assert [node.value for node in tree.nodes[1:]] == [12.0, 12.0]


@pytest.mark.parametrize(
    "wanted", ["os.system", "dict[int]", "", 7, {"type": "int"}, "list[" * 150 + "int" + "]" * 150]
)
def test_what_is_no_type_is_refused_with_a_reason(wanted: object):
    tree = run("Answer: 1", asks=delegate("a", returns=wanted))
    assert "is not a type ramet knows" in shown(tree)
    assert [refusal.kind for refusal in tree.root.turns[0].refusals] == ["malformed"]


def test_answers_are_read_as_json_and_else_as_text():
    assert read_answer("7", "int") == (7, "7")
    assert read_answer('"Ada"', "str") == ("Ada", '"Ada"')
    assert read_answer("12", "str") == ("12", '"12"')
    assert read_answer("[1, 1]", "set[int]") == ({1}, "[1]")
    assert read_answer("null", "dict[str, float] | None") == (None, "null")
    with pytest.raises(MalformedAction, match="JSON of type int, got 'x'"):
        read_answer("x", "int")
    with pytest.raises(MalformedAction):
        read_answer("[" * 5000, "int")
    with pytest.raises(MalformedAction, match="not a type"):
        parse_type("dict[int]")


def test_the_prompt_names_returns_only_in_the_dialect_tools_returns():
    plain, typed = (
        make_dialect(name).system(functions={}, may_delegate=True, child=False) for name in ("tools", "tools-returns")
    )
    assert "returns" not in plain
    assert "returns: list[str] = []" in typed
    tree = run("Answer: [1]", dialect="tools-returns")
    assert (tree.dialect, tree.nodes[1].value) == ("tools-returns", [1])
