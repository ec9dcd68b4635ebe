"""Tool calls: how they are parsed, what they do, and what the model reads back. Nothing is dropped silently."""

from __future__ import annotations

import contextlib

import anyio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramet
from ramet.agent.dialects.tools import Call, parse_calls, parse_requests
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.agent.wording import answer_in, cut
from ramet.engine.scripted import Reply
from ramet.errors import MalformedAction
from ramet.types import Prompt
from tests.agent.scripts import call, delegate, words
from tests.conftest import in_virtual_time


class Shop:
    """A world with a plain and an async function."""

    def __init__(self) -> None:
        self.context = {"Ada Lovelace": "Born 1815.", "Alan Turing": "Born 1912."}
        self.functions = {"price": self.price, "search": self.search}
        self.sold: list[str] = []

    def price(self, item: str) -> int:
        """What an item costs."""
        self.sold.append(item)
        return {"bread": 3}[item]

    async def search(self, query: str) -> list[str]:
        """Find things."""
        await anyio.sleep(1)
        return [query.upper()]


def run(script: object, *, world: Shop | None = None, **budget: object) -> ramet.Tree:
    engine = ramet.ScriptedEngine(script)  # pyright: ignore[reportArgumentType]
    limits = ramet.Budget(**({"depth": 2} | budget))  # pyright: ignore[reportArgumentType]
    return in_virtual_time(TreeRun("root", TreeOptions(engine=engine, budget=limits, world=world)).run)


def results_after(*first_turn: str, **budget: object) -> str:
    """The results that the root reads after this first turn."""

    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return f"Answer: did {prompt.goal}"
        return "".join(first_turn) if prompt.turn == 0 else "Answer: end"

    tree = run(script, world=Shop(), **budget)
    return tree.root.pieces[2].text


# Parsing a turn.


def test_calls_are_parsed_in_order_with_their_arguments():
    calls = parse_calls(f"I will {call('a', x=1)} and {call('b')}", finish="stop")
    assert calls == [Call(name="a", arguments={"x": 1}), Call(name="b", arguments={})]


@pytest.mark.parametrize(
    "block",
    [
        "<tool_call>{'name': 'f', 'arguments': {'x': 1}}</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"x": 1,}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": 1}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": 1}}',
    ],
)
def test_malformed_json_is_repaired_and_counted(block: str):
    assert parse_calls(block, finish="stop") == [Call(name="f", arguments={"x": 1}, repaired=True)]


def test_arguments_written_as_json_text_are_parsed():
    calls = parse_calls('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', finish="stop")
    assert calls == [Call(name="f", arguments={"x": 1})]


@pytest.mark.parametrize(
    "block", ["<tool_call>what?</tool_call>", "<tool_call>[1]</tool_call>", '<tool_call>{"x": 1}</tool_call>']
)
def test_an_unreadable_call_becomes_a_fault(block: str):
    (fault,) = parse_calls(block, finish="stop")
    assert isinstance(fault, MalformedAction)


def test_a_call_that_was_cut_off_is_not_run():
    (fault,) = parse_calls('<tool_call>{"name": "delegate", "arguments": {"goals": ["a', finish="length")
    assert "cut off" in str(fault)


def test_calls_inside_thinking_are_ignored():
    assert parse_calls(f"<think>maybe {delegate('x')}</think> no.", finish="stop") == []


@given(st.text())
def test_no_text_breaks_the_parser(text: str):
    parse_calls(text, finish="stop")
    parse_calls(f"<tool_call>{text}</tool_call>", finish="length")


@given(
    st.dictionaries(
        st.sampled_from(["goals", "context", "tokens", "goal"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
            max_leaves=6,
        ),
    )
)
def test_no_arguments_break_the_parsing_of_requests(arguments: dict[str, object]):
    with contextlib.suppress(MalformedAction):
        assert parse_requests(arguments, call=0)


def test_the_answer_follows_the_last_mark():
    assert answer_in("<think>Answer: 1</think> So. Answer: 2\nFinal answer: 3 apples") == "3 apples"
    assert answer_in("just this") == "just this"
    assert answer_in("Answer:") == "Answer:"
    assert answer_in("  \n ") is None


@given(st.text(), st.integers(0, 60))
def test_cut_text_is_never_longer_than_its_limit(text: str, limit: int):
    text = text.encode("utf-8", "replace").decode()
    assert len(cut(text, limit).encode()) <= max(limit, 0) or len(text.encode()) <= limit


# Delegating.


def test_children_of_one_turn_run_in_parallel_and_turns_one_after_another():
    def script(prompt: Prompt) -> Reply:
        if prompt.depth:
            return Reply(text=f"Answer: {prompt.goal}", seconds=10)
        turns = {0: delegate("a", "b") + delegate("c"), 1: delegate("d")}
        return Reply(text=turns.get(prompt.turn, "Answer: end"))

    tree = run(script)
    assert [node.started_s for node in tree.nodes] == [0, 0, 0, 0, 10]
    assert tree.seconds == 20
    assert [turn.children for turn in tree.root.turns] == [[1, 2, 3], [4], []]
    assert "clone 1.1: a\nclone 1.2: b\nclone 1.3: c" in tree.root.pieces[2].text
    assert "clone 2.1: d" in tree.root.pieces[4].text


def test_the_critical_path_counts_the_longest_child_of_each_round():
    sizes = {"short": 10, "long": 50, "later": 20}

    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return words(sizes[prompt.goal])
        turns = {0: delegate("short", "long"), 1: delegate("later")}
        return turns.get(prompt.turn, "Answer: end")

    tree = run(script)
    assert tree.usage.tokens == tree.root.usage.tokens + 80
    assert tree.usage.critical_path_tokens == tree.root.usage.tokens + 50 + 20


def test_a_child_sees_its_goal_and_nothing_of_its_parent():
    def script(prompt: Prompt) -> str:
        return "Answer: ok" if prompt.depth else "secret plan " + delegate("do x") if prompt.turn == 0 else "Answer: ok"

    engine = ramet.ScriptedEngine(script)
    in_virtual_time(TreeRun("the whole question", TreeOptions(engine=engine)).run)
    child = next(prompt for prompt in engine.prompts if prompt.depth == 1)
    assert [message.role for message in child.messages] == ["system", "user"]
    assert child.last == "do x"
    assert "secret" not in str(child.messages)
    assert "whole question" not in str(child.messages)


def test_requested_tokens_are_lent_up_to_what_is_left():
    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return "Answer: ok"
        return delegate("a", "b", {"goal": "c", "tokens": 70}, tokens=[300, None]) if prompt.turn == 0 else "Answer: ok"

    tree = run(script, tokens=2000, reserve=20)
    left = 2000 - tree.root.turns[0].tokens - 20
    assert [node.grant for node in tree.nodes[1:]] == [300, (left - 370) // 2, 70]


def test_texts_are_passed_by_key_and_missing_keys_are_named_to_parent_and_child():
    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return "Answer: read"
        return (
            delegate("compare", context=["ada  LOVELACE", "Alan Turing", "Bob"]) if prompt.turn == 0 else "Answer: ok"
        )

    tree = run(script, world=Shop())
    root, child = tree.nodes
    assert "- Ada Lovelace\n- Alan Turing" in root.pieces[0].text
    assert "1815" not in root.pieces[0].text  # the root sees titles only
    assert "[Ada Lovelace]\nBorn 1815.\n\n[Alan Turing]\nBorn 1912.\n\nNot available: Bob" in child.pieces[0].text
    assert "clone 1.1: read (unknown context keys: Bob)" in root.pieces[2].text


def test_a_child_can_pass_on_its_own_texts_and_no_others():
    def script(prompt: Prompt) -> str:
        if prompt.depth == 2 or prompt.turn:
            return "Answer: ok"
        keys = ["Ada Lovelace", "Alan Turing"] if prompt.depth else ["Ada Lovelace"]
        return delegate(f"down {prompt.depth}", context=keys)

    tree = run(script, world=Shop())
    assert "1815" in tree.nodes[2].pieces[0].text
    assert "1912" not in tree.nodes[2].pieces[0].text
    assert "Not available: Alan Turing" in tree.nodes[2].pieces[0].text


# Mistakes, and what the model reads about them.


@pytest.mark.parametrize(
    ("turn", "reported"),
    [
        ("<tool_call>huh</tool_call>", "tool_call: not valid JSON"),
        (call("delegate"), "delegate: delegate needs goals"),
        (call("delegate", goals=[]), "delegate needs goals"),
        (delegate(""), "clone 1.1: refused: a goal is a text"),
        (delegate(7), "refused: a goal is a text that says what to do, not 7 [goal: 7]"),
        (delegate("a", tokens=["lots"]), "refused: tokens is a whole number from 1 up, not 'lots'"),
        (delegate("a", tokens=[3]), "refused: 3 tokens are too few to answer with: ask for 200 or more"),
        (delegate("a", colour="red"), "delegate: ignored colour; accepted are goals, context, tokens"),
        (delegate("a", tokens=[300, 400, 500]), "delegate: ignored 2 of 3 tokens: there are 1 goals"),
        (call("fly"), "fly: there is no tool 'fly'; there are delegate, price, search"),
        (call("price", thing="x"), "the signature is price(item: str) -> int"),
        (call("price", item="gold"), "price: error: KeyError: 'gold'"),
        ("", "note: your turn was empty"),
    ],
)
def test_every_mistake_is_reported_back(turn: str, reported: str):
    assert reported in results_after(turn)


def test_valid_goals_of_a_call_run_when_another_is_refused():
    results = results_after(delegate("good", "", "fine"))
    assert "clone 1.1: did good" in results
    assert "clone 1.2: refused" in results
    assert "clone 1.3: did fine" in results


def test_more_children_than_a_call_may_start_are_refused_by_name():
    results = results_after(delegate(*"abcd") + delegate(*"ef"), children=3, nodes=50)
    assert "clone 1.3: did c" in results
    assert "clone 1.4: refused: one call starts at most 3 clones [goal: d]" in results
    assert "clone 1.6: did f" in results  # the limit is per call


def test_when_nodes_run_out_the_other_goals_are_refused():
    results = results_after(delegate(*"abcd"), nodes=3)
    assert "clone 1.2: did b" in results
    assert "clone 1.3: refused: no clones left of 2: do it yourself [goal: c]" in results


def test_at_the_last_level_delegating_is_refused_and_the_node_continues():
    results = results_after(delegate("a"), depth=0)
    assert "refused: clones at this depth cannot delegate: do it yourself" in results


def test_without_depth_the_delegate_tool_is_not_shown():
    tree = run(lambda prompt: "Answer: x", depth=0)
    assert "delegate" not in tree.root.pieces[0].text
    assert "There are no tools" in tree.root.pieces[0].text


def test_a_child_whose_task_does_not_fit_its_window_is_refused_before_it_costs_anything():
    task = ramet.Task(question="read", context={"book": words(5000)})
    engine = ramet.ScriptedEngine(
        lambda prompt: delegate("sum it up", context=["book"]) if prompt.turn == 0 else "Answer: too long"
    )
    run = TreeRun(task, TreeOptions(engine=engine, budget=ramet.Budget(tokens=100_000, window=3000, reserve=20)))
    tree = in_virtual_time(run.run)
    results = tree.root.pieces[2].text
    assert (len(tree.nodes), run.ledger.nodes) == (1, 15)
    assert "refused: its goal and context need" in results
    assert "a window holds 3,000: hand over less" in results


def test_a_failed_child_is_reported_to_its_parent_and_its_siblings_continue():
    def script(prompt: Prompt) -> Reply:
        if prompt.goal == "bad":
            return Reply(text="", fault="the server is on fire")
        return Reply(text="Answer: ok" if prompt.depth or prompt.turn else delegate("bad", "good"))

    tree = run(script)
    assert [node.stop for node in tree.nodes] == [ramet.Stop.ANSWERED, ramet.Stop.ERROR, ramet.Stop.ANSWERED]
    assert "clone 1.1: no answer, stopped by error: the server is on fire [goal: bad]" in tree.root.pieces[2].text


def test_an_engine_error_of_the_root_is_raised_with_the_tree_attached():
    engine = ramet.ScriptedEngine(lambda prompt: Reply(text="", fault="no such model"))
    with pytest.raises(ramet.EngineError, match="no such model") as caught:
        in_virtual_time(TreeRun("root", TreeOptions(engine=engine)).run)
    assert caught.value.tree is not None
    assert caught.value.tree.root.stop is ramet.Stop.ERROR


def test_an_interrupted_call_is_paid_for_and_retried():
    attempts: list[str] = []

    def script(prompt: Prompt) -> Reply:
        attempts.append(prompt.goal)
        return Reply(text="Answer: done", fault="reset" if len(attempts) < 3 else None)

    engine = ramet.ScriptedEngine(script)
    tree = in_virtual_time(TreeRun("root", TreeOptions(engine=engine)).run)
    assert (tree.answer, len(attempts)) == ("done", 3)
    assert tree.usage.tokens == engine.generated == 3 * 3
    assert tree.root.usage.calls == 3


def test_repairs_and_faults_are_counted_on_the_turn():
    def script(prompt: Prompt) -> str:
        return (
            "<tool_call>{'name': 'price', 'arguments': {'item': 'bread'}}</tool_call>" + call("fly")
            if (prompt.turn == 0)
            else "Answer: x"
        )

    tree = run(script, world=Shop())
    assert (tree.root.turns[0].repairs, tree.root.turns[0].faults) == (1, 1)


# The world's functions.


def test_async_functions_of_a_turn_run_in_parallel_with_its_children():
    def script(prompt: Prompt) -> Reply:
        if prompt.depth:
            return Reply(text="Answer: ok", seconds=1)
        turn = call("search", query="x") + delegate("a") + call("price", item="bread")
        return Reply(text=turn if prompt.turn == 0 else "Answer: end")

    tree = run(script, world=Shop())
    assert tree.seconds == 1
    assert 'search: ["X"]\nclone 1.1: ok\nprice: 3' in tree.root.pieces[2].text


@pytest.mark.parametrize("attempt", range(5))
def test_plain_functions_of_a_turn_run_in_the_order_written_and_before_its_clones(attempt: int):
    """Also on trio, which starts tasks in random order."""
    shop = Shop()
    seen: list[list[str]] = []

    def script(prompt: Prompt) -> str:
        if prompt.depth:
            seen.append(list(shop.sold))
            return "Answer: ok"
        items = "".join(call("price", item=item) for item in ["bread", "a", "b", "c"])
        return delegate("x") + items if prompt.turn == 0 else f"Answer: {attempt}"

    run(script, world=shop)
    assert shop.sold == ["bread", "a", "b", "c"]
    assert seen == [["bread", "a", "b", "c"]]


def test_children_share_the_world_by_reference():
    shop = Shop()

    def script(prompt: Prompt) -> str:
        if prompt.turn:
            return "Answer: ok"
        return call("price", item="bread") if prompt.depth else delegate("a", "b")

    run(script, world=shop)
    assert shop.sold == ["bread", "bread"]


def test_the_remaining_budget_is_shown_only_on_request():
    def script(prompt: Prompt) -> str:
        return delegate("a") if prompt.depth == 0 and prompt.turn == 0 else "Answer: ok"

    def first_prompt(show: bool) -> str:
        engine = ramet.ScriptedEngine(script)
        budget = ramet.Budget(tokens=4000, nodes=16, depth=3, seconds=60)
        run = TreeRun("q", TreeOptions(engine=engine, budget=budget, show_budget=show))
        return in_virtual_time(run.run).root.pieces[0].text

    assert "You have left: 4,000 tokens, 10 turns, 15 clones, 3 levels, 60 seconds." in first_prompt(True)
    assert "You have left" not in first_prompt(False)


def test_the_five_lines_of_the_readme():
    async def main() -> ramet.Tree:
        engine = ramet.ScriptedEngine(lambda prompt: "Answer: 4")
        return await ramet.run(
            "What is 2 + 2?", engine=engine, budget=ramet.Budget(tokens=4000, nodes=16, depth=3, seconds=60)
        )

    tree = anyio.run(main)
    assert (tree.answer, tree.usage.tokens, tree.usage.critical_path_tokens) == ("4", 3, 3)
    assert tree.nodes[0].stop == "answered"
    assert "3 of 4,000 tokens" in str(tree)


def test_seeds_depend_on_the_place_in_the_tree_and_not_on_scheduling():
    engine = ramet.ScriptedEngine(lambda prompt: "Answer: x")
    one, same, other = (TreeRun("q", TreeOptions(engine=engine, seed=seed)) for seed in (1, np.int64(1), 2))
    assert one.seed_for((0, 1), 2) == same.seed_for((0, 1), 2) != other.seed_for((0, 1), 2)
    assert one.seed_for((0, 1), 2) != one.seed_for((1, 0), 2)
    assert TreeRun("q", TreeOptions(engine=engine)).seed_for((), 0) is None


def test_a_question_too_long_for_the_window_is_a_clear_error_before_anything_starts():
    engine = ramet.ScriptedEngine(lambda prompt: "Answer: x")
    with pytest.raises(ramet.ConfigError, match=r"needs a window of [\d,]+ tokens; budget.window is 1,000"):
        in_virtual_time(TreeRun(words(3000), TreeOptions(engine=engine, budget=ramet.Budget(window=1000))).run)
    assert engine.prompts == []
