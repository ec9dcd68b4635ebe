"""The grader process: results, timeouts, crashes and errors."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator

import anyio
import anyio.lowlevel
import pytest

from ramet.errors import ConfigError
from ramet.tasks.grader import Grader, Unfinished
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def builtin() -> Iterator[Grader]:
    grader = Grader("builtins", library="json")
    yield grader
    grader.stop()


def test_a_call_returns_what_the_function_returns(builtin: Grader) -> None:
    assert builtin.call("len", [1, 2, 3], seconds=PATIENCE_S) == 3
    assert builtin.call("sorted", ["b", "\ud800", "é"], seconds=PATIENCE_S) == ["b", "é", "\ud800"]


def test_what_a_function_prints_is_discarded(builtin: Grader, capfd: pytest.CaptureFixture[str]) -> None:
    assert builtin.call("print", "dots", seconds=PATIENCE_S) is None
    assert builtin.call("len", "abc", seconds=PATIENCE_S) == 3
    assert capfd.readouterr().out == ""


def test_an_error_is_reported_and_the_process_goes_on() -> None:
    grader = Grader("os", library="os")
    process = grader.call("getpid", seconds=PATIENCE_S)
    with pytest.raises(Unfinished, match="TypeError: "):
        grader.call("getpid", "too", "much")
    with pytest.raises(Unfinished, match="AttributeError: "):
        grader.call("no_such_function")
    with pytest.raises(Unfinished, match="FileNotFoundError: "):
        grader.call("listdir", "/no/such/folder")
    assert grader.call("getpid", seconds=PATIENCE_S) == process
    grader.stop()


def test_exceeding_the_memory_limit_is_an_error_and_not_a_crash(builtin: Grader) -> None:
    if sys.platform == "linux":
        with pytest.raises(Unfinished, match="MemoryError"):
            builtin.call("bytearray", 9 * 2**30)
    assert builtin.call("len", "ab", seconds=PATIENCE_S) == 2


def test_a_call_that_times_out_is_ended_and_the_next_one_works() -> None:
    grader = Grader("time", library="time")
    with pytest.raises(Unfinished, match=r"it took more than 0\.2 s"):
        grader.call("sleep", 60, seconds=0.2)
    assert grader.call("sleep", 0, seconds=PATIENCE_S) is None
    grader.stop()


def test_a_process_that_dies_is_replaced() -> None:
    grader = Grader("os", library="os")
    with pytest.raises(Unfinished, match="the grader ended"):
        grader.call("_exit", 3)
    assert grader.call("getpid", seconds=PATIENCE_S) != os.getpid()
    grader.stop()
    grader.stop()  # safe to call again


def test_a_missing_library_names_what_to_install() -> None:
    grader = Grader("builtins", library="no_such_library")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"no_such_library cannot be imported .*pip install 'ramet\[tasks\]'"):
            grader.call("len", "abc")


def test_hashes_are_the_same_in_every_grader(builtin: Grader) -> None:
    other = Grader("builtins", library="json")
    assert builtin.call("hash", "ramet", seconds=PATIENCE_S) == other.call("hash", "ramet", seconds=PATIENCE_S)
    other.stop()


def test_any_thread_can_call(builtin: Grader) -> None:
    found: dict[int, int] = {}

    def ask(number: int) -> None:
        for _ in range(20):
            found[number] = builtin.call("len", "x" * number, seconds=PATIENCE_S)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: number for number in range(6)}


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_verdicts_come_in_the_order_in_which_they_were_asked_for(builtin: Grader, anyio_backend: str) -> None:
    asked: list[int] = []
    came: list[int] = []

    async def run(size: int) -> None:
        asked.append(size)
        came.append(await builtin.run(lambda: builtin.call("len", [0] * size, seconds=PATIENCE_S)))

    async with anyio.create_task_group() as group:
        for size in (5, 3, 0, 4):
            group.start_soon(run, size)
    assert came == asked
    assert sorted(came) == [0, 3, 4, 5]


@pytest.mark.anyio
async def test_an_error_of_the_work_is_raised_where_its_result_is_awaited(builtin: Grader) -> None:
    with pytest.raises(Unfinished, match="TypeError"):
        await builtin.run(lambda: builtin.call("len"))
    assert await builtin.run(lambda: builtin.call("len", "ab", seconds=PATIENCE_S)) == 2


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("begun", [True, False], ids=["while it computes", "before its process has started"])
async def test_cancelling_kills_the_call_and_the_next_one_works(anyio_backend: str, begun: bool) -> None:
    """The call would take an hour, and its limit is two: the test ends only if it is killed."""
    grader = Grader("time", library="time")
    if begun:
        grader.call("sleep", 0)
    started = threading.Event()

    def work() -> object:
        started.set()
        return grader.call("sleep", 3600, seconds=7200)

    async with anyio.create_task_group() as group:
        group.start_soon(grader.run, work)
        while not started.is_set():
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert grader.call("sleep", 0, seconds=PATIENCE_S) is None
    assert await grader.run(lambda: grader.call("sleep", 0, seconds=PATIENCE_S)) is None
    grader.stop()


@pytest.mark.anyio
async def test_one_that_waits_for_its_turn_can_be_cancelled(builtin: Grader) -> None:
    grader = Grader("time", library="time")
    started = threading.Event()

    def work() -> object:
        started.set()
        return grader.call("sleep", 3600, seconds=7200)

    async with anyio.create_task_group() as group:
        group.start_soon(grader.run, work)
        while not started.is_set():
            await anyio.lowlevel.checkpoint()
        with anyio.move_on_after(0.05) as scope:
            await grader.run(lambda: grader.call("sleep", 0))
        assert scope.cancelled_caught
        group.cancel_scope.cancel()
    assert await grader.run(lambda: grader.call("sleep", 0, seconds=PATIENCE_S)) is None
    grader.stop()
