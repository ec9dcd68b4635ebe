"""One writer at a time: a run directory that a process writes to is locked against others."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from ramet.errors import StoreError


@contextmanager
def exclusive_lock(run: Path) -> Generator[None]:
    """Keep other processes from writing to this run. The system releases the lock however the process ends."""
    try:
        file = (run / ".lock").open("w")
    except OSError as error:
        raise StoreError(f"cannot write to {run}: {error.strerror}") from None
    with file:
        with suppress(ImportError):  # not every system has such locks
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreError(f"another process is writing to {run}: wait until it ends, or stop it") from None
            except OSError as error:
                raise StoreError(f"cannot lock {run}: {error.strerror}") from None
        yield
