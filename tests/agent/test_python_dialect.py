"""Code cells: delegation as ordinary async Python, typed return values, mistakes as text."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import ramet
from ramet.agent.dialects.python import cell_in
from ramet.agent.returns import convert, parse_type
from ramet.errors import MalformedAction
from ramet.types import Prompt
from tests.agent.scripts import cell, gather, words


class Scales:
    """A world with a plain and an async function."""

    def __init__(self) -> None:
        self.context = {"north": "12 apples", "south": "30 pears"}
        self.functions = {"weigh": self.weigh, "fetch": self.fetch}
        self.weighed: list[str] = []

    def weigh(self, item: str, times: int = 1) -> int:
        """Grams of an item."""
        if not item:
            raise ValueError("nothing to weigh")
        self.weighed.append(item)
        return len(item) * times

    async def fetch(self, key: str) -> str:
        """Get a text."""
        await anyio.sleep(0.001)
        return f"text of {key}"


def run(script: object, *, world: Any = None, task: ramet.Task | None = None, **budget: object) -> ramet.Tree:
    engine = ramet.ScriptedEngine(script)  # pyright: ignore[reportArgumentType]
    limits = ramet.Budget(**({"tokens": 20_000, "depth": 3, "nodes": 40} | budget))  # pyright: ignore[reportArgumentType]

    async def work() -> ramet.Tree:
        return await ramet.run(task or "root", engine=engine, budget=limits, world=world, dialect="python")

    return anyio.run(work)


def run_root(*turns: str, child: str = "finish(context)", **more: object) -> ramet.Tree:
    """The root writes these turns; every child runs one cell."""

    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return cell(child)
        return turns[prompt.turn] if prompt.turn < len(turns) else cell("finish('end')")

    return run(script, **more)  # pyright: ignore[reportArgumentType]


def results(tree: ramet.Tree, turn: int = 1) -> str:
    return tree.root.pieces[2 * turn].text


# Parsing a turn.


def test_a_cell_is_found_between_tags_or_in_a_fence():
    assert cell_in("think <python>\nx = 1\n</python>") == "x = 1"
    assert cell_in("```python\nx = 1\n```") == "x = 1\n"
    assert cell_in("<python>\nx = 1") == "x = 1"  # servers strip the stop string
    assert cell_in("<think><python>no</python></think>fine") is None
    assert cell_in("no code") is None


def test_a_turn_without_a_cell_is_the_answer():
    tree = run_root("The answer is plain.\nAnswer: 12")
    assert (tree.answer, tree.root.stop) == ("12", ramet.Stop.ANSWERED)


def test_variables_persist_between_cells_and_output_is_shown():
    tree = run_root(cell("x = 20", "print('x is', x)"), cell("print(x + 1)"), cell("finish(x * 2)"))
    assert "[cell 1]\nx is 20" in results(tree, 1)
    assert "[cell 2]\n21" in results(tree, 2)
    assert tree.root.value == 40


# Delegating.


def test_children_run_in_parallel_and_return_values():
    tree = run_root(cell(gather(["a", "b", "c"]), "finish(parts)"), child="finish({'n': [1, 2.5, None, 'é']})")
    assert tree.root.value == [{"n": [1, 2.5, None, "é"]}] * 3
    assert tree.root.turns[0].children == [1, 2, 3]
    assert [node.goal for node in tree.nodes[1:]] == ["a", "b", "c"]


def test_chains_inside_one_cell_wait_only_for_what_they_need():
    code = [
        "import asyncio",
        "async def chain(name):",
        "    first = await delegate(name + '1')",
        "    return await delegate(name + '2', context=first)",
        "finish(await asyncio.gather(chain('a'), chain('b')))",
    ]
    tree = run_root(cell(*code), child="finish(f'{context}+') if context else finish('start')")
    assert tree.root.value == ["start+", "start+"]
    assert {node.goal for node in tree.nodes[1:]} == {"a1", "a2", "b1", "b2"}


def test_the_critical_path_follows_the_chain_and_not_the_width():
    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return cell("finish(1)") + " " + words(20)
        chain = "first = await delegate('x')"
        return cell(chain, gather(["y", "z"]), "finish(parts)")

    tree = run(script)
    child = tree.nodes[1].usage.tokens
    assert tree.usage.critical_path_tokens == tree.root.usage.tokens + 2 * child
    assert tree.usage.tokens == tree.root.usage.tokens + 3 * child


def test_delegation_nests():
    def script(prompt: Prompt) -> str:
        if prompt.depth == 3:
            return cell("finish(1)")
        return cell(gather([f"{prompt.goal}.l", f"{prompt.goal}.r"]), "finish(sum(parts))")

    assert run(script).root.value == 8


@pytest.mark.parametrize(
    ("wanted", "code", "value"),
    [
        ("int", "finish(7)", 7),
        ("int", "finish('7')", 7),
        ("'list[str]'", "finish(['a'])", ["a"]),
        ("'dict[str, float] | None'", "finish({'x': 1})", {"x": 1.0}),
    ],
)
def test_a_child_can_be_asked_for_a_type(wanted: str, code: str, value: object):
    tree = run_root(cell(f"finish(await delegate('count', returns={wanted}))"), child=code)
    assert tree.root.value == value
    assert "finish with a value of type" in tree.nodes[1].pieces[0].text


def test_a_value_of_the_wrong_type_is_an_error_the_child_can_correct():
    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return cell("finish('many')") if prompt.turn == 0 else cell("finish(3)")
        return cell("finish(await delegate('count', returns=int))")

    tree = run(script)
    assert tree.root.value == 3
    assert "finish wants int, got 'many'" in tree.nodes[1].pieces[2].text


def test_a_plain_answer_is_converted_too():
    def script(prompt: Prompt) -> str:
        return "Answer: 12" if prompt.depth else cell("finish(await delegate('count', returns=int) + 1)")

    assert run(script).root.value == 13


def test_types_are_parsed_and_never_evaluated():
    assert parse_type("list[int]") == list[int]
    assert parse_type(int) is int
    for text in ("__import__('os')", "list[open]", "1 + 1", "(" * 5000, ""):
        with pytest.raises(MalformedAction, match="not a type"):
            parse_type(text)
    with pytest.raises(MalformedAction, match="finish wants int"):
        convert("x", "int")


def test_context_is_passed_by_key_or_by_value():
    code = [
        "import asyncio",
        "parts = await asyncio.gather(delegate('k', context=['NORTH', 'nowhere']), delegate('v', context=[1, 2]),",
        "                             delegate('t', context='some text'), delegate('n'))",
        "finish(parts)",
    ]
    tree = run_root(cell(*code), world=Scales())
    assert tree.root.value == [{"north": "12 apples"}, [1, 2], "some text", {}]
    assert "Not available: nowhere" in tree.nodes[1].pieces[0].text
    assert "The variable context holds a text of 9 characters." in tree.nodes[3].pieces[0].text


def test_a_long_text_reaches_the_root_as_a_variable_and_not_as_prompt():
    book = "line\n" * 20_000
    task = ramet.Task(question="How many lines?", context={"book": book})
    tree = run_root(cell("finish(len(context['book'].splitlines()))"), task=task, window=2000)
    assert tree.root.value == 20_000
    assert "- book (100,000 characters)" in tree.root.pieces[0].text


# Mistakes.


@pytest.mark.parametrize(
    ("code", "reported"),
    [
        ("x = delegate('a')", "called without await"),
        ("print(delegate('a') + 1)", "called without await"),
        ("delegate('a')\nx = 5", "no clone was started"),
        ("1 / 0", "ZeroDivisionError"),
        ("x = (", "SyntaxError"),
        ("print(nothing)", "name 'nothing' is not defined"),
        ("await delegate()", "missing a required argument: 'goal'"),
        ("await delegate('a', colour=1)", "unexpected keyword argument 'colour'"),
        ("print(await delegate(''))", "[refused: a goal is a text"),
        ("print(await delegate('a', tokens=1))", "[refused: 1 tokens are too few"),
        ("print(await delegate('a', returns='os.system'))", "[refused: returns='os.system' is not a type"),
        ("weigh('')", "ValueError: nothing to weigh"),
        ("weigh(1, 2, 3)", "TypeError"),
        ("print(await fetch())", "TypeError"),
        ("fly()", "name 'fly' is not defined"),
        ("pass", "(no output)"),
    ],
)
def test_every_mistake_is_reported_and_the_node_continues(code: str, reported: str):
    tree = run_root(cell(code), world=Scales())
    assert reported in results(tree)
    assert tree.answer == "end"


def test_a_cell_that_forgets_await_starts_nothing():
    tree = run_root(cell("x = delegate('a')", "y = delegate('b')"))
    assert len(tree.nodes) == 1
    assert tree.root.turns[0].faults == 1


def test_a_refused_child_is_a_text_and_the_others_run():
    tree = run_root(cell(gather(["a", "b", "c"]), "finish(parts)"), nodes=3, child="finish('ok')")
    assert tree.root.value == ["ok", "ok", "[refused: no clones left of 2: do it yourself [goal: c]]"]
    assert [refusal.goal for refusal in tree.root.turns[0].refusals] == ["c"]


def test_a_child_without_an_answer_is_a_text():
    def script(prompt: Prompt) -> str:
        return "" if prompt.depth else cell("finish(await delegate('silent'))")

    tree = run(script, turns=2)
    assert tree.root.value == "[no answer, stopped by turns [goal: silent]]"


def test_a_partial_answer_is_returned_and_marked():
    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return cell("finish(5)") if prompt.closing else words(30_000)
        return cell("x = await delegate('talk')", "print(x)") if prompt.turn == 0 else cell("finish(x)")

    tree = run(script, reserve=50, window=100_000)
    assert tree.root.value == 5
    assert "[note]\npartial, stopped by budget: talk" in results(tree)


def test_a_value_too_large_to_return_is_an_error_the_child_can_correct():
    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return cell("finish('x' * 5000)") if prompt.turn == 0 else cell("finish('short')")
        return cell("finish(await delegate('a'))")

    tree = run(script, result_bytes=1000)
    assert tree.root.value == "short"
    assert "the value is 5,000 bytes as text; at most 1,000 go back" in tree.nodes[1].pieces[2].text


def test_an_object_of_a_class_of_its_own_is_an_error_the_child_can_correct():
    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return cell("class Spot: pass", "finish({'a': [Spot()]})") if prompt.turn == 0 else cell("finish('plain')")
        return cell("finish(await delegate('a'))")

    tree = run(script)
    assert tree.root.value == "plain"
    assert "finish with numbers, texts, lists and dicts, not with a Spot" in tree.nodes[1].pieces[2].text


@pytest.mark.parametrize(
    "last", [cell("finish(['x' * 5000])"), cell("print('x' * 5000)"), "x" * 5000, cell("class A: pass", "finish(A())")]
)
def test_what_a_child_returns_in_its_final_turn_is_cut_to_the_limit(last: str):
    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return last if prompt.closing else cell("pass")
        return cell("finish(len(await delegate('a')))")

    size = run(script, result_bytes=100, turns=3).root.value
    assert isinstance(size, int)
    assert 0 < size <= 100


def test_a_cell_cut_off_by_its_budget_is_not_run():
    def script(prompt: Prompt) -> str:
        if prompt.closing:
            return "Answer: stopped"
        return "<python>\nweigh('bad')\n" + words(30_000)

    world = Scales()
    tree = run(script, world=world, tokens=500, reserve=50)
    assert (tree.answer, world.weighed) == ("stopped", [])


# The world's functions.


def test_plain_and_async_functions_of_the_world_work_in_cells():
    world = Scales()
    code = cell(
        "a = weigh('ab', times=3)",
        "import asyncio",
        "b = await asyncio.gather(fetch('x'), fetch('y'))",
        "finish([a, b])",
    )
    tree = run_root(code, world=world)
    assert tree.root.value == [6, ["text of x", "text of y"]]
    assert "async fetch(key: str) -> str" in tree.root.pieces[0].text


class Shop:
    """Functions that return something to await: a plain wrapper, an object that is called, both with arguments set."""

    def __init__(self) -> None:
        self.context: dict[str, str] = {}
        self.functions: dict[str, Any] = {
            "wrapped": self.wrapped,
            "called": Price(),
            "set_async": partial(self.price, "a"),
            "set_plain": partial(self.wrapped, "a"),
            "set_called": partial(Price(), "a"),
        }
        self.asked = 0

    async def price(self, item: str) -> str:
        self.asked += 1
        await anyio.lowlevel.checkpoint()
        if item == "nothing":
            raise ValueError("nothing has no price")
        return f"price of {item}"

    def wrapped(self, item: str) -> Any:
        """A price."""
        return self.price(item)


class Price:
    """The price of an item."""

    async def __call__(self, item: str) -> str:
        await anyio.lowlevel.checkpoint()
        return f"price of {item}"


@pytest.mark.parametrize("name", Shop().functions)
def test_whatever_a_function_returns_can_be_awaited(name: str):
    call = f"{name}()" if name.startswith("set_") else f"{name}('a')"
    tree = run_root(cell(f"finish(await {call})"), world=Shop())
    assert tree.root.value == "price of a"


def test_calls_of_plain_functions_that_return_awaitables_run_together_and_fail_in_the_cell():
    code = cell(
        "import asyncio",
        "parts = await asyncio.gather(wrapped('a'), wrapped('nothing'), called('b'), return_exceptions=True)",
        "finish([str(part) for part in parts])",
    )
    tree = run_root(code, world=Shop())
    assert tree.root.value == ["price of a", "nothing has no price", "price of b"]


def test_an_object_with_an_async_call_is_described_as_async():
    tree = run_root(cell("finish(1)"), world=Shop())
    assert "async called(item: str) -> str" in tree.root.pieces[0].text
    assert "\nwrapped(item: str)" in tree.root.pieces[0].text


def test_what_a_cell_does_not_await_is_not_run():
    """Python would warn of a coroutine that was never awaited, which fails a test."""
    world = Shop()
    tree = run_root(cell("wrapped('a')", "x = 1 / 0"), cell("wrapped('b')", "finish(1)"), world=world)
    assert tree.root.value == 1
    assert world.asked == 0


def test_a_call_that_returns_an_awaitable_counts_once():
    code = cell("finish([await wrapped('a'), await wrapped('b')])")
    assert run_root(code, world=Shop(), max_calls=2).root.value == ["price of a", "price of b"]
    tree = run_root(code, world=Shop(), max_calls=1)
    assert tree.root.value != ["price of a", "price of b"]
    assert "1 call" in results(tree)


def test_two_trees_can_share_one_dialect():
    async def work() -> list[object]:
        engine = ramet.ScriptedEngine(lambda prompt: cell("finish(1)"))
        dialect = ramet.PythonDialect()
        values: list[object] = []

        async def run_tree() -> None:
            values.append((await ramet.run("q", engine=engine, dialect=dialect)).root.value)

        for _ in range(2):  # the second time after the workers were released
            async with anyio.create_task_group() as group:
                group.start_soon(run_tree)
                group.start_soon(run_tree)
        return values

    assert anyio.run(work) == [1, 1, 1, 1]
