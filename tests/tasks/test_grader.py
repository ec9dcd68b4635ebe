"""The grader process: results, timeouts, crashes and errors."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator

import pytest

from ramet.errors import ConfigError
from ramet.tasks.grader import Grader, Unfinished


@pytest.fixture(scope="module")
def builtin() -> Iterator[Grader]:
    grader = Grader("builtins", library="json")
    yield grader
    grader.stop()


def test_a_call_returns_what_the_function_returns(builtin: Grader) -> None:
    assert builtin.call("len", [1, 2, 3]) == 3
    assert builtin.call("sorted", ["b", "\ud800", "é"]) == ["b", "é", "\ud800"]


def test_what_a_function_prints_is_discarded(builtin: Grader, capfd: pytest.CaptureFixture[str]) -> None:
    assert builtin.call("print", "dots") is None
    assert builtin.call("len", "abc") == 3
    assert capfd.readouterr().out == ""


def test_an_error_is_reported_and_the_process_goes_on() -> None:
    grader = Grader("os", library="os")
    process = grader.call("getpid")
    with pytest.raises(Unfinished, match="TypeError: "):
        grader.call("getpid", "too", "much")
    with pytest.raises(Unfinished, match="AttributeError: "):
        grader.call("no_such_function")
    with pytest.raises(Unfinished, match="FileNotFoundError: "):
        grader.call("listdir", "/no/such/folder")
    assert grader.call("getpid") == process
    grader.stop()


def test_exceeding_the_memory_limit_is_an_error_and_not_a_crash(builtin: Grader) -> None:
    if sys.platform == "linux":
        with pytest.raises(Unfinished, match="MemoryError"):
            builtin.call("bytearray", 9 * 2**30)
    assert builtin.call("len", "ab") == 2


def test_a_call_that_times_out_is_ended_and_the_next_one_works() -> None:
    grader = Grader("time", library="time")
    with pytest.raises(Unfinished, match=r"it took more than 0\.2 s"):
        grader.call("sleep", 60, seconds=0.2)
    assert grader.call("sleep", 0) is None
    grader.stop()


def test_a_process_that_dies_is_replaced() -> None:
    grader = Grader("os", library="os")
    with pytest.raises(Unfinished, match="the grader ended"):
        grader.call("_exit", 3)
    assert grader.call("getpid") != os.getpid()
    grader.stop()
    grader.stop()  # safe to call again


def test_a_missing_library_names_what_to_install() -> None:
    grader = Grader("builtins", library="no_such_library")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"no_such_library cannot be imported .*pip install 'ramet\[tasks\]'"):
            grader.call("len", "abc")


def test_hashes_are_the_same_in_every_grader(builtin: Grader) -> None:
    other = Grader("builtins", library="json")
    assert builtin.call("hash", "ramet") == other.call("hash", "ramet")
    other.stop()


def test_any_thread_can_call(builtin: Grader) -> None:
    found: dict[int, int] = {}

    def ask(number: int) -> None:
        for _ in range(20):
            found[number] = builtin.call("len", "x" * number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: number for number in range(6)}
