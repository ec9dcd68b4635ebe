"""Hostile cells cost the host a bounded amount of memory and never keep its event loop busy. `make fuzz` runs all."""

from __future__ import annotations

import pytest

from ramet.agent.sandbox import Sandbox
from tests.fuzz.cells import CELLS, SAMPLE
from tests.fuzz.harness import Harness
from tests.fuzz.watch import MAX_BUSY_S, MAX_GROWN_MB, STATUS, run_cell

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not STATUS.exists(), reason="the peak of the memory is read from /proc"),
]


def test_there_are_two_hundred_hostile_cells() -> None:
    assert len(set(CELLS)) >= 200
    assert len(SAMPLE) == 12


async def test_a_hostile_cell_does_not_fill_the_memory_of_the_host_or_block_its_event_loop() -> None:
    async with Sandbox(workers=1, seconds=0.4) as sandbox:
        harness = Harness(sandbox)
        await run_cell(harness, "import asyncio\nasyncio.Event()\nfinish([1])")  # load everything
        for cell in SAMPLE:
            watched = await run_cell(harness, cell)
            assert watched.grown_mb < MAX_GROWN_MB, cell
            assert watched.busiest_s < MAX_BUSY_S, cell
