"""Limits cover the engine call and the running cell, never the wait for a child. Nothing outlives its tree."""

from __future__ import annotations

import anyio
import pytest
import trio.testing

import ramet
from ramet.agent.options import TreeOptions
from ramet.agent.sandbox import Sandbox
from ramet.agent.tree import TreeRun
from ramet.engine.scripted import Reply
from ramet.types import Prompt, State
from tests.agent.scripts import cell, delegate, gather
from tests.conftest import in_virtual_time


def test_a_chain_of_depth_ten_finishes_with_one_engine_slot():
    def script(prompt: Prompt) -> Reply:
        bottom = prompt.depth == 10 or prompt.turn
        return Reply(text=f"Answer: {prompt.depth}" if bottom else delegate(f"deeper {prompt.depth}"), seconds=1)

    engine = ramet.ScriptedEngine(script, slots=1)
    budget = ramet.Budget(tokens=100_000, nodes=11, depth=10, reserve=10)
    tree = in_virtual_time(TreeRun("root", TreeOptions(engine=engine, budget=budget)).run)
    assert (len(tree.nodes), tree.answer, engine.most_running) == (11, "0", 1)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_python_tree_of_depth_six_finishes_with_one_sandbox_worker(anyio_backend: str):
    def script(prompt: Prompt) -> str:
        if prompt.depth == 6:
            return cell("finish(1)")
        return cell(gather([f"{prompt.goal}.l", f"{prompt.goal}.r"]), "finish(sum(parts))")

    engine = ramet.ScriptedEngine(script)
    budget = ramet.Budget(tokens=1_000_000, nodes=127, depth=6, reserve=10)
    async with Sandbox(workers=1) as sandbox:
        tree = await ramet.run("root", engine=engine, budget=budget, dialect=ramet.PythonDialect(sandbox))
    assert (tree.root.value, len(tree.nodes)) == (64, 127)


@pytest.mark.parametrize("cancel_after", [0.5, 1.5, 2.5])
def test_cancelling_the_root_ends_every_descendant_and_every_engine_call(cancel_after: float):
    def script(prompt: Prompt) -> Reply:
        return Reply(text=delegate("a", "b", "c") if prompt.depth < 2 else "Answer: x", seconds=1)

    engine = ramet.ScriptedEngine(script)
    run = TreeRun("root", TreeOptions(engine=engine, budget=ramet.Budget(tokens=100_000, nodes=13, depth=2)))

    async def work() -> None:
        with anyio.move_on_after(cancel_after):
            await run.run()
        assert engine.running == 0
        assert {node.state for node in run.tree.nodes} == {State.ENDED}
        assert {node.stop for node in run.tree.nodes} <= {ramet.Stop.CANCELLED, ramet.Stop.ANSWERED}
        calls = len(engine.prompts)
        await anyio.sleep(3600)
        assert len(engine.prompts) == calls  # nothing keeps running

    in_virtual_time(work)
    assert run.tree.root.stop is ramet.Stop.CANCELLED
    assert run.ledger.open == 0


class StartSignal:
    """A world whose cells report that they run."""

    def __init__(self, cells: int) -> None:
        self.context: dict[str, str] = {}
        self.functions = {"started": self.started}
        self.all_started = anyio.Event()
        self._cells = cells

    def started(self) -> None:
        """Report that the cell runs."""
        self._cells -= 1
        if self._cells == 0:
            self.all_started.set()


ENDLESS = cell("started()", "while True: pass")


@pytest.mark.anyio
async def test_cancelling_a_python_tree_kills_running_cells():
    def script(prompt: Prompt) -> str:
        return ENDLESS if prompt.depth else cell(gather(["spin", "spin", "spin"]))

    engine, world = ramet.ScriptedEngine(script), StartSignal(2)
    async with Sandbox(workers=2, seconds=600) as sandbox:
        dialect = ramet.PythonDialect(sandbox)
        run = TreeRun("root", TreeOptions(engine=engine, budget=ramet.Budget(depth=1), dialect=dialect, world=world))
        with anyio.fail_after(300):
            async with anyio.create_task_group() as group:
                group.start_soon(run.run)
                await world.all_started.wait()
                group.cancel_scope.cancel()
        assert {node.state for node in run.tree.nodes} == {State.ENDED}
        state = await sandbox.interpreter({}).start("print(6 * 7)")  # the pool still works
        assert state.error is None


def test_a_deadline_ends_an_endless_cell():
    """Time stands still until the cell runs, then jumps past the time for ordinary turns."""
    clock = trio.testing.MockClock()

    def script(prompt: Prompt) -> str:
        return "Answer: late but there" if prompt.closing else ENDLESS

    async def work() -> ramet.Tree:
        engine, world = ramet.ScriptedEngine(script), StartSignal(1)
        budget = ramet.Budget(seconds=100, turns=2)
        async with Sandbox(workers=1, seconds=300) as sandbox, anyio.create_task_group() as group:

            async def jump() -> None:
                await world.all_started.wait()
                clock.jump(95)

            group.start_soon(jump)
            dialect = ramet.PythonDialect(sandbox)
            return await ramet.run("root", engine=engine, budget=budget, dialect=dialect, world=world)

    tree = anyio.run(work, backend="trio", backend_options={"clock": clock})
    assert (tree.answer, tree.root.stop) == ("late but there", ramet.Stop.DEADLINE)


def test_five_thousand_nodes_are_open_in_one_process():
    def script(prompt: Prompt) -> Reply:
        if prompt.depth:
            return Reply(text="Answer: 1", seconds=60)
        return Reply(text=delegate(*map(str, range(4999))) if prompt.turn == 0 else "Answer: all")

    engine = ramet.ScriptedEngine(script)
    budget = ramet.Budget(tokens=5_000_000, nodes=5000, depth=1, children=5000, window=2_000_000, reserve=8)
    tree = in_virtual_time(TreeRun("root", TreeOptions(engine=engine, budget=budget)).run)
    assert (engine.most_running, len(tree.nodes), tree.answer) == (4999, 5000, "all")
