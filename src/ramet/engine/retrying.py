"""Waiting between attempts: exponential, random, as long as the server asks for, and never beyond the deadline.

And when to give up on a server that has failed in some of many items.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import anyio

from ramet.errors import EngineBusy, EngineError, tried

RETRIED_STATUS = {408, 425, 429, 500, 502, 503, 504, 529}
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 20.0  # exponential backoff
LONGEST_RETRY_AFTER_S = 600.0  # a server that asks for a longer wait is an error
IN_A_ROW = 5  # items that may fail one after another


class FailuresInARow:
    """Failures of many items on one server: one is left to its item, several in a row are the server's."""

    def __init__(self) -> None:
        self._count = 0

    def succeeded(self) -> None:
        self._count = 0

    def failed(self, error: EngineError) -> bool:
        """Count a failure; whether the other items need not be tried."""
        self._count += 1
        return self._count >= IN_A_ROW or error.lasting is not None


async def back_off(busy: EngineBusy, attempt: int, *, tries: int, jitter: random.Random) -> None:
    """Wait before the next attempt. Raises `EngineError` when no attempts or no time is left."""
    if attempt >= tries:
        raise EngineError(f"{busy} ({tried(attempt)})", lasting=busy.lasting) from busy
    backoff = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (attempt - 1)) * jitter.uniform(0.5, 1.0)
    wait = backoff if busy.retry_after_s is None else busy.retry_after_s + jitter.uniform(0.0, FIRST_WAIT_S)
    if busy.retry_after_s == 0 and attempt == 1:
        wait = 0.0
    remaining = anyio.current_effective_deadline() - anyio.current_time()
    if wait >= remaining:
        why = f"the next attempt in {wait:.1f} s would miss the deadline"
        raise EngineError(f"{busy} ({why})", lasting=busy.lasting) from busy
    if wait > LONGEST_RETRY_AFTER_S:
        raise EngineError(f"{busy} (it asks to wait {wait:.0f} s)") from busy
    await anyio.sleep(wait)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds from the Retry-After header, which is a number or a date."""
    value = headers.get("Retry-After")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
