"""Functions from Python files: which ones, their time limits, and what they do wrong as text."""

from __future__ import annotations

import inspect
import threading
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import ramet
from ramet.errors import ConfigError
from ramet.inputs.functions import load_functions
from ramet.inputs.threads import Threads
from ramet.inputs.tools import Listed, as_function, bounded_schema, signature_of
from ramet.inputs.world import InputWorld, join_worlds
from ramet.interfaces import NodeObserver

TOOLS = '''
import sys, threading, time
from math import sqrt

hanging = threading.Event()

def add(a: int, b: int = 1) -> int:
    """The sum."""
    return a + b

async def later(text: str) -> str:
    return text.upper()

def fail():
    raise OSError("no disk")

def stop():
    return next(iter([]))

def leave():
    sys.exit(3)

def hang():
    hanging.wait()

def _hidden():
    pass
'''
WORLD = """
class World:
    def __init__(self):
        self.context = {"page": "whales"}
        self.functions = {"count": self.count}
        self.calls = 0
        self.nodes = []

    def count(self) -> int:
        self.calls += 1
        return self.calls

    def spawned(self, node):
        self.nodes.append(node.index)

    def ended(self, node):
        self.nodes.append(-node.index)

def helper():
    pass
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "tools.py").write_text(TOOLS)
    return str(tmp_path / "tools.py")


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def results(world: ramet.World, *calls: str, clones: int = 0) -> ramet.Tree:
    """A tree whose root makes these calls in one turn and answers with their results."""

    def script(prompt: ramet.Prompt) -> ramet.Reply:
        if prompt.depth == 0 and prompt.turn == 0:
            goals = ", ".join(f'"part {number}"' for number in range(clones))
            return ramet.Reply(
                text="".join([*calls, *([call("delegate", f'{{"goals": [{goals}]}}')] if clones else [])])
            )
        return ramet.Reply(text=f"Answer: {prompt.last}" if prompt.depth == 0 else "Answer: done")

    return anyio.run(partial(ramet.run, "Use them", engine=ramet.ScriptedEngine(script), world=world))


def test_the_public_functions_of_a_file_are_those_it_defines(file: str) -> None:
    world = load_functions(file, call_s=9)
    assert list(world.functions) == ["add", "later", "fail", "stop", "leave", "hang"]
    assert dict(world.context) == {}
    add = world.functions["add"]
    assert (str(inspect.signature(add)), add.__doc__) == ("(a: int, b: int = 1) -> int", "The sum.")
    assert list(load_functions(f"{file}:add", call_s=9).functions) == ["add"]


def test_what_a_function_does_wrong_is_text_and_siblings_go_on(file: str) -> None:
    world = load_functions(file, call_s=0.2)
    names = ["add", "later", "fail", "stop", "leave", "hang"]
    arguments = ['{"a": 2}', '{"text": "x"}', "{}", "{}", "{}", "{}"]
    tree = results(world, *map(call, names, arguments), clones=2)
    assert tree.answer is not None
    assert tree.answer.splitlines()[1:-1] == [
        "add: 3",
        "later: X",
        "fail: error: OSError: no disk",
        "stop: error: RuntimeError: StopIteration:",
        "leave: error: RuntimeError: the function called sys.exit(3)",
        "hang: error: TimeoutError: no result within 0.2 seconds",
        "clone 1.1: done",
        "clone 1.2: done",
    ]


def test_an_error_of_a_world_that_is_notified_of_nodes_names_the_class_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(WORLD.replace("class World", "class Shop").replace("self.nodes.append(node.index)", "self.stock"))
    world = join_worlds({"a": load_functions(f"{file}:Shop", call_s=9), "b": InputWorld({}, {})})
    with pytest.raises(ConfigError, match=r"^Shop\.spawned raised AttributeError in shop\.py, line 14: "):
        results(world)


def test_a_blocking_function_does_not_hold_up_the_event_loop() -> None:
    released = threading.Event()

    async def run() -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(Threads().run, released.wait)
            await anyio.lowlevel.checkpoint()
            released.set()  # from the event loop: it would never get here
        return "went on"

    assert anyio.run(run) == "went on"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_threads_that_hang_are_given_up_on_and_counted(backend: str) -> None:
    released = threading.Event()

    async def run() -> None:
        threads = Threads(most=2)
        for _ in range(2):
            with anyio.move_on_after(0.01):
                await threads.run(released.wait)
        with pytest.raises(RuntimeError, match="2 calls are still running"):
            await threads.run(released.wait)
        released.set()

    anyio.run(run, backend=backend)


def test_a_world_has_a_state_of_its_own_and_observes_nodes(tmp_path: Path) -> None:
    (tmp_path / "world.py").write_text(WORLD)
    one, other = (load_functions(str(tmp_path / "world.py"), call_s=9) for _ in range(2))
    for world in (one, other):
        tree = results(join_worlds({"file": world}), call("count"), clones=1)
        assert "count: 1\n" in (tree.answer or "")
        assert isinstance(world, NodeObserver)
        assert dict(world.context) == {"page": "whales"}


@pytest.mark.parametrize(
    ("source", "reference", "why"),
    [
        ("x = (", "", "SyntaxError in tools.py, line 1"),
        ("\n\nx = unknown", "", "NameError in tools.py, line 3: name 'unknown' is not defined"),
        ("import sys\nsys.exit(1)", "", "SystemExit in tools.py, line 2"),
        ("x = 1", "", "has no public function and no class World"),
        ("def f(): pass", ":g", "it has no g"),
        ("class World:\n    def __init__(self, x): pass", "", "cannot be made: TypeError"),
        ("class World:\n    functions = {}", "", "is not a world: it has no context"),
        ("class World:\n    functions, context = {'f': 5}, {}", "", "functions is a dict of functions by name"),
        ("class World:\n    functions, context = {}, {'a': 5}", "", "context is a dict of texts by key"),
        ("def delegate(): pass", "", "a function cannot be named delegate"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path, source: str, reference: str, why: str) -> None:
    file = tmp_path / "tools.py"
    file.write_text(source)
    with pytest.raises(ConfigError) as error:
        join_worlds({"tools.py": load_functions(f"{file}{reference}", call_s=1)})
    assert why in str(error.value)
    assert "\n" not in str(error.value)


def test_names_that_two_sources_have_are_refused(file: str) -> None:
    world = load_functions(file, call_s=1)
    with pytest.raises(ConfigError, match="two functions are named add: in a and in b"):
        join_worlds({"a": world, "b": world})
    with pytest.raises(ConfigError, match="two texts have the key 'x': a and b"):
        join_worlds({name: InputWorld({"x": name}, {}) for name in "ab"})


# Tools that are described by a schema.


@pytest.mark.parametrize(
    ("schema", "signature"),
    [
        ({"properties": {"b": {"type": "integer"}, "a": {}}, "required": ["a"]}, "(a, b: 'int' = None)"),
        ({"properties": "none", "required": 5}, "()"),
        ({"properties": {"class": {}}}, "(**arguments)"),
        ({"properties": {"arguments": {}, "x y": {}}}, "(arguments=None, **more_arguments)"),
        ("no schema", "(**arguments)"),
        ({"description": "d" * 100_000}, "(**arguments)"),
    ],
)
def test_any_schema_becomes_a_signature(schema: object, signature: str) -> None:
    assert str(signature_of(bounded_schema(schema))) == signature


def test_arguments_arrive_under_their_own_names() -> None:
    arrived: list[dict[str, Any]] = []

    async def take(arguments: Any) -> None:
        arrived.append(dict(arguments))

    schema = {"properties": {"arguments": {}, "x y": {}, "b": {}}, "required": ["b"]}
    function = as_function(Listed(name="f", about="", schema=schema), take)

    async def run() -> None:
        await function(1, 2, **{"x y": 3})
        await function(b=1)

    anyio.run(run)
    assert arrived == [{"b": 1, "arguments": 2, "x y": 3}, {"b": 1}]
