"""`make fuzz`: many outputs of models and all hostile cells, and what was found.

python -m tests.fuzz                    200,000 outputs and every cell
python -m tests.fuzz --outputs 5000 --cells 20
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import sys
import time
import traceback

import anyio

from ramet.agent.sandbox import Sandbox
from tests.fuzz.cells import CELLS
from tests.fuzz.driver import SHARES, fuzz, open_harness
from tests.fuzz.harness import Harness
from tests.fuzz.watch import MAX_BUSY_S, MAX_GROWN_MB, run_cell

AT_ONCE = 3000  # outputs that are drawn together: hypothesis remembers all of them


def fuzz_outputs(number: int) -> int:
    """Fuzz every dialect; return how many of them broke."""
    broken = 0
    with open_harness() as (harness, portal):
        for dialect, share in SHARES.items():
            began = time.monotonic()
            try:
                for left in range(int(share * number), 0, -AT_ONCE):
                    fuzz(dialect, min(left, AT_ONCE), harness, portal, derandomize=False)
                found = "nothing found"
            except BaseException as error:  # a failing example is reported, and the other dialects still run
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
                broken += 1
                traceback.print_exc()
                found = "BROKEN, see above"
            seconds = time.monotonic() - began
            print(f"{dialect:14} {harness.tried[dialect]:9,} outputs  {seconds:6.0f} s  {found}", flush=True)
        print("ends: " + ", ".join(f"{number:,} {end}" for end, number in harness.ends.most_common()))
    return broken


async def run_cells(number: int) -> int:
    """Run hostile cells; return how many exceeded a limit."""
    broken, busiest, grown = 0, 0.0, 0.0
    async with Sandbox(workers=1) as sandbox:
        harness = Harness(sandbox)
        await run_cell(harness, "import asyncio\nasyncio.Event()\nfinish([1])")  # load everything
        for cell in CELLS[:number]:
            watched = await run_cell(harness, cell)
            busiest, grown = max(busiest, watched.busiest_s), max(grown, watched.grown_mb)
            if watched.busiest_s >= MAX_BUSY_S or watched.grown_mb >= MAX_GROWN_MB:
                broken += 1
                print(
                    f"{watched.busiest_s:.3f} s without a pause, {watched.grown_mb:.0f} MB: {cell[:200]!r}", flush=True
                )
    print(
        f"{len(CELLS[:number]):,} hostile cells: the event loop worked at most {busiest * 1000:.0f} ms without a pause "
        f"(limit {MAX_BUSY_S * 1000:.0f}), memory grew by at most {grown:.0f} MB (limit {MAX_GROWN_MB:.0f}), "
        f"{broken} exceeded a limit",
        flush=True,
    )
    return broken


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--outputs", type=int, default=200_000, help="outputs of models in all dialects together")
    parser.add_argument("--cells", type=int, default=len(CELLS), help="hostile cells, from the first on")
    given = parser.parse_args()
    broken = anyio.run(run_cells, given.cells) + fuzz_outputs(given.outputs)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
