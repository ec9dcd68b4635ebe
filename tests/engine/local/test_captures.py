"""Captures of CUDA graphs and the work of other threads exclude each other, without a GPU."""

from __future__ import annotations

import threading

import pytest

from ramet.engine.local import LocalEngine
from ramet.engine.local.captures import CaptureGuard
from tests.engine.local.models import make


def test_a_capture_happens_at_once_when_no_other_thread_works() -> None:
    guard = CaptureGuard()
    assert guard.capture(lambda: "graph") == "graph"
    assert guard.capture(lambda: "another") == "another"


def test_while_another_thread_works_a_capture_is_put_off_without_waiting() -> None:
    guard, made = CaptureGuard(), list[str]()
    with guard.working():
        assert guard.capture(lambda: made.append("graph")) is None
    assert made == []
    assert guard.capture(lambda: "graph") == "graph"


def test_work_waits_for_a_capture_to_end() -> None:
    guard, order = CaptureGuard(), list[str]()
    started = threading.Event()

    def work() -> None:
        started.set()
        with guard.working():
            order.append("work")

    thread = threading.Thread(target=work)

    def capture() -> str:
        thread.start()
        started.wait()
        order.append("capture")
        return "graph"

    assert guard.capture(capture) == "graph"
    thread.join()
    assert order == ["capture", "work"]


def test_a_capture_that_raises_does_not_lock_the_learner_out() -> None:
    guard = CaptureGuard()

    def broken() -> str:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        guard.capture(broken)
    with guard.working():
        assert guard.capture(lambda: "graph") is None


def test_the_learner_keeps_captures_of_its_engine_away() -> None:
    with LocalEngine(make("llama"), max_batch=2, chunk=16, cache_tokens=256) as engine:
        with engine.undisturbed():
            assert engine.runner.guard.capture(lambda: "graph") is None
        assert engine.runner.guard.capture(lambda: "graph") == "graph"
