"""SIGTERM and SIGHUP end a command as Ctrl-C does: what is done is saved, trees are stored, and its processes end.

A scheduler that wants its machine back sends SIGTERM, a terminal that is closed SIGHUP.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

NAMES = ("SIGTERM", "SIGHUP")  # not every system has both


@contextmanager
def ended_like_ctrl_c() -> Generator[list[int]]:
    """Raise SIGINT in the block at the first of these signals; later ones are ignored, so that saving is not disturbed.

    Yields a list that gets the number of the signal. One that is ignored when the command starts, as SIGHUP is under
    nohup, stays ignored.
    """
    received: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if not received:
            received.append(number)
            signal.raise_signal(signal.SIGINT)  # an event loop has a handler of its own
            _hold_sigint(False)

    numbers = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
    handled = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    if ignored := signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a background job of a script
        _hold_sigint(True)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield received
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _hold_sigint(False)


def _hold_sigint(hold: bool) -> None:
    """Hold back Ctrl-C where it is to be ignored, and the SIGINT of another signal is not."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK if hold else signal.SIG_UNBLOCK, {signal.SIGINT})
