"""Answers on their way into a cell: interruptions, and timers on the runtime's clock, in virtual time."""

from __future__ import annotations

import anyio
import anyio.lowlevel

from ramet.agent.cells.answers import Answers
from tests.conftest import in_virtual_time


def test_an_interrupted_call_is_answered_when_all_of_its_work_has_ended():
    ended: list[bool] = []

    async def work() -> object:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(5)
            ended.append(True)

    async def scenario() -> None:
        answers = Answers()
        async with anyio.create_task_group() as group:
            answers.begin(1)
            group.start_soon(answers.run, 1, work)
            await anyio.lowlevel.checkpoint()
            answers.interrupt(1)
            ready = await answers.wait([1])
            assert ended == [True]
            assert isinstance(ready[1], KeyboardInterrupt)

    in_virtual_time(scenario)


def test_timers_follow_the_clock_while_something_runs_and_are_skipped_when_nothing_does():
    async def work() -> object:
        await anyio.sleep(10)
        return "done"

    async def scenario() -> None:
        answers, began = Answers(), anyio.current_time()
        async with anyio.create_task_group() as group:
            answers.begin(1)
            group.start_soon(answers.run, 1, work)
            for number, seconds in ((2, 4), (3, 1000), (4, 1500), (5, 12)):
                answers.set_timer(number, seconds)
            assert (await answers.wait(range(9)), anyio.current_time() - began) == ({2: None}, 4)
            assert (await answers.wait(range(9)), anyio.current_time() - began) == ({1: "done"}, 10)
        # Nothing runs any more: the others come at once, in their order.
        assert [list(await answers.wait(range(9))) for _ in range(3)] == [[5], [3], [4]]
        assert anyio.current_time() - began == 10
        stuck = await answers.wait([7])
        assert isinstance(stuck[7], RuntimeError)

    in_virtual_time(scenario)


def test_what_is_no_time_is_an_error_in_the_cell():
    async def scenario() -> None:
        answers = Answers()
        for number, seconds in enumerate(["soon", None, True, float("nan")]):
            answers.set_timer(number, seconds)
        assert all(isinstance(error, TypeError) for error in (await answers.wait(range(4))).values())

    in_virtual_time(scenario)


def test_a_second_wake_and_an_answer_to_another_call_change_nothing():
    async def scenario() -> None:
        answers = Answers()
        answers.give(1, "first")
        answers.wake(1)
        answers.give(99, "of no call")
        assert await answers.wait([1, 2]) == {1: "first"}

    in_virtual_time(scenario)
