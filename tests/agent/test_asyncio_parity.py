"""The same programs in a cell and in Python itself: what they write down is equal."""

from __future__ import annotations

import ast
import asyncio
import inspect
from types import CodeType, FunctionType
from typing import Any

import anyio
import pytest

import ramet
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.types import Prompt
from tests.agent.scripts import cell

BEGIN = """
import asyncio
async def fail(goal):
    await delegate(goal)
    raise ValueError(goal)
async def caught(awaitable):
    try:
        return await awaitable
    except asyncio.CancelledError:
        return 'cancelled'
    except Exception as error:
        return repr(error)
"""
PROGRAMS = {
    "results and states": """
t = asyncio.create_task(delegate('a'), name='mine')
write([t.done(), t.cancelled(), t.get_name()])
write(await t)
write([t.done(), t.cancelled(), t.result(), t.exception(), await t, t.cancel()])
""",
    "order of starting": """
async def step(name):
    write(name + ' began')
    await delegate(name)
    return name
one = asyncio.create_task(step('one'))
two = asyncio.create_task(step('two'))
write('main')
write(await asyncio.gather(two, one))
""",
    "callbacks": """
t = asyncio.create_task(delegate('a'))
t.add_done_callback(lambda task: write('ended ' + task.result()))
await t
write('after')
""",
    "cancelled before it starts": """
async def step():
    write('never')
t = asyncio.create_task(step())
write(t.cancel())
write(await caught(t))
write([t.done(), t.cancelled(), t.cancel()])
""",
    "cancelled while waiting": """
gate = asyncio.Event()
async def step():
    try:
        await gate.wait()
    except asyncio.CancelledError:
        write('told')
        raise
    finally:
        write('cleaned')
t = asyncio.create_task(step())
await delegate('a')
t.cancel()
write(await caught(t))
write(t.cancelled())
""",
    "a cancellation that is caught": """
gate = asyncio.Event()
async def step():
    try:
        await gate.wait()
    except asyncio.CancelledError:
        return await delegate('instead')
t = asyncio.create_task(step())
await delegate('a')
t.cancel()
write([await t, t.cancelled()])
""",
    "cancelling the waiter cancels the task": """
gate = asyncio.Event()
inner = asyncio.create_task(gate.wait())
async def outer():
    await inner
waiter = asyncio.create_task(outer())
await delegate('a')
waiter.cancel()
write([await caught(waiter), inner.cancelled(), waiter.cancelled()])
""",
    "a shield is not cancelled": """
gate = asyncio.Event()
inner = asyncio.create_task(gate.wait())
async def outer():
    await asyncio.shield(inner)
waiter = asyncio.create_task(outer())
await delegate('a')
waiter.cancel()
write([await caught(waiter), inner.cancelled(), inner.done()])
gate.set()
write(await inner)
""",
    "gather": """
write(await asyncio.gather(delegate('a'), delegate('b')))
write(await asyncio.gather())
parts = await asyncio.gather(fail('a'), delegate('b'), return_exceptions=True)
write([repr(part) for part in parts])
write(await caught(asyncio.gather(delegate('a'), fail('b'))))
""",
    "gather raises the first error and the rest goes on": """
gate = asyncio.Event()
async def late():
    await gate.wait()
    write('went on')
    return await delegate('late')
rest = asyncio.create_task(late())
write(await caught(asyncio.gather(rest, fail('a'))))
write(rest.done())
gate.set()
write(await rest)
""",
    "cancelling a gather": """
gate = asyncio.Event()
tasks = [asyncio.create_task(gate.wait()) for _ in range(2)]
whole = asyncio.gather(*tasks)
await delegate('a')
write(whole.cancel())
write(await caught(whole))
write([task.cancelled() for task in tasks])
""",
    "a cancelled part of a gather": """
gate = asyncio.Event()
part = asyncio.create_task(gate.wait())
whole = asyncio.gather(part, delegate('a'))
await delegate('b')
part.cancel()
write(await caught(whole))
""",
    "wait": """
gate = asyncio.Event()
never = asyncio.create_task(gate.wait())
quick = asyncio.create_task(delegate('a'))
failing = asyncio.create_task(fail('b'))
done, pending = await asyncio.wait({quick, failing})
write([len(done), len(pending), quick.result(), repr(failing.exception())])
done, pending = await asyncio.wait([never, quick], return_when=asyncio.FIRST_COMPLETED)
write([quick in done, never in pending])
done, pending = await asyncio.wait([never], timeout=0.01)
write([len(done), len(pending), never.done()])
never.cancel()
""",
    "wait_for": """
write(await asyncio.wait_for(delegate('a'), 1000))
write(await asyncio.wait_for(delegate('b'), None))
write(await caught(asyncio.wait_for(fail('c'), 1000)))
gate = asyncio.Event()
t = asyncio.create_task(gate.wait())
write((await caught(asyncio.wait_for(t, 0.01))).startswith('TimeoutError'))
write(t.cancelled())
""",
    "timeout": """
gate = asyncio.Event()
try:
    async with asyncio.timeout(0.01) as limit:
        await gate.wait()
    write('never')
except TimeoutError:
    write(limit.expired())
async with asyncio.timeout(1000) as limit:
    write(await delegate('a'))
write(limit.expired())
try:
    async with asyncio.timeout(1000):
        raise KeyError('x')
except KeyError as error:
    write(str(error))
""",
    "task group": """
async with asyncio.TaskGroup() as group:
    a = group.create_task(delegate('a'))
    b = group.create_task(delegate('b'))
    write(await a)
write([a.result(), b.result()])
""",
    "a task group inside a cancelled task": """
gate = asyncio.Event()
async def work():
    async with asyncio.TaskGroup() as group:
        t = group.create_task(caught(gate.wait()))
        try:
            await gate.wait()
        finally:
            write('left')
    write('never')
t = asyncio.create_task(work())
await delegate('a')
t.cancel()
write(await caught(t))
write(t.cancelled())
""",
    "semaphore": """
gate = asyncio.Semaphore(2)
inside = []
async def work(name):
    async with gate:
        inside.append(name)
        write(len(inside) <= 2)
        text = await delegate(name)
        inside.remove(name)
        return text
write(await asyncio.gather(*[work(str(i)) for i in range(5)]))
write(gate.locked())
""",
    "a semaphore is handed on in order": """
gate = asyncio.Lock()
await gate.acquire()
async def work(name):
    async with gate:
        write(name)
        await delegate(name)
tasks = [asyncio.create_task(work(name)) for name in 'abc']
await delegate('x')
tasks[1].cancel()
await delegate('y')
gate.release()
write([repr(part)[:9] for part in await asyncio.gather(*tasks, return_exceptions=True)][::2])
write(gate.locked())
""",
    "as_completed": """
gates = {'a': asyncio.Event(), 'b': asyncio.Event()}
gates['a'].set()
async def work(name):
    await gates[name].wait()
    text = await delegate(name)
    gates['b'].set()
    return text
for part in asyncio.as_completed([work('b'), work('a')]):
    write(await part)
""",
    "a race": """
async def work(name):
    await asyncio.sleep(0)
    return await delegate(name)
tasks = [asyncio.create_task(work(str(i))) for i in range(8)]
total = 0
while tasks:
    done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    total += sum([int(task.result()) for task in done])
write(total)
""",
    "nested tasks": """
async def deep(n):
    if n == 0:
        return await delegate('leaf')
    t = asyncio.create_task(deep(n - 1))
    return str(n) + await t
write(await asyncio.gather(deep(4), deep(2)))
""",
}


def in_python(program: str) -> list[object]:
    """Run it by the interpreter of these tests, with a function in the place of clones."""
    written: list[object] = []

    async def delegate(goal: str) -> str:
        await asyncio.sleep(0)
        return goal

    code = compile(program, "program", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(code, CodeType)
    names: dict[str, Any] = {"delegate": delegate, "write": written.append}

    async def main() -> None:
        outcome = FunctionType(code, names)()
        if inspect.iscoroutine(outcome):
            await outcome

    asyncio.run(main())
    return written


class Notes:
    def __init__(self) -> None:
        self.context: dict[str, str] = {}
        self.functions = {"write": self.write}
        self.written: list[object] = []

    def write(self, text: object) -> None:
        """Write it down."""
        self.written.append(text)


def in_a_cell(program: str) -> list[object]:
    world = Notes()

    def script(prompt: Prompt) -> str:
        if prompt.depth:
            return cell(f"finish({prompt.goal!r})")
        return cell(program if prompt.turn == 0 else "finish('end')")

    engine = ramet.ScriptedEngine(script)
    budget = ramet.Budget(tokens=40_000, nodes=40, depth=1)
    run = TreeRun("root", TreeOptions(engine=engine, budget=budget, world=world, dialect="python"))
    tree = anyio.run(run.run)
    assert "Error" not in tree.root.pieces[2].text
    assert run.ledger.tokens + tree.usage.tokens + tree.usage.lost_tokens == budget.tokens
    return world.written


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_writes_the_same_in_a_cell_and_in_python(name: str):
    program = BEGIN + PROGRAMS[name]
    expected = in_python(program)
    assert expected
    assert in_a_cell(program) == expected
