"""asyncio in cells, with real clones: results, budgets, cancellation and errors as Python defines them."""

from __future__ import annotations

import re
from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest

import ramet
from ramet.agent.cells.rewrite import rewrite
from ramet.agent.options import TreeOptions
from ramet.agent.sandbox import Sandbox
from ramet.agent.tree import TreeRun
from ramet.engine.scripted import Reply
from ramet.types import Prompt
from tests.agent.scripts import cell

HOURS = 10_000.0  # a clone that takes this long never answers in a test


class Board:
    """A world with a plain and an async function."""

    def __init__(self) -> None:
        self.context: dict[str, str] = {}
        self.functions = {"write": self.write, "ask": self.ask}
        self.written: list[object] = []

    def write(self, text: object) -> None:
        """Write it down."""
        self.written.append(text)

    async def ask(self, text: str) -> str:
        """Ask."""
        await anyio.lowlevel.checkpoint()
        return text.upper()


def clone(prompt: Prompt) -> str | Reply:
    """`slow` goals never end, `bad` ones finish with a text that is no number, others with their goal."""
    if "slow" in prompt.goal:
        return Reply(text="word " * 50 + cell("finish('late')"), seconds=HOURS)
    return cell(f"finish({prompt.goal!r})")


def run(*cells: str, child: Callable[[Prompt], str | Reply] = clone, **more: object) -> tuple[TreeRun, Board]:
    """A root that runs these cells, then finishes with `end`. The ledger is checked."""

    def script(prompt: Prompt) -> str | Reply:
        if prompt.depth:
            return child(prompt)
        return cell(cells[prompt.turn]) if prompt.turn < len(cells) else cell("finish('end')")

    world = Board()
    engine = ramet.ScriptedEngine(script)
    budget = ramet.Budget(**({"tokens": 20_000, "depth": 2, "nodes": 40} | more))  # pyright: ignore[reportArgumentType]
    tree_run = TreeRun("root", TreeOptions(engine=engine, budget=budget, world=world, dialect="python"))
    tree = anyio.run(tree_run.run)
    used = tree.usage
    assert used.tokens == engine.generated
    assert (tree_run.ledger.open, engine.running) == (0, 0)
    assert tree_run.ledger.tokens + used.tokens + used.lost_tokens == budget.tokens
    assert tree_run.ledger.nodes + len(tree.nodes) == budget.nodes
    return tree_run, world


def value(*cells: str, **more: object) -> object:
    """What the root finishes with."""
    tree = run(*cells, **more)[0].tree  # pyright: ignore[reportArgumentType]
    assert tree.root.stop is ramet.Stop.ANSWERED
    return tree.root.value


def shown(tree_run: TreeRun, turn: int = 1) -> str:
    return tree_run.tree.root.pieces[2 * turn].text.split(f"[cell {turn}]\n")[1].split("<|im_end|>")[0]


# create_task.


def test_a_task_runs_while_the_cell_goes_on():
    code = """
import asyncio
async def chain(name):
    first = await delegate(name + '1')
    return first + await delegate(name + '2')
a = asyncio.create_task(chain('a'))
b = asyncio.create_task(delegate('b'))
write(a.done())
c = await delegate('c')
write([c, await b, await a, a.done(), a.result()])
finish(await a)
"""
    tree_run, world = run(code)
    assert world.written == [False, ["c", "b", "a1a2", True, "a1a2"]]
    assert tree_run.tree.root.value == "a1a2"
    assert [node.goal for node in tree_run.tree.nodes[1:4]] == ["b", "c", "a1"] or len(tree_run.tree.nodes) == 5
    assert tree_run.tree.root.turns[0].children == [1, 2, 3, 4]


def test_tasks_that_are_not_awaited_end_with_their_cell_and_can_be_read_in_the_next():
    assert value("import asyncio\nt = asyncio.create_task(delegate('a'))", "finish([t.done(), await t])") == [True, "a"]


def test_an_error_in_a_task_is_raised_where_it_is_awaited():
    code = """
import asyncio
async def bad():
    await delegate('a')
    raise ValueError('broken')
t = asyncio.create_task(bad())
try:
    await t
except ValueError as error:
    finish([str(error), str(t.exception()), t.cancelled()])
"""
    assert value(code) == ["broken", "broken", False]


def test_an_error_in_a_task_that_is_never_awaited_is_shown():
    code = "import asyncio\nasync def bad():\n    raise ValueError('broken')\nt = asyncio.create_task(bad())"
    assert shown(run(code)[0]) == "<Task Task-1 failed> was never awaited: ValueError('broken')"


def test_a_cancelled_task_cancels_its_clone_and_the_loan_comes_back_but_for_the_call_in_flight():
    code = """
import asyncio
t = asyncio.create_task(delegate('slow', tokens=1000))
await delegate('quick')
t.cancel()
try:
    await t
except asyncio.CancelledError:
    write('cancelled')
write([t.cancelled(), t.done()])
finish(await delegate('after', tokens=19000))
"""
    tree_run, world = run(code, reserve=100)
    slow, quick, after = tree_run.tree.nodes[1:]
    assert world.written == ["cancelled", [True, True]]
    assert (slow.stop, quick.stop, after.stop) == (ramet.Stop.CANCELLED, ramet.Stop.ANSWERED, ramet.Stop.ANSWERED)
    # Its call was capped at its grant less the reserve; what had not arrived of it is lost.
    assert (slow.grant, slow.usage.tokens + slow.usage.lost_tokens) == (1000, 900)
    # The other 100 were back before the next clone was admitted.
    root = tree_run.tree.root.turns[0].tokens
    assert after.grant == 20_000 - root - 900 - quick.usage.tokens - 100


def test_a_task_that_is_cancelled_before_it_starts_starts_no_clone():
    code = """
import asyncio
t = asyncio.create_task(delegate('a'))
t.cancel()
results = await asyncio.gather(t, delegate('b'), return_exceptions=True)
finish([t.cancelled(), results[1]])
"""
    tree_run, _ = run(code)
    assert tree_run.tree.root.value == [True, "b"]
    assert [node.goal for node in tree_run.tree.nodes] == ["root", "b"]


def test_cancelling_a_task_cancels_what_it_awaits_and_runs_its_finally():
    code = """
import asyncio
async def work():
    try:
        return await asyncio.gather(delegate('slow 1'), delegate('slow 2'))
    finally:
        write('cleaned up')
t = asyncio.create_task(work())
await delegate('quick')
t.cancel()
done, pending = await asyncio.wait([t])
finish([len(done), len(pending), t.cancelled()])
"""
    tree_run, world = run(code)
    assert world.written == ["cleaned up"]
    assert tree_run.tree.root.value == [1, 0, True]
    assert [node.stop for node in tree_run.tree.nodes[1:]].count(ramet.Stop.CANCELLED) == 2


# gather.

TWO_BAD = """
import asyncio
async def bad(name):
    await delegate(name)
    raise ValueError(name)
async def good(name):
    text = await delegate(name)
    write(text)
    return text
"""


def test_gather_with_return_exceptions_returns_errors_in_place():
    code = "parts = await asyncio.gather(bad('a'), good('b'), bad('c'), return_exceptions=True)"
    assert value(TWO_BAD + code + "\nfinish([repr(part) for part in parts])") == [
        "ValueError('a')",
        "'b'",
        "ValueError('c')",
    ]


def test_without_it_the_first_error_is_raised_and_siblings_go_on():
    code = """
first = asyncio.Event()
async def later():
    await first.wait()
    return await good('b')
b = asyncio.create_task(later())
try:
    await asyncio.gather(bad('a'), b)
except ValueError as error:
    write(str(error))
first.set()
await b
finish(b.done())
"""
    tree_run, world = run(TWO_BAD + code)
    assert (tree_run.tree.root.value, world.written) == (True, ["a", "b"])


# wait, wait_for, timeout, as_completed: in the clock of the runtime.


def test_wait_returns_at_the_first_and_the_rest_can_be_cancelled():
    code = """
import asyncio
tasks = [asyncio.create_task(delegate(goal)) for goal in ('slow', 'quick')]
done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
for task in pending:
    task.cancel()
finish([[task.result() for task in done], len(pending)])
"""
    tree_run, _ = run(code)
    assert tree_run.tree.root.value == [["quick"], 1]
    assert [node.stop for node in tree_run.tree.nodes[1:]] == [ramet.Stop.CANCELLED, ramet.Stop.ANSWERED]


def test_wait_returns_at_the_first_error_or_after_its_time():
    code = (
        TWO_BAD
        + """
slow = asyncio.create_task(delegate('slow'))
failing = asyncio.create_task(bad('a'))
done, pending = await asyncio.wait([slow, failing], return_when=asyncio.FIRST_EXCEPTION)
write([failing in done, slow in pending])
done, pending = await asyncio.wait([slow], timeout=0.01)
write([len(done), len(pending), slow.done()])
slow.cancel()
"""
    )
    tree_run, world = run(code)
    assert world.written == [[True, True], [0, 1, False]]
    assert tree_run.tree.nodes[1].stop is ramet.Stop.CANCELLED


def test_wait_for_raises_after_its_time_and_cancels_the_clone():
    code = """
import asyncio
write(await asyncio.wait_for(delegate('quick'), timeout=5000))
write(await asyncio.wait_for(delegate('also quick'), None))
try:
    await asyncio.wait_for(delegate('slow'), timeout=0.01)
except asyncio.TimeoutError as error:
    finish(str(error))
"""
    tree_run, world = run(code)
    assert world.written == ["quick", "also quick"]
    assert tree_run.tree.root.value == "not done after 0.01 s"
    assert tree_run.tree.nodes[3].stop is ramet.Stop.CANCELLED


def test_a_timeout_that_nothing_catches_is_shown_and_the_variables_stay():
    code = "import asyncio\nx = 5\nawait asyncio.wait_for(delegate('slow'), 0.01)"
    tree_run, _ = run(code, "finish(x)")
    text = shown(tree_run)
    assert "line 3, in <module>\n    await asyncio.wait_for(delegate('slow'), 0.01)" in text
    assert text.endswith("TimeoutError: not done after 0.01 s")
    assert tree_run.tree.root.value == 5


def test_the_timeout_block_cancels_what_is_inside():
    code = """
import asyncio
try:
    async with asyncio.timeout(0.01):
        await asyncio.gather(delegate('slow'), delegate('quick'))
except TimeoutError:
    write('late')
async with asyncio.timeout(5000):
    finish(await delegate('quick 2'))
"""
    tree_run, world = run(code)
    assert (tree_run.tree.root.value, world.written) == ("quick 2", ["late"])
    assert tree_run.tree.nodes[1].stop is ramet.Stop.CANCELLED


@pytest.mark.parametrize(
    "loop",
    [
        "for next_one in asyncio.as_completed([asyncio.create_task(goal(g)) for g in 'cab']):\n"
        "    write(await next_one)",
        "async for task in asyncio.as_completed([goal(g) for g in 'cab']):\n    write(task.result())",
    ],
)
def test_as_completed_gives_answers_in_the_order_in_which_they_come(loop: str):
    gates = """
import asyncio
gate = {'a': asyncio.Event(), 'b': asyncio.Event(), 'c': asyncio.Event()}
gate['a'].set()
async def goal(g):
    await gate[g].wait()
    text = await delegate(g)
    if g in 'ab':
        gate['b' if g == 'a' else 'c'].set()
    return text
"""
    tree_run, world = run(gates + loop)
    assert world.written == ["a", "b", "c"]
    assert [node.goal for node in tree_run.tree.nodes] == ["root", "a", "b", "c"]


def test_as_completed_raises_after_its_time():
    code = """
import asyncio
try:
    for one in asyncio.as_completed([delegate('quick'), delegate('slow')], timeout=0.2):
        write(await one)
except TimeoutError:
    finish('late')
"""
    tree_run, world = run(code)
    assert tree_run.tree.root.value == "late"
    assert world.written in (["quick"], [])  # a busy machine may need all the time for the first


def test_sleeping_takes_no_time_when_nothing_runs():
    code = "import asyncio\nt = asyncio.create_task(asyncio.sleep(1e9, 'slept'))\nfinish(await t)"
    assert value(code) == "slept"


# TaskGroup.


def test_a_task_group_waits_for_all_its_tasks():
    code = """
import asyncio
async with asyncio.TaskGroup() as group:
    tasks = [group.create_task(delegate(g)) for g in 'abc']
finish([task.result() for task in tasks])
"""
    assert value(code) == ["a", "b", "c"]


def test_a_failing_task_cancels_its_group_and_its_error_is_raised():
    code = (
        TWO_BAD
        + """
try:
    async with asyncio.TaskGroup() as group:
        group.create_task(delegate('slow 1'))
        group.create_task(bad('a'))
        await delegate('slow 2')
        write('never')
except ValueError as error:
    finish(str(error))
"""
    )
    tree_run, world = run(code)
    assert (tree_run.tree.root.value, world.written) == ("a", [])
    stops = {node.goal: node.stop for node in tree_run.tree.nodes[1:]}
    assert stops == {
        "slow 1": ramet.Stop.CANCELLED,
        "a": ramet.Stop.ANSWERED,
        "slow 2": ramet.Stop.CANCELLED,
    }


def test_an_error_in_the_block_of_a_task_group_cancels_its_tasks():
    code = """
import asyncio
async def work():
    async with asyncio.TaskGroup() as group:
        group.create_task(delegate('slow'))
        await delegate('quick')
        raise KeyError('mine')
try:
    await work()
except KeyError as error:
    finish(str(error))
"""
    tree_run, _ = run(code)
    assert "mine" in str(tree_run.tree.root.value)
    assert {node.goal: node.stop for node in tree_run.tree.nodes[1:]}["slow"] is ramet.Stop.CANCELLED


def test_a_return_inside_async_with_leaves_it_properly():
    code = """
import asyncio
gate = asyncio.Semaphore(1)
async def work():
    for i in range(3):
        async with gate:
            if i == 0:
                continue
            return await delegate(f'part {i}')
finish([await work(), gate.locked()])
"""
    assert value(code) == ["part 1", False]


# Semaphore.


def test_a_semaphore_limits_how_many_clones_run_at_once():
    most = 0
    running: set[str] = set()

    def child(prompt: Prompt) -> str | Reply:
        nonlocal most
        if prompt.turn == 0:
            running.add(prompt.goal)
            most = max(most, len(running))
            return cell("x = 1")
        running.discard(prompt.goal)
        return cell(f"finish({prompt.goal!r})")

    code = """
import asyncio
gate = asyncio.Semaphore(2)
async def one(goal):
    async with gate:
        return await delegate(goal)
finish(await asyncio.gather(*[one(str(i)) for i in range(6)]))
"""
    assert value(code, child=child) == ["0", "1", "2", "3", "4", "5"]
    assert most == 2


def test_a_cancelled_wait_for_a_semaphore_does_not_take_it():
    code = """
import asyncio
gate = asyncio.Lock()
await gate.acquire()
waiting = asyncio.create_task(gate.acquire())
await delegate('a')
waiting.cancel()
await asyncio.wait([waiting])
gate.release()
async with gate:
    finish([waiting.cancelled(), gate.locked()])
"""
    assert value(code) == [True, True]


# What waits for ever, and limits.


def test_a_wait_that_nothing_can_end_is_an_error():
    tree_run, _ = run("import asyncio\nx = 1\nawait asyncio.Event().wait()", "finish(x)")
    assert "RuntimeError: this waits for something that will never happen" in shown(tree_run)
    assert "line 3, in <module>" in shown(tree_run)
    assert tree_run.tree.root.value == 1


@pytest.mark.parametrize("second", ["print(await x)", "import asyncio\nprint(await asyncio.wait_for(x, None))"])
def test_a_call_of_an_earlier_cell_that_failed_cannot_be_awaited_any_more(second: str):
    """The call was cancelled with its cell."""
    tree_run, _ = run("x = delegate('slow')\nawait delegate('quick')\n1 / 0", second)
    assert "RuntimeError: this waits for something that will never happen" in shown(tree_run, 2)
    assert tree_run.tree.nodes[1].stop is ramet.Stop.CANCELLED


def test_tasks_of_a_cell_that_failed_are_cancelled():
    tree_run, _ = run(
        "import asyncio\nt = asyncio.create_task(delegate('slow'))\nawait delegate('quick')\n1 / 0",
        "write([t.done(), t.cancelled()])\nfinish(await delegate('next'))",
    )
    assert tree_run.tree.root.value == "next"
    assert {node.goal: node.stop for node in tree_run.tree.nodes[1:]}["slow"] is ramet.Stop.CANCELLED


@pytest.mark.anyio
async def test_calls_are_counted_per_cell_and_not_per_wait():
    engine = ramet.ScriptedEngine(
        lambda prompt: cell("while True: await delegate('')") if prompt.turn == 0 else cell("finish('end')")
    )
    async with Sandbox(workers=1, seconds=60, calls=40) as sandbox:
        tree = await ramet.run("root", engine=engine, dialect=ramet.PythonDialect(sandbox))
    assert tree.answer == "end"
    assert "the cell made more than 40 calls and waits" in tree.root.pieces[2].text
    assert len(tree.root.turns[0].refusals) == 20


def test_a_clone_of_a_clone_is_cancelled_with_it():
    def child(prompt: Prompt) -> str | Reply:
        return clone(prompt) if prompt.depth == 2 else cell("finish(await delegate('slow'))")

    code = (
        "import asyncio\ntry:\n    await asyncio.wait_for(delegate('a'), 0.3)\nexcept TimeoutError:\n    finish('late')"
    )
    tree_run, _ = run(code, child=child)
    assert tree_run.tree.root.value == "late"
    assert {node.stop for node in tree_run.tree.nodes[1:]} == {ramet.Stop.CANCELLED}


def test_async_functions_of_the_world_can_be_tasks_too():
    code = "import asyncio as aio\nt = aio.create_task(ask('x'))\nfinish([await t, await aio.wait_for(ask('y'), 5000)])"
    assert value(code) == ["X", "Y"]


def test_names_can_be_imported_and_asyncio_run_works():
    code = """
from asyncio import create_task, gather as together
import asyncio
async def main():
    return await together(create_task(delegate('a')), delegate('b'))
finish(asyncio.run(main()))
"""
    assert value(code) == ["a", "b"]


# What is not supported names what works instead.


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def g():\n    yield 1", "generators (yield) are not supported in a cell: return a list, or use a generator"),
        ("async def g():\n    yield 1", "generators (yield) are not supported"),
        ("def g():\n    yield from [1]", "generators (yield) are not supported"),
        ("x = [i async for i in y]", "async comprehensions are not supported in a cell: use a for loop"),
        (
            "import asyncio\nq = asyncio.Queue()",
            "asyncio.Queue is not supported in a cell; there are create_task, gather",
        ),
        ("from asyncio import to_thread", "asyncio.to_thread is not supported in a cell; there are create_task"),
        ("try:\n    pass\nexcept* ValueError:\n    pass", "a TaskGroup raises the first error of its tasks as it is"),
        ("try:\n    pass\nexcept ExceptionGroup:\n    pass", "except* and ExceptionGroup are not supported"),
        (
            "import asyncio\nasync for x in [1]:\n    pass",
            "async for works over asyncio.as_completed(...); use a plain",
        ),
        (
            "import asyncio\ndef f():\n    return asyncio.run(g())\nasyncio.create_task",
            "asyncio.run inside a def is not supported in a cell: make it an async def and await",
        ),
        ("import asyncio\nawait asyncio.wait([delegate('a')])", "takes tasks, not coroutines: use asyncio.create_task"),
    ],
)
def test_what_is_not_supported_is_one_line_that_names_what_is(code: str, said: str):
    tree_run, _ = run(code)
    assert len([line for line in shown(tree_run).split("\n") if said in line]) == 1
    assert tree_run.tree.root.turns[0].faults == 1
    assert tree_run.tree.answer == "end"


@pytest.mark.parametrize(
    "code",
    [
        "x = 1",
        "import asyncio\nx = await asyncio.gather(delegate('a'), delegate('b'))",
        "from asyncio import gather\nprint('asyncio.wait')",
        "asyncio = 5 +",
        "import asyncio\nawait asyncio.sleep(1)",
    ],
)
def test_cells_that_the_interpreter_can_run_are_not_touched(code: str):
    assert rewrite(code) is None


def test_lines_of_errors_are_those_the_model_wrote():
    code = """import asyncio

async def f(gate):
    async with gate:
        pass
    x = (1 +
         0)
    return x / 0

await f(asyncio.Lock())"""
    text = shown(run(code)[0])
    assert re.findall(r"line (\d+), in (\S+)", text) == [("10", "<module>"), ("8", "f")]
    assert "    await f(asyncio.Lock())\n" in text
    assert text.endswith("    return x / 0\nZeroDivisionError: division by zero")
