"""The dialect `native`: tools and calls as a server with tool calling has them, trees as in the dialect `tools`."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet import Budget, ConfigError, Message, Prompt, Reply, ScriptedEngine, Task, Tree
from ramet.agent.dialects.native import tool_names
from ramet.types import Completion, Meter, ToolCall

WIDE = 60_000  # tokens: a window that is never short


class Calculator:
    """A world with a plain function, an async one, and one whose name no server accepts."""

    def __init__(self) -> None:
        self.context: Mapping[str, str] = {"Ada": "Born 1815.", "Alan": "Born 1912."}
        self.functions: Mapping[str, Callable[..., Any]] = {
            "add": self.add,
            "later": self.later,
            "text.upper": str.upper,
        }

    def add(self, a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    async def later(self, word: str) -> str:
        """The word, a little later."""
        await asyncio.sleep(0)
        return word


def play(script: Callable[[Prompt], str | Reply], **how: Any) -> tuple[Tree, list[Prompt]]:
    engine = ScriptedEngine(script, token_ids=False)
    settings: dict[str, Any] = {"budget": Budget(window=WIDE), "dialect": "native", "world": Calculator()} | how
    task = Task(question="root", context={"Ada": "Born 1815.", "Alan": "Born 1912."})
    return asyncio.run(ramet.run(task, engine=engine, **settings)), engine.prompts


def test_delegate_and_functions_are_tools_with_schemas():
    _, prompts = play(lambda _: "Answer: 1")
    names = [tool["function"]["name"] for tool in prompts[0].tools]
    assert names == ["delegate", "add", "later", "text_upper"]
    assert {tool["type"] for tool in prompts[0].tools} == {"function"}
    add = prompts[0].tools[1]["function"]
    assert add["description"] == "Add two numbers."
    assert add["parameters"]["required"] == ["a"]
    assert prompts[0].tools[0]["function"]["parameters"]["required"] == ["goals"]


def test_a_node_that_may_not_delegate_has_no_such_tool():
    _, prompts = play(lambda _: "Answer: 1", budget=Budget(depth=0, window=WIDE))
    assert [tool["function"]["name"] for tool in prompts[0].tools] == ["add", "later", "text_upper"]


def test_every_call_has_its_result_by_id_and_parallel_calls_keep_their_order():
    def script(prompt: Prompt) -> Reply | str:
        if prompt.depth:
            return f"Answer: {prompt.goal}!"
        if prompt.turn:
            return "Answer: done"
        calls = [("add", {"a": 2, "b": 3}), ("delegate", {"goals": ["x", "y"]}), ("later", {"word": "hi"})]
        return Reply(text="Let me see.", calls=calls)

    tree, prompts = play(script)
    assert tree.answer == "done"
    asked, *results = prompts[-1].messages[2:]
    assert asked.content == "Let me see."
    assert [call.name for call in asked.calls] == ["add", "delegate", "later"]
    assert [(message.role, message.call_id) for message in results] == [("tool", call.id) for call in asked.calls]
    assert [message.content for message in results] == ["5", "clone 1.1: x!\nclone 1.2: y!", "hi"]


def test_calls_and_tools_are_in_the_record_of_the_node():
    def script(prompt: Prompt) -> Reply | str:
        return "Answer: 3" if prompt.turn else Reply(calls=[("add", {"a": 2})])

    tree, _ = play(script)
    opening, turn, results, last = tree.root.pieces
    assert '"name": "add"' in opening.text
    assert turn.text == '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
    assert results.text == "<tool_response>\n3\n</tool_response>"
    assert last.text == "Answer: 3"


def test_a_name_that_servers_refuse_is_changed_and_changed_back():
    def script(prompt: Prompt) -> Reply | str:
        return f"Answer: {prompt.last}" if prompt.turn else Reply(calls=[("text_upper", {"self": "a"})])

    assert tool_names({"a.b": len, "a/b": len, "delegate": len}) == {
        "a_b": "a.b",
        "a_b_2": "a/b",
        "delegate": "delegate",
    }
    tree, prompts = play(script)
    assert prompts[-1].messages[-1].role == "tool"
    assert tree.root.turns[0].faults == 1  # str.upper takes its argument by position only
    assert "text.upper" in prompts[-1].last


def test_calls_that_a_model_writes_as_text_are_carried_out_too():
    def script(prompt: Prompt) -> str:
        if prompt.turn:
            return "Answer: ok"
        return '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'

    tree, prompts = play(script)
    assert tree.root.turns[0].faults == 0
    assert prompts[-1].messages[-1] == Message("user", "<tool_response>\nadd: 2\n</tool_response>")


def test_text_beside_native_calls_is_never_a_call():
    def script(prompt: Prompt) -> Reply | str:
        quoted = '<tool_call>{"name": "delegate", "arguments": {"goals": ["no"]}}</tool_call>'
        return "Answer: ok" if prompt.turn else Reply(text=quoted, calls=[("add", {"a": 1})])

    tree, _ = play(script)
    assert len(tree.nodes) == 1


class OneTurn:
    """An engine that gives fixed completions: what a server may return."""

    def __init__(self, *completions: Completion) -> None:
        self.renderer = ramet.TextRenderer()
        self.completions = list(completions)
        self.prompts: list[Prompt] = []

    async def sample(self, prompt: Prompt, *, max_tokens: int, meter: Meter | None = None, **how: Any) -> Completion:
        del how, max_tokens
        self.prompts.append(prompt)
        completion = self.completions.pop(0)
        if meter is not None:
            meter.tokens = completion.num_tokens
        return completion


def respond(*completions: Completion, **how: Any) -> tuple[Tree, OneTurn]:
    engine = OneTurn(*completions)
    run = ramet.run("root", engine=engine, dialect="native", world=Calculator(), budget=Budget(window=WIDE), **how)
    return asyncio.run(run), engine


def calls(*arguments: str, finish: Any = "stop", text: str = "", thoughts: str = "") -> Completion:
    made = tuple(ToolCall(id=f"c{i}", name="add", arguments=text) for i, text in enumerate(arguments))
    return Completion(text=text, calls=made, num_tokens=9, finish=finish, thoughts=thoughts)


ANSWER = Completion(text="Answer: 7", num_tokens=3, finish="stop")


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ('{"a": 6}', "7"),
        ('{"a": 6', "7"),  # repaired
        ("", "missing a required argument"),
        ("[6]", "are an object"),
        ('{"b": 6}', "missing a required argument"),
        ('{"a": 6, "z": 1}', "unexpected keyword"),
    ],
)
def test_what_a_model_gets_wrong_is_the_result_of_that_call(arguments: str, result: str):
    tree, engine = respond(calls(arguments, '{"a": 1}'), ANSWER)
    first, second = engine.prompts[-1].messages[-2:]
    assert result in first.content
    assert second.content == "2"
    assert tree.root.turns[0].faults == (0 if result == "7" else 1)


@pytest.mark.parametrize("arguments", ['{"a": 6', "", '{"a"'])
def test_a_call_that_was_cut_off_is_not_carried_out(arguments: str):
    _, engine = respond(calls('{"a": 1}', arguments, finish="length"), ANSWER)
    first, second = engine.prompts[-1].messages[-2:]
    assert (first.content, second.content) == ("2", "tool_call: the turn was cut off before this call was complete")


def test_reasoning_is_in_the_record_and_not_sent_back():
    tree, engine = respond(calls('{"a": 6}', thoughts="Hm, six."), ANSWER)
    assert tree.root.pieces[1].text.startswith("<think>\nHm, six.\n</think>\n<tool_call>")
    assert all("Hm" not in message.content for message in engine.prompts[-1].messages)
    assert tree.usage.tokens == 12


def test_a_closing_turn_with_calls_starts_nothing_and_its_text_is_the_answer():
    closing = Completion(text="Answer: 7", calls=calls('{"a": 1}').calls, num_tokens=3, finish="stop")
    budget = Budget(window=WIDE, turns=2)
    engine = OneTurn(calls('{"a": 6}'), closing)
    tree = asyncio.run(ramet.run("root", engine=engine, dialect="native", world=Calculator(), budget=budget))
    assert (tree.answer, tree.root.stop) == ("7", ramet.Stop.TURNS)
    assert engine.prompts[-1].messages[-1].role == "user"
    assert engine.prompts[-1].messages[-2].role == "tool"
    assert engine.prompts[-1].closing


def test_when_no_result_fits_calls_become_text_and_the_node_still_answers():
    many = calls(*['{"a": 1}'] * 40)
    engine = OneTurn(many, ANSWER)
    budget = Budget(window=2300, tokens=600, depth=0)
    tree = asyncio.run(ramet.run("root", engine=engine, dialect="native", world=Calculator(), budget=budget))
    assert tree.answer == "7"
    roles = [message.role for message in engine.prompts[-1].messages]
    needed = sum(len(message.calls) for message in engine.prompts[-1].messages)
    assert roles.count("tool") == needed


def test_native_needs_an_engine_that_takes_messages():
    engine = ScriptedEngine(lambda _: "Answer: 1")
    with pytest.raises(ConfigError, match="leave out the tokenizer, or use tools"):
        asyncio.run(ramet.run("root", engine=engine, dialect="native"))


# Token ids of servers that report them for messages.


def sampled(text: str, prompt: tuple[int, ...], ids: tuple[int, ...]) -> Completion:
    made = calls('{"a": 1}').calls if text == "call" else ()
    return Completion(
        text="" if made else text,
        calls=made,
        token_ids=ids,
        logprobs=(-0.5,) * len(ids),
        prompt_ids=prompt,
        num_tokens=len(ids),
        finish="stop",
    )


def test_ids_that_a_server_reports_are_kept_with_the_prompt_they_belong_to():
    tree, _ = respond(sampled("call", (1, 2, 3), (4, 5)), sampled("Answer: 7", (1, 2, 3, 4, 5, 6), (7,)))
    assert [piece.token_ids for piece in tree.root.pieces] == [(1, 2, 3), (4, 5), (6,), (7,)]
    assert tree.root.mask == [False] * 3 + [True] * 2 + [False, True]


@pytest.mark.parametrize(
    "second", [sampled("Answer: 7", (1, 2, 9, 6), (7,)), sampled("Answer: 7", (), (7,)), ANSWER], ids=str
)
def test_a_template_that_rewrites_the_past_leaves_no_ids(second: Completion):
    tree, _ = respond(sampled("call", (1, 2, 3), (4, 5)), second)
    assert tree.root.token_ids == []
    assert tree.answer == "7"


# Native and text dialects agree.


def policy(seed: int, *, native: bool) -> Callable[[Prompt], Reply]:
    """A random policy that depends on the place in the tree only, written in either dialect."""

    def script(prompt: Prompt) -> Reply:
        rng = random.Random(repr((seed, prompt.goal, prompt.turn, prompt.closing)))
        text = rng.choice(["", "Let me see.", "One thing\nand another."])
        if prompt.closing or rng.random() < (0.3 if prompt.depth else 0.1):
            return Reply(text=f"{text} Answer: {rng.randrange(100)}")
        made = [random_call(rng, prompt.goal) for _ in range(rng.randint(1, 3))]
        reply = Reply(text=text, calls=made)
        return reply if native else Reply(text=reply.written)

    return script


def random_call(rng: random.Random, goal: str) -> tuple[str, dict[str, Any]]:
    kind = rng.randrange(6)
    if kind < 3:
        goals: list[Any] = [f"{goal}.{rng.randrange(9)}" for _ in range(rng.randint(1, 3))]
        more = rng.choice(
            [{}, {"tokens": [rng.randrange(400)]}, {"context": ["ada"]}, {"odd": 1}, {"returns": ["int"]}]
        )
        return "delegate", {"goals": rng.choice([goals, goal, 7, []]) if rng.random() < 0.2 else goals, **more}
    if kind == 3:
        return "add", rng.choice([{"a": 1}, {"a": "x"}, {"b": 2}, {"a": 1, "b": 2}])
    return rng.choice([("later", {"word": "w"}), ("nothing", {}), ("later", {})])


def facts(tree: Tree) -> list[Any]:
    """A tree without times, and without the wording of messages."""
    return [
        (
            node.goal,
            node.path,
            node.grant,
            node.stop,
            node.answer,
            node.usage.tokens,
            node.usage.lost_tokens,
            node.usage.critical_path_tokens,
            [
                (turn.tokens, turn.finish, turn.closing, turn.children, turn.refusals, turn.repairs, turn.faults)
                for turn in node.turns
            ],
        )
        for node in tree.nodes
    ]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    tokens=st.integers(60, 8000),
    nodes=st.sampled_from([1, 3, 6, 9, 12]),
    depth=st.sampled_from([0, 1, 1, 2, 3]),  # most trees have clones, whose grants are compared
    turns=st.sampled_from([1, 2, 3, 4, 5, 5]),
    max_calls=st.none() | st.integers(1, 2),
)
def test_the_same_policy_gives_the_same_tree_in_native_and_in_tools(
    seed: int, tokens: int, nodes: int, depth: int, turns: int, max_calls: int | None
):
    budget = Budget(tokens=tokens, nodes=nodes, depth=depth, turns=turns, window=WIDE, max_calls=max_calls)
    native, prompts = play(policy(seed, native=True), budget=budget)
    text, _ = play(policy(seed, native=False), budget=budget, dialect="tools")
    assert facts(native) == facts(text)
    assert native.usage.tokens + native.usage.lost_tokens <= tokens
    for prompt in prompts:
        check_messages(prompt)


def check_messages(prompt: Prompt) -> None:
    """Every call has exactly one result, right after it, and every result belongs to a call."""
    messages = list(prompt.messages)
    for place, message in enumerate(messages):
        after = messages[place + 1 : place + 1 + len(message.calls)]
        assert [(one.role, one.call_id) for one in after] == [("tool", call.id) for call in message.calls]
        assert all(isinstance(json.loads(call.arguments), dict) for call in message.calls[:-1])
    assert sum(len(message.calls) for message in messages) == sum(message.role == "tool" for message in messages)
