"""Shared by all tests: the hypothesis profile, virtual time, and a small real model."""

from __future__ import annotations

import gc
import os

# Spinning threads make tiny models many times slower on a busy machine. Torch reads this at import, here and in every
# process that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import anyio
import pytest
import trio.testing
from hypothesis import HealthCheck, settings

from tests import fork_server

T = TypeVar("T")

# While tests are imported there is next to nothing to collect, and much to go through.
gc.disable()

# A busy machine may take any time for one example.
settings.register_profile("ramet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ramet")

# A shell that starts this in the background ignores Ctrl-C, and child processes inherit that: tests of interrupts would
# never end.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers of xdist share the server of the process that started them
        config.add_cleanup(fork_server.start())


def pytest_collection_finish() -> None:
    """Leave all that is imported by now out of garbage collection: to go through it takes longer than most tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Modules are collected at the end of the process: DuckDB reports each of its objects that is not as a leak."""
    gc.unfreeze()


@pytest.fixture
def anyio_backend() -> str:
    """Tests marked `anyio` run in real time, because they use threads, processes or sockets."""
    return "asyncio"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of a small real model, kept in the user's cache for later runs."""
    from ramet.models.folders import smollm2_folder

    return smollm2_folder()


def in_virtual_time(work: Callable[[], Awaitable[T]]) -> T:
    """Run `work` on a clock that jumps ahead whenever all tasks wait."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    return anyio.run(work, backend="trio", backend_options={"clock": clock})
