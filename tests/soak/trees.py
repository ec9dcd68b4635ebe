"""Trees in this process: a clock that jumps, and how promptly deadlines and cancellations take effect."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import anyio
import trio
import trio.testing

import ramet
from ramet.agent.options import TreeOptions
from ramet.agent.sandbox import Sandbox
from ramet.agent.tree import TreeRun
from ramet.engine.scripted import Reply
from ramet.types import Prompt
from tests.agent.scripts import cell, delegate, gather, words
from tests.soak.checks import check_budgets
from tests.soak.rounds import Place, Report

TREES = 20  # per round
PROMPT_S = 0.5  # a deadline or a cancellation takes effect within this


def wild(dice: random.Random) -> Callable[[Prompt], Reply]:
    """Delegates at random, writes at random length, takes random time, and fails now and then."""

    def script(prompt: Prompt) -> Reply:
        goals = [f"{prompt.goal}.{i}" for i in range(dice.randint(1, 4))]
        text = delegate(*goals) if dice.random() < 0.5 else f"Answer: {words(dice.randint(1, 300))}"
        fault = "the server went away" if dice.random() < 0.05 else None
        return Reply(text=text, rate=dice.choice([5.0, 50.0, 500.0]), fault=fault)

    return script


def clock_jumps(place: Place) -> Report:
    """The machine sleeps for hours while trees with deadlines run: time jumps past some, all or none of them."""
    report = Report()
    for _ in range(TREES):
        _jump(report, place.dice)
    return report


def _jump(report: Report, dice: random.Random) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    engine = ramet.ScriptedEngine(wild(dice))
    budget = ramet.Budget(tokens=dice.choice([200, 2000, 20_000]), seconds=dice.choice([5, 60, 600]), depth=3, nodes=40)
    run = TreeRun("root", TreeOptions(engine=engine, budget=budget))

    async def work() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(jump)
            try:
                await run.run()
            except ramet.EngineError:
                report.done["engine failed for a root"] += 1
            group.cancel_scope.cancel()

    async def jump() -> None:
        while True:
            await anyio.sleep(dice.choice([0.5, 3.0, 20.0]))
            clock.jump(dice.choice([0.0, 1.0, 30.0, 7200.0]))
            report.done["clock jump (trees)"] += 1

    anyio.run(work, backend="trio", backend_options={"clock": clock})
    used = run.tree.usage
    report.check(used.tokens == engine.generated, f"{used.tokens} tokens reported, {engine.generated} generated")
    report.check(used.tokens + used.lost_tokens + run.ledger.tokens == budget.tokens, "the ledger does not add up")
    report.check(engine.running == 0 and run.ledger.open == 0, "calls or loans are left open")
    check_budgets(report, [run.tree])


def cancelled_cells(place: Place) -> Report:
    """Endless cells, ended by a deadline or from outside at a random moment; how late they end is measured."""
    report = Report()
    anyio.run(_cancel_cells, report, place.dice, backend=place.dice.choice(["asyncio", "trio"]))
    return report


async def _cancel_cells(report: Report, dice: random.Random) -> None:
    def script(prompt: Prompt) -> str:
        return cell("while True: pass") if prompt.depth else cell(gather(["a", "b"]))

    async with Sandbox(workers=2, seconds=60) as sandbox:
        for _ in range(TREES):
            moment, outside = dice.uniform(0.0, 0.1), dice.random() < 0.5
            budget = ramet.Budget(depth=1, seconds=None if outside else moment)
            options = TreeOptions(
                engine=ramet.ScriptedEngine(script), budget=budget, dialect=ramet.PythonDialect(sandbox)
            )
            run = TreeRun("root", options)
            began = time.monotonic()
            with anyio.move_on_after(moment if outside else None):
                await run.run()
            report.measured(time.monotonic() - began - moment, limit=PROMPT_S)
            report.done["cancelled tree" if outside else "deadline"] += 1
            report.check(run.ledger.open == 0, "loans are left open")
            check_budgets(report, [run.tree])
