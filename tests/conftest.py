"""Shared by all tests: virtual time, and a small real model."""

from __future__ import annotations

import os

# Threads that wait for each other make tiny models many times slower on a busy machine. Read when torch is imported,
# here and in every process that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import anyio
import pytest
import trio.testing

T = TypeVar("T")

# A shell that starts this in the background has Ctrl-C ignored, and children inherit that: interrupts would never end.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def anyio_backend() -> str:
    """Tests marked `anyio` run on real time, for what really takes time: threads, processes, sockets."""
    return "asyncio"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of a small real model; it stays in the user's cache, so that later runs find it there."""
    from ramet.models.folders import smollm2_folder

    return smollm2_folder()


def in_virtual_time(work: Callable[[], Awaitable[T]]) -> T:
    """Run `work` where waiting an hour costs nothing."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    return anyio.run(work, backend="trio", backend_options={"clock": clock})
