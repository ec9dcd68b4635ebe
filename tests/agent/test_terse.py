"""The terse dialect: how lines are parsed, what they do, and what the model reads back."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramet
from ramet.agent.dialects import make_dialect
from ramet.agent.dialects.terse import ParsedTurn, TerseDialect, final_answer, read, split_tokens, write
from ramet.agent.dialects.terse_calls import call_line
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.engine.scripted import Reply
from ramet.errors import ConfigError
from ramet.interfaces import Remaining
from ramet.types import Prompt, Stop
from tests.agent.scripts import words
from tests.conftest import in_virtual_time

BOOKS = {"Ada Lovelace": "Born 1815.", "Alan Turing": "Born 1912."}
LINES = st.lists(st.sampled_from(["> a", ">", ">b @k", "= 1", "=", "3+4=7", "| more", "", "@", "=>", "é", "!"])).map(
    "\n".join
)


def run(script: object, *, context: dict[str, str] | None = None, seen: bool = False, **budget: object) -> ramet.Tree:
    engine = ramet.ScriptedEngine(script)  # pyright: ignore[reportArgumentType]
    limits = ramet.Budget(**({"depth": 2} | budget))  # pyright: ignore[reportArgumentType]
    task = ramet.Task(question="root", context=context or {})
    return in_virtual_time(
        TreeRun(task, TreeOptions(engine=engine, budget=limits, dialect="terse", show_budget=seen)).run
    )


def first_turn(text: str, **options: object) -> ramet.Tree:
    """A tree whose root writes this text and then answers."""

    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return f"= did {prompt.goal}"
        return text if prompt.turn == 0 else "= end"

    return run(script, **options)  # pyright: ignore[reportArgumentType]


def results(tree: ramet.Tree) -> str:
    """The results of the root's first turn, as it reads them."""
    return tree.root.pieces[2].text.removeprefix("<|im_end|>\n<|im_start|>user\n").partition("<|im_end|>")[0]


# Parsing a turn.


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("= 7", ParsedTurn(answer="7")),
        ("=7", ParsedTurn(answer="7")),
        ("3+4=7\n7-5=2\n= 2", ParsedTurn(answer="2")),
        ("= 1\n= 2", ParsedTurn(answer="2")),
        ("= 1\n=", ParsedTurn(answer="1")),
        ("= 1\n| 2\nso", ParsedTurn(answer="1\n2")),
        ("> a\n>b", ParsedTurn(goals=("a", "b"))),
        (">", ParsedTurn(goals=("",))),
        ("> a\n= 1", ParsedTurn(goals=("a",), answer="1")),
        ("> one\n| two\n> three", ParsedTurn(goals=("one\ntwo", "three"))),
        (">= 3\n=> 4\n== 5\n>> 6", ParsedTurn()),
        (" > a\nx = 1\n| table |", ParsedTurn()),
        ("<think>\n> a\n= 1</think>\n= 2", ParsedTurn(answer="2")),
        ("= größer 😀 than", ParsedTurn(answer="größer 😀 than")),
        ("> a\r\n= b\r\n", ParsedTurn(goals=("a",), answer="b")),
        ("", ParsedTurn()),
    ],
)
def test_the_sign_at_the_start_of_a_line_decides_its_kind(text: str, parsed: ParsedTurn):
    assert read(text) == parsed


@given(st.text())
def test_no_text_breaks_the_parser(text: str):
    read(text)
    final_answer(text)


@given(st.lists(st.text().map(str.strip).filter(bool), min_size=1))
def test_goals_of_any_shape_are_parsed_as_written(goals: list[str]):
    assert read("\n".join(write(">", goal) for goal in goals)).goals == tuple(goals)


def test_a_very_long_line_is_one_goal():
    assert read("> " + "9+" * 500_000 + "9").goals == ("9+" * 500_000 + "9",)


# Delegating.


def test_clones_run_in_parallel_and_each_answer_is_a_line():
    def script(prompt: Prompt) -> Reply:
        if prompt.depth:
            return Reply(text=f"hm\n= {prompt.goal.upper()}", seconds=10)
        return Reply(text="> a\n> b\n> c" if prompt.turn == 0 else "= end")

    tree = run(script)
    assert tree.seconds == 10
    assert tree.root.turns[0].children == [1, 2, 3]
    assert results(tree) == "< A\n< B\n< C"
    assert (tree.answer, tree.root.stop) == ("end", Stop.ANSWERED)


def test_a_node_starts_from_its_goal_and_nothing_else():
    tree = first_turn("> a\n> b")
    system, user = "<|im_start|>system\n", "<|im_end|>\n<|im_start|>user\n"
    assert tree.root.pieces[0].text == f"{system}{user}root<|im_end|>\n<|im_start|>assistant\n"
    assert tree.nodes[1].pieces[0].text == f"{system}{user}a<|im_end|>\n<|im_start|>assistant\n"


def test_a_node_that_cannot_delegate_has_a_system_prompt_of_one_character():
    assert TerseDialect().system(functions={}, may_delegate=True, child=True) == ""
    assert TerseDialect().system(functions={}, may_delegate=False, child=False) == "."


def test_texts_are_passed_by_key_and_missing_keys_are_named_to_parent_and_child():
    tree = first_turn("> compare @ada  LOVELACE @Alan Turing @Bob", context=BOOKS)
    assert "root\n@Ada Lovelace\n@Alan Turing<|im_end|>" in tree.root.pieces[0].text
    assert "1815" not in tree.root.pieces[0].text  # the root sees keys only
    assert tree.nodes[1].goal == "compare"
    assert (
        "compare\n@Ada Lovelace\nBorn 1815.\n@Alan Turing\nBorn 1912.\n@Bob?<|im_end|>" in tree.nodes[1].pieces[0].text
    )
    assert results(tree) == "< did compare @Bob?"


def test_without_texts_an_at_sign_is_part_of_the_goal():
    assert first_turn("> write to @bob").nodes[1].goal == "write to @bob"


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("Compute 1+2 #300", ("Compute 1+2", 300)),
        ("one\ntwo #64", ("one\ntwo", 64)),
        ("Compute 1+2 #3k", ("Compute 1+2", "3k")),
        ("Compute 1+2 #-5", ("Compute 1+2", "-5")),
        ("Compute 1+2 #1.5", ("Compute 1+2", "1.5")),
        ("count all #tags", ("count all #tags", None)),
        ("read #7 first", ("read #7 first", None)),
        ("C#7", ("C#7", None)),
        ("#300", ("#300", None)),
        ("Compute 1+2", ("Compute 1+2", None)),
    ],
)
def test_a_number_after_the_goal_is_the_tokens_it_asks_for(text: str, parsed: tuple[str, int | str | None]):
    assert split_tokens(text) == parsed


def test_clones_get_the_tokens_they_ask_for():
    tree = first_turn("> a #500\n> b #100", tokens=2000, reserve=16)
    assert [(node.goal, node.grant) for node in tree.nodes[1:]] == [("a", 500), ("b", 100)]
    without = first_turn("> a\n> b", tokens=2000, reserve=16)
    assert without.nodes[1].grant == without.nodes[2].grant


def test_tokens_follow_the_keys_and_a_key_may_look_like_them():
    context = {**BOOKS, "Volume #2": "Of two."}
    tree = first_turn("> sum up @Ada Lovelace #300\n> sum up it @Volume #2", context=context, tokens=2000, reserve=16)
    assert [node.grant == 300 for node in tree.nodes[1:]] == [True, False]
    assert results(tree) == "< did sum up\n< did sum up it"


@pytest.mark.parametrize("tokens", ["0", "-5", "3k", "1.5", "31"])  # 32, twice the reserve, is the least
def test_tokens_that_cannot_be_granted_are_refused_with_a_sign(tokens: str):
    tree = first_turn(f"> a #{tokens}\n> b #32", tokens=2000, reserve=16)
    assert results(tree) == "< no #\n< did b"
    (refusal,) = tree.root.turns[0].refusals
    assert "tokens" in refusal.reason


def test_an_answer_of_several_lines_is_returned_whole():
    tree = run(lambda prompt: "= one\n| two" if prompt.depth else "> a" if prompt.turn == 0 else "= end")
    assert tree.nodes[1].answer == "one\ntwo"
    assert results(tree) == "< one\n| two"


# Functions of the world.


class Kitchen:
    """Functions with plain arguments; `serve` has one of every kind."""

    def __init__(self) -> None:
        self.context: dict[str, str] = {}
        self.functions = {"look": self.look, "serve": self.serve, "wait": self.wait}

    def look(self) -> str:
        return "tea, cake"

    def serve(self, what: str, cups: int, *, hot: bool = True) -> str:
        return f"{cups} {what} {hot}"

    async def wait(self, seconds: float, why: str = "") -> str:
        await anyio.sleep(seconds)
        return f"{seconds} {why}".strip()


def in_kitchen(text: str, **budget: object) -> ramet.Tree:
    """A tree whose root writes this text and then answers."""

    def script(prompt: Prompt) -> str:
        return f"= did {prompt.goal}" if prompt.depth else text if prompt.turn == 0 else "= end"

    engine = ramet.ScriptedEngine(script)
    limits = ramet.Budget(**({"depth": 2} | budget))  # pyright: ignore[reportArgumentType]
    options = TreeOptions(engine=engine, budget=limits, dialect="terse", world=Kitchen())
    return in_virtual_time(TreeRun("root", options).run)


@pytest.mark.parametrize(
    ("line", "read_back"),
    [
        ("$ look", "tea, cake"),
        ("$look", "tea, cake"),
        ("$ serve tea, 2", "2 tea True"),
        ("$ wait 1.5", "1.5"),
        ("$ wait 1, so, that it draws", "1.0 so, that it draws"),
        ("$ wait 1, two\n| lines", "1.0 two\n| lines"),
    ],
)
def test_a_call_is_a_line_with_the_arguments_in_order(line: str, read_back: str):
    tree = in_kitchen(f"First of all.\n{line}")
    assert (results(tree), tree.root.turns[0].faults) == (f"< {read_back}", 0)


@pytest.mark.parametrize(
    ("line", "read_back"),
    [
        ("$ fry egg", "no fry"),
        ("$", "no"),
        ("$ serve tea", "no serve(what: str, cups: int, *, hot: bool = True) -> str"),
        ("$ serve tea, two", "no serve(what: str, cups: int, *, hot: bool = True) -> str"),
        ("$ look twice", "no look() -> str"),
    ],
)
def test_a_call_that_cannot_be_made_is_a_fault_that_names_the_signature(line: str, read_back: str):
    tree = in_kitchen(line)
    assert (results(tree).rstrip(), tree.root.turns[0].faults) == (f"< {read_back}", 1)


def test_functions_are_called_before_clones_start_and_their_results_come_first():
    tree = in_kitchen("> a\n$ look\n> b\n= 9")
    assert results(tree) == "< tea, cake\n< did a\n< did b"
    assert tree.root.turns[0].faults == 1  # the answer in a turn that asks is ignored
    assert tree.answer == "end"


def test_calls_and_clones_of_a_turn_share_the_limit_on_calls():
    tree = in_kitchen("> a\n> b\n$ look", max_calls=2)
    assert results(tree) == "< tea, cake\n< did a\n< no"


def test_in_a_world_without_functions_a_dollar_is_working():
    assert first_turn("$ look\n= 3").answer == "3"
    assert read("$ look\n= 3") == ParsedTurn(answer="3")
    assert read("$ look\n| more", functions=True) == ParsedTurn(calls=("look\nmore",))


def test_a_call_in_the_closing_turn_is_no_answer():
    assert final_answer("about 3\n$ look", functions=True) == "about 3"
    assert final_answer("about 3\n$ 5", functions=False) == "$ 5"


def test_a_function_whose_arguments_do_not_fit_a_line_is_refused_before_anything_runs():
    class Bag:
        context: ClassVar[dict[str, str]] = {}
        functions: ClassVar = {"pack": lambda things: things, "sort": None}

    def sort(items: list[str], reverse: bool = False) -> str:
        return str(sorted(items, reverse=reverse))

    Bag.functions["sort"] = sort
    engine = ramet.ScriptedEngine(lambda prompt: "= 1")
    with pytest.raises(ConfigError, match=r"terse cannot call sort\(items: list\[str\], reverse: bool = False\)"):
        TreeRun("root", TreeOptions(engine=engine, dialect="terse", world=Bag()))


def test_the_dialect_is_made_by_name():
    assert isinstance(make_dialect("terse"), TerseDialect)
    with pytest.raises(ConfigError, match="did you mean terse"):
        make_dialect("ters")


# Mistakes.


@pytest.mark.parametrize(
    ("text", "reported", "faults"),
    [
        ("", "?", 1),
        ("  \n ", "?", 1),
        ("3+4=7", "?", 1),
        ("=", "?", 1),
        (">", "< no", 1),
        ("> a\n>\n> b", "< did a\n< no\n< did b", 1),
        ("> a\n= 5", "< did a", 1),  # a turn that delegates does not answer
    ],
)
def test_every_mistake_is_reported_back(text: str, reported: str, faults: int):
    tree = first_turn(text)
    assert results(tree) == reported
    assert tree.root.turns[0].faults == faults
    assert tree.answer == "end"


def test_a_refusal_is_one_word_and_its_reason_is_on_the_turn():
    tree = first_turn("> a\n> b\n> c", children=2)
    assert results(tree) == "< did a\n< did b\n< no"
    assert [refusal.reason for refusal in tree.root.turns[0].refusals] == ["one call starts at most 2 clones"]
    assert results(first_turn("> a", depth=0)) == "< no"


def test_texts_too_long_for_a_window_are_refused_and_cost_nothing():
    engine = ramet.ScriptedEngine(lambda prompt: "> sum up @book" if prompt.turn == 0 else "= too long")
    task = ramet.Task(question="root", context={"book": words(5000)})
    limits = ramet.Budget(tokens=100_000, window=3000, reserve=20)
    tree = in_virtual_time(TreeRun(task, TreeOptions(engine=engine, budget=limits, dialect="terse")).run)
    assert (len(tree.nodes), results(tree)) == (1, "< no")
    assert "hand over less" in tree.root.turns[0].refusals[0].reason


def test_a_line_that_was_cut_off_is_not_run_and_the_lines_before_it_are():
    tree = run(
        lambda prompt: "= ok" if prompt.depth else "> a\n> b " + words(500) if prompt.turn == 0 else "= end",
        node_tokens=300,
        reserve=20,
        tokens=5000,
    )
    assert [node.goal for node in tree.nodes] == ["root", "a"]
    assert results(tree).partition("\n\n")[0] == "< ok\n.."
    assert tree.root.turns[0].faults == 1


def test_a_turn_that_was_cut_off_does_not_answer():
    tree = run(lambda prompt: f"= 1\n{words(500)}" if prompt.turn == 0 else "= 2", tokens=300, reserve=100)
    assert tree.root.turns[0].finish == "length"
    assert tree.answer == "2"


def test_a_clone_without_an_answer_is_a_question_mark():
    def script(prompt: Prompt) -> Reply:
        if prompt.goal == "bad":
            return Reply(text="", fault="the server is on fire")
        return Reply(text="= ok" if prompt.depth else "> bad\n> good" if prompt.turn == 0 else "= end")

    assert results(run(script)) == "< ?\n< ok"


def test_an_answer_that_a_limit_forced_is_marked():
    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return "= 5" if prompt.closing else "hm"
        return "> a" if prompt.turn == 0 else "= end"

    tree = run(script, turns=3)
    assert tree.nodes[1].stop is Stop.TURNS
    assert results(tree).partition("\n\n")[0] == "< 5?"


# The closing turn.


def test_the_call_to_answer_is_one_character():
    engine = ramet.ScriptedEngine(lambda prompt: "= 5" if prompt.closing else "hm")
    limits = ramet.Budget(turns=2)
    tree = in_virtual_time(TreeRun("root", TreeOptions(engine=engine, budget=limits, dialect="terse")).run)
    assert engine.prompts[-1].last == "?\n\n!"
    assert (tree.answer, tree.root.stop) == ("5", Stop.TURNS)


@pytest.mark.parametrize(
    ("text", "answer"),
    [("= 5\nhm", "5"), ("1+2\n1+2=3", "1+2=3"), ("so\n12\n> a", "12"), ("> a\n=", None), (" \n", None)],
)
def test_the_last_line_of_a_closing_turn_is_the_answer(text: str, answer: str | None):
    assert final_answer(text) == answer


@given(LINES, st.sampled_from([2, 3]))
def test_for_any_text_the_tree_ends_within_its_budget(text: str, turns: int):
    tree = run(lambda prompt: text, turns=turns, nodes=6, tokens=300, reserve=5, context={"k": "v"})
    assert all(node.stop is not None for node in tree.nodes)
    assert tree.usage.tokens <= 300
    assert len(tree.nodes) <= 6


# Showing the budget.


def test_the_remaining_budget_is_a_few_numbers():
    remaining = partial(Remaining, tokens=1600, turns=3)
    assert TerseDialect().remaining(remaining(clones=12, levels=2)) == "#1600 12"
    assert TerseDialect().remaining(remaining(clones=12, levels=0)) == "#1600"
    assert TerseDialect().remaining(remaining(clones=12, levels=2, seconds=29.7)) == "#1600 12 30s"


def test_a_shown_budget_follows_the_goal_and_the_results():
    tree = first_turn("> a", seen=True, tokens=4000, nodes=9)
    assert "root\n\n#4000 8<|im_end|>" in tree.root.pieces[0].text
    assert results(tree).startswith("< did a\n\n#39")


def test_arguments_never_skip_a_parameter_that_a_line_cannot_give():
    def f(a: str, b: list[int] | None = None, c: int = 3) -> str:
        return f"{a} {b} {c}"

    assert anyio.run(call_line, "f x, 7", {"f": f}) == ("x, 7 None 3", False)


def test_an_optional_number_is_a_number():
    def find(query: str, most: int | None = None) -> str:
        return f"{query} {most!r}"

    assert anyio.run(call_line, "find ships, 7", {"find": find}) == ("ships 7", False)
    assert anyio.run(call_line, "find ships", {"find": find}) == ("ships None", False)


@pytest.mark.parametrize(
    ("text", "answer"),
    [("42\n> Compute\n| 1+2", "42"), ("=> 42", "=> 42"), ("3+4\n==7", "==7"), ("> Compute 1+2", None)],
)
def test_the_last_working_of_a_closing_turn_is_its_answer(text: str, answer: str | None):
    assert final_answer(text) == answer
