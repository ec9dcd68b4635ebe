"""Measures the work that one thread's event loop does without a pause, and the memory that the process takes.

Work is processor time of the thread: how busy the machine is does not matter.
"""

from __future__ import annotations

import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio

from tests.fuzz.harness import Harness, check

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
TICK_S = 0.001
MAX_BUSY_S, MAX_GROWN_MB = 0.1, 64.0


@dataclass(slots=True)
class Watched:
    """What was measured."""

    busiest_s: float = 0.0  # the most processor time of the loop between two ticks
    grown_mb: float = 0.0  # the peak of the memory above its size at the start


@asynccontextmanager
async def watch() -> AsyncIterator[Watched]:
    """Measure the event loop and the memory until the block ends."""
    watched = Watched()
    gc.collect()
    gc.freeze()  # collecting all that the tests have imported takes longer than what is measured
    before = _reset_peak()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_tick, watched)
            await anyio.sleep(2 * TICK_S)
            yield watched
            await anyio.sleep(2 * TICK_S)
            group.cancel_scope.cancel()
    finally:
        watched.grown_mb = _kilobytes("VmHWM") / 1024 - before


async def _tick(watched: Watched) -> None:
    last = time.thread_time()
    while True:
        await anyio.sleep(TICK_S)
        now = time.thread_time()
        watched.busiest_s, last = max(watched.busiest_s, now - last), now


def _reset_peak() -> float:
    """Let the peak of the memory start at its present size, in MB, which is returned."""
    with suppress(OSError):
        RESET.write_text("5")
    return _kilobytes("VmRSS") / 1024


def _kilobytes(field: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise AssertionError(f"{STATUS} has no {field}")


async def run_cell(harness: Harness, cell: str) -> Watched:
    """Run a tree whose root writes one cell, and measure it."""
    async with watch() as watched:
        tree = await harness.run("python", [f"<python>\n{cell}\n</python>"])
    check(tree)
    return watched
