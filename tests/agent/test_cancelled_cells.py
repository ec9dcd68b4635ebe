"""A cancelled cell ends at once, whenever the cancellation comes, and its worker never serves it again."""

from __future__ import annotations

import os
import random
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import ramet
from ramet.agent.options import TreeOptions
from ramet.agent.sandbox import CANCELLED, CellState, Sandbox, Worker
from ramet.agent.tree import TreeRun
from ramet.types import State
from tests.agent.scripts import cell, gather
from tests.engine.faulty import until

SPIN = "while True: pass"


def busy_workers() -> list[int]:
    """Sandbox workers of this process that are computing, not waiting for something to do."""
    found: list[int] = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _, rest = status.read_text().partition(" ")
        except OSError:
            continue
        name, _, numbers = rest.rpartition(")")
        state, parent = numbers.split()[:2]
        if "monty" in name and int(parent) == os.getpid() and state == "R":
            found.append(int(pid))
    return found


def test_a_kill_that_comes_before_the_process_is_known_is_remembered():
    worker = Worker()
    worker.kill()
    assert not worker.take(os.getpid())
    worker.kill()  # the process was never taken: this one goes on


def test_a_process_that_was_returned_is_not_killed():
    worker = Worker()
    assert worker.take(os.getpid())
    worker.leave()
    worker.kill()


def test_killing_a_process_that_has_ended_is_no_error():
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    worker = Worker()
    assert worker.take(pid)
    worker.kill()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_cell_cancelled_before_its_worker_is_checked_out_never_starts(anyio_backend: str):
    """The kill arrives in the worker's thread, between the checkout and the first instruction."""
    async with Sandbox(workers=1, seconds=600) as sandbox:
        interpreter = sandbox.interpreter({})
        worker = Worker()
        worker.kill()
        state = await anyio.to_thread.run_sync(
            interpreter._advance,
            lambda session: session.feed_start(SPIN),
            worker,  # pyright: ignore[reportPrivateUsage]
        )
        assert state == CellState(error=CANCELLED)
        after = await interpreter.start("print(1)")
        assert (after.error, interpreter.printed.text) == (None, "1\n")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_cells_cancelled_at_any_moment_leave_no_worker_busy(anyio_backend: str):
    """With a limit of ten minutes for a cell, this test ends only if every kill arrives."""
    dice = random.Random(7)
    async with Sandbox(workers=2, seconds=600) as sandbox:
        for _ in range(40):
            interpreter = sandbox.interpreter({})
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(interpreter.start, SPIN)
                    for _ in range(dice.choice([0, 1, 2, 3, 5, 8])):
                        await anyio.lowlevel.checkpoint()
                    await anyio.sleep(dice.choice([0, 0, 0, 0.0005, 0.002, 0.005]))
                    scope.cancel()
        state = await sandbox.interpreter({}).start("x = 1")
        assert state.error is None
        await until(lambda: not busy_workers())


@pytest.mark.anyio
async def test_cancelling_trees_of_cells_at_random_moments_leaves_no_worker_busy():
    dice = random.Random(11)

    def script(prompt: ramet.Prompt) -> str:
        return cell(SPIN) if prompt.depth else cell(gather(["a", "b", "c"]))

    async with Sandbox(workers=2, seconds=600) as sandbox:
        for _ in range(10):
            dialect, budget = ramet.PythonDialect(sandbox), ramet.Budget(depth=1)
            run = TreeRun("root", TreeOptions(engine=ramet.ScriptedEngine(script), budget=budget, dialect=dialect))
            with anyio.move_on_after(dice.choice([0, 0.001, 0.003, 0.01, 0.03])):
                await run.run()
            assert {node.state for node in run.tree.nodes} <= {State.ENDED, State.READY}
            assert run.ledger.open == 0
            await until(lambda: not busy_workers())
