"""When CUDA graphs may be captured beside a learner that works on the same device in another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

T = TypeVar("T")


class CaptureGuard:
    """Keeps captures of graphs apart from work of other threads on the same device.

    A call that waits for the whole device, such as a compiler makes when it times a kernel, breaks a capture that
    another thread has begun, and fails itself. So the learner works inside `with guard.working():`, where it waits for
    a capture to end, and no capture begins meanwhile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def working(self) -> AbstractContextManager[object]:
        return self._lock

    def capture(self, make: Callable[[], T]) -> T | None:
        """What `make` captures; None, at once, while another thread works."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return make()
        finally:
            self._lock.release()
