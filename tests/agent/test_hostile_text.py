"""What a model writes, and what a user's function raises, becomes text on the node; limits in bytes hold exactly."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramet
from ramet.agent.cells.printed import Printed
from ramet.agent.dialects.tools import parse_calls, split_calls
from ramet.agent.reading import QUICK, NotQuick, Repairs
from ramet.agent.returns import convert, parse_type, read_answer
from ramet.agent.sandbox import LIMIT, Sandbox
from ramet.agent.spawn import MAX_MISSING, look_up
from ramet.agent.values import brief, measure
from ramet.agent.wording import as_text, cut, head
from ramet.errors import MalformedAction
from ramet.types import Prompt, Stop, Tree
from tests.agent.scripts import call, cell, delegate

WIDE = "é漢🌱e\u0301👩\u200d👩"
DEEP: Any = 1
for _ in range(100_000):  # Python 3.13 writes 10,000 levels
    DEEP = [DEEP]


class Raising:
    """A world whose functions raise."""

    def __init__(self, error: Exception) -> None:
        def search(query: str) -> str:
            """Find."""
            return query.lower()

        def broken() -> None:
            """Raise."""
            raise error

        async def later() -> None:
            """Raise, too."""
            raise error

        self.functions: Mapping[str, Callable[..., Any]] = {"search": search, "broken": broken, "later": later}
        self.context: Mapping[str, str] = {}


def play(replies: Sequence[str], *, dialect: str = "tools", world: Any = None, **budget: Any) -> Tree:
    """A tree whose root writes these replies; clones and later turns answer."""
    left = list(reversed(replies))

    def script(prompt: Prompt) -> str:
        return left.pop() if left and prompt.depth == 0 else ("= ok" if dialect == "terse" else "Answer: ok")

    async def run() -> Tree:
        engine = ramet.ScriptedEngine(script)
        limits = ramet.Budget(**{"tokens": 50_000, "nodes": 4, "depth": 1, "window": 40_000, **budget})
        return await ramet.run("q", engine=engine, dialect=dialect, world=world, budget=limits)

    return anyio.run(run)


def results_of(tree: Tree, message: int = 3) -> str:
    """What the root read after its first turn."""
    return tree.root.messages[message].content


# Text.


@pytest.mark.parametrize("token_ids", [True, False])
def test_half_characters_are_replaced_in_goals_keys_names_and_answers(token_ids: bool) -> None:
    replies = iter(
        [
            '<tool_call>{"name": "delegate", "arguments": {"goals": ["a\\ud800"], "context": ["\\udfff"]}}</tool_call>',
            "clone \ud800",
            '<tool_call>{"name": "no\\ud800", "arguments": {"\\ud800": 1}}</tool_call>',
            "Answer: x\udfff",
        ]
    )

    async def run() -> Tree:
        engine = ramet.ScriptedEngine(lambda _: next(replies), token_ids=token_ids)
        return await ramet.run("q", engine=engine, budget=ramet.Budget(tokens=50_000, nodes=3, depth=1, window=40_000))

    tree = anyio.run(run)
    assert (tree.nodes[1].goal, tree.nodes[1].answer) == ("a\ufffd", "clone \ufffd")
    assert "unknown context keys: \ufffd" in results_of(tree)
    assert "there is no tool 'no\ufffd'" in results_of(tree, 5)
    assert tree.answer == "x\ufffd"


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ('{"name": "delegate", "arguments": {"goals": ' + "[" * 500 + "]" * 500 + "}}", "nested more than 100 levels"),
        ('{"a":[' * 500, "nested"),
        ("[" + "1" * 5000 + "]", "not valid JSON (Exceeds the limit"),
        ('"' * 60_000, "too long to be repaired"),
    ],
)
def test_a_call_that_cannot_be_read_is_a_fault_with_the_reason(block: str, reason: str) -> None:
    (fault,) = parse_calls(f"<tool_call>{block}</tool_call>", finish="stop")
    assert isinstance(fault, MalformedAction)
    assert reason in str(fault)
    assert len(str(fault).encode()) < 600


@given(st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "a", '{"name": "f"}', "\n"]), max_size=12))
def test_blocks_are_found_as_by_the_pattern(parts: list[str]) -> None:
    import re

    text = "".join(parts)
    pattern = re.compile("<tool_call>(.*?)</tool_call>", re.DOTALL)
    blocks, outside, unclosed = split_calls(text)
    assert blocks == pattern.findall(text)
    rest = pattern.sub("", text)
    assert outside == rest.partition("<tool_call>")[0]
    assert (unclosed is not None) == ("<tool_call>" in rest)


def test_thousands_of_calls_are_read_in_time_that_grows_with_their_number() -> None:
    began = time.thread_time()
    calls = parse_calls("<tool_call>" * 50_000, finish="stop")
    assert len(calls) == 1
    calls = parse_calls('<tool_call>{"name": "f"}</tool_call>' * 5000, finish="stop")
    assert len(calls) == 1001
    assert "at most 1,000 calls; 5,000 were written" in str(calls[-1])
    assert time.thread_time() - began < 2  # with the square of the number: minutes


def test_much_broken_json_is_repaired_in_another_thread_and_too_much_not_at_all() -> None:
    broken = '{"a": "' + "x" * QUICK
    with pytest.raises(NotQuick):
        Repairs(quick=True).repair(broken)
    assert Repairs().repair(broken) == {"a": "x" * QUICK}
    goal = "y" * 2 * QUICK
    tree = play([f'<tool_call>{{"name": "delegate", "arguments": {{"goals": ["{goal}"]</tool_call>'])
    assert tree.nodes[1].goal == goal
    assert tree.root.turns[0].repairs == 1
    repairs = Repairs()
    for _ in range(32):
        assert repairs.repair("{'a': 1") == {"a": 1}
    with pytest.raises(MalformedAction, match="too long"):
        repairs.repair("{'a': 1")


def test_huge_values_are_named_and_not_written_out() -> None:
    shared: Any = [0] * 10
    for _ in range(9):
        shared = [shared] * 10
    circle: list[Any] = []
    circle.append(circle)
    for value in (shared, circle, DEEP, 10**5000, ["x" * (1 << 25)]):
        with pytest.raises(MalformedAction):
            measure(value)
    assert brief(shared) == "a list of 10 items"
    assert brief(10**5000) == "a number of more than 4,000 digits"
    assert as_text(10**5000) == "a number of more than 4,000 digits"
    assert as_text(DEEP) == "a list of 1 items"
    assert as_text("\ud800") == "\ufffd"


ODD_TYPES = ["dict[int]", "list[" * 199 + "int" + "]" * 199, 10**5000, [10**5000], DEEP, {"a": 1}]


@pytest.mark.parametrize("wanted", ODD_TYPES, ids=range(len(ODD_TYPES)))
def test_an_odd_type_is_refused_with_a_reason(wanted: object) -> None:
    with pytest.raises(MalformedAction, match="is not a type ramet knows"):
        parse_type(wanted)


def test_values_that_do_not_fit_their_type_are_refused() -> None:
    for value, wanted in [(10**5000, "str"), ({(1, 2): 3}, "dict[list[int], int]"), ([[1]], "set[list[int]]")]:
        with pytest.raises(MalformedAction):
            convert(value, wanted)
    with pytest.raises(MalformedAction, match="at most 100,000 are read"):
        read_answer("[" + "1," * 60_000 + "1]", "list[int]")


def test_only_the_first_unknown_keys_are_named() -> None:
    _, missing = look_up({}, [*range(40), 10**5000, "\ud800"])
    assert missing[:2] == ("0", "1")
    assert missing[MAX_MISSING:] == ("and 10 more",)


# Functions of the user.


class OddError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (AttributeError("'int' object has no attribute 'lower'"), "error: AttributeError: 'int' object has no"),
        (ValueError("no such page"), "error: no such page"),
        (OddError(), "error: OddError: <exception str() failed>"),
        (MemoryError("a\nb"), "error: MemoryError: a b"),
        (RuntimeError("\ud800" + "x" * 10**6), "error: RuntimeError: \ufffdxxx"),
    ],
)
@pytest.mark.parametrize("name", ["broken", "later"])
def test_whatever_a_function_raises_is_text_for_the_model(error: Exception, text: str, name: str) -> None:
    tree = play([call(name)], world=Raising(error))
    assert f"{name}: {text}" in results_of(tree)
    assert len(results_of(tree)) < 3000
    assert (tree.root.stop, tree.root.turns[0].faults) == (Stop.ANSWERED, 1)


def test_an_argument_of_the_wrong_type_is_text_in_both_dialects() -> None:
    world = Raising(ValueError())
    assert "AttributeError: 'int' object has no attribute 'lower'" in results_of(
        play([call("search", query=5)], world=world)
    )
    tree = play([cell("search(query=5)")], dialect="python", world=world)
    assert "AttributeError: 'int' object has no attribute 'lower'" in results_of(tree)


def test_a_cell_can_catch_what_a_function_raises() -> None:
    code = "try:\n    broken()\nexcept RuntimeError as e:\n    print('caught', e)"
    tree = play([cell(code)], dialect="python", world=Raising(MemoryError("full")))
    assert "caught MemoryError: full" in results_of(tree)


def test_a_configuration_error_of_a_world_ends_the_run() -> None:
    with pytest.raises(ramet.ConfigError, match="no index"):
        play([call("broken")], world=Raising(ramet.ConfigError("no index")))


# Requests in cells.


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ("delegate('x', tokens=-10**5000)", "a number of more than 4,000 digits"),
        ("delegate(10**5000)", "a number has more than 4,000 digits"),
        ("delegate('x', returns='dict[int]')", "is not a type ramet knows"),
        ("delegate('x', context=[[[0]] * 1000] * 1000)", "the value is too large"),
        ("delegate('x', context='y' * 9 * 10**6, tokens=[10**5000])", "4,000 digits"),
    ],
)
def test_an_impossible_request_is_refused_with_the_reason(request_: str, reason: str) -> None:
    tree = play([cell(f"try:\n    print(await {request_})\nexcept ValueError as e:\n    print(e)")], dialect="python")
    assert reason.split()[-1] in results_of(tree)
    assert len(tree.nodes) == 1


def test_the_arguments_of_all_calls_of_a_cell_are_bounded_together() -> None:
    tree = play([cell("for i in range(300): delegate('x', context='y' * 4_000_000)")], dialect="python")
    assert "the arguments of all calls of a cell have at most 33,554,432 bytes" in results_of(tree)


async def parts_of_a_cell(seconds: float) -> tuple[str, int]:
    """A cell that works and waits in turn, with the limit; its error, and how many parts it ran."""
    async with Sandbox(workers=1, seconds=seconds) as sandbox:
        interpreter = sandbox.interpreter({}, deferred=frozenset({"wait"}))
        state = await interpreter.start("while True:\n    for i in range(200_000): pass\n    await wait()")
        parts = 0
        while state.parked is not None:
            parts += 1
            state = await interpreter.resume(state.parked, dict.fromkeys(state.pending))
        return state.error or "", parts


def test_the_running_time_of_a_cell_is_counted_over_all_its_parts() -> None:
    error, parts = anyio.run(parts_of_a_cell, 0.5)
    assert LIMIT in error
    assert 0 < parts < 500


# Bytes.


@given(st.text(st.sampled_from(WIDE + "ab\ud800"), max_size=200), st.integers(0, 120))
def test_a_cut_text_has_at_most_the_bytes_it_may_have(text: str, limit: int) -> None:
    for short in (cut(text, limit), head(text, limit)):
        assert len(short.encode()) <= limit
    assert cut(text, 10_000) == text.replace("\ud800", "\ufffd")


@given(
    st.lists(st.text(st.sampled_from(WIDE + "ab\n"), max_size=60), max_size=6), st.integers(0, 150), st.integers(0, 99)
)
def test_the_output_of_a_cell_has_at_most_the_bytes_it_may_have(chunks: list[str], limit: int, less: int) -> None:
    printed = Printed(limit)
    for chunk in chunks:
        printed("stdout", chunk)
    whole = "".join(chunks)
    assert len(printed.text.encode()) <= limit
    assert len(printed.within(max(0, limit - less)).encode()) <= max(0, limit - less)
    if len(whole.encode()) <= limit:
        assert printed.text == whole
    elif limit > 60:
        assert printed.text.endswith(f"({len(whole)} characters in all)")


@pytest.mark.parametrize("code", [f"print('{WIDE}' * 900)", f"raise ValueError('{WIDE}' * 900)"])
@pytest.mark.parametrize("more", ["", f"\nraise KeyError('{WIDE}' * 900)", "\ndelegate('x')"])
def test_output_and_errors_of_a_cell_share_output_bytes(code: str, more: str) -> None:
    tree = play([cell(code + more)], dialect="python", output_bytes=700)
    shown = results_of(tree).removeprefix("[cell 1]\n")
    assert 500 < len(shown.encode()) <= 700
    if "Error" in more:
        assert "Error" in shown


@pytest.mark.parametrize("dialect", ["tools", "tools-returns", "terse", "python"])
def test_an_answer_goes_back_in_at_most_result_bytes(dialect: str) -> None:
    long = WIDE * 500
    root = {"terse": "> part", "python": cell("r = await delegate('part')\nprint(len(r.encode()), r[:40])")}
    clone = {"terse": f"= {long}"}.get(dialect, f"Answer: {long}")

    async def run() -> Tree:
        def script(prompt: Prompt) -> str:
            if prompt.depth:
                return clone
            return root.get(dialect, delegate("part")) if prompt.turn == 0 else "= ok"

        engine = ramet.ScriptedEngine(script)
        budget = ramet.Budget(tokens=90_000, nodes=4, depth=1, window=80_000, result_bytes=333, output_bytes=4000)
        return await ramet.run("q", engine=engine, dialect=dialect, budget=budget)

    text = results_of(anyio.run(run))
    if dialect == "python":
        assert 300 < int(text.removeprefix("[cell 1]\n").split()[0]) <= 333
    else:
        answer = text.removeprefix("< ").partition("clone 1.1: ")[2] or text.removeprefix("< ")
        answer = answer.partition("\n</tool_response>")[0]
        assert 300 < len(answer.encode()) <= 333


@pytest.mark.parametrize("dialect", ["tools", "python"])
def test_the_value_of_a_function_is_shown_in_at_most_output_bytes(dialect: str) -> None:
    class World:
        functions: Mapping[str, Callable[..., Any]] = {"wide": lambda: WIDE * 900}
        context: Mapping[str, str] = {}

    turn = call("wide") if dialect == "tools" else cell("print(wide())")
    text = results_of(play([turn], dialect=dialect, world=World(), output_bytes=600))
    shown = text.removeprefix("[cell 1]\n").removeprefix("<tool_response>\nwide: ").removesuffix("\n</tool_response>")
    assert 550 < len(shown.encode()) <= 600
