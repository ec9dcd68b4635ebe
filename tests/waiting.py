"""How long tests wait for threads, processes and servers: until it holds, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 600.0  # then something hangs


def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition that another thread or process fulfils."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {PATIENCE_S:.0f} seconds")
        time.sleep(0.01)
