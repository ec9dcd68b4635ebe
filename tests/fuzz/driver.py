"""Draws outputs and plays them on one event loop, for the suite and for `make fuzz`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet.agent.sandbox import Sandbox
from tests.fuzz.harness import Harness
from tests.fuzz.outputs import OUTPUTS

PER_TREE = 6  # outputs that are drawn for one tree: its nodes write them in turn
SHARES = {"tools": 0.3, "tools-returns": 0.15, "terse": 0.2, "python": 0.2, "judge": 0.15}  # of all outputs


@contextmanager
def open_harness() -> Iterator[tuple[Harness, BlockingPortal]]:
    """A harness, and the event loop that it runs on."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Sandbox(workers=1)) as sandbox:
        harness = Harness(sandbox)
        portal.call(harness.play, "tools", ["Answer: 1"])  # load everything
        portal.call(harness.play, "python", ["<python>\nimport asyncio\nasyncio.Event()\n</python>", "x"])
        harness.tried.clear()
        yield harness, portal


def fuzz(dialect: str, outputs: int, harness: Harness, portal: BlockingPortal, *, derandomize: bool) -> None:
    """Draw and play `outputs` outputs of a dialect. Raises for the first one that breaks something, made small."""
    done = portal.call(harness.run, "tools", ["Answer: 1"])

    @settings(
        max_examples=max(1, outputs // PER_TREE),
        database=None,
        deadline=None,
        derandomize=derandomize,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(OUTPUTS[dialect], min_size=PER_TREE, max_size=PER_TREE), st.booleans())
    def play(drawn: list[str], token_ids: bool) -> None:
        if dialect == "judge":
            portal.call(harness.judge, drawn, done)
        else:
            portal.call(lambda: harness.play(dialect, drawn, token_ids=token_ids))

    play()
