"""Write files and folders so that they are complete or absent, even when the process or the machine stops.

Data goes to a temporary name beside the final one, is flushed to disk and renamed. Errors of the file system are left
to the caller as `OSError`; the temporary file or folder is removed.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

STALE_S = 24 * 3600.0  # a temporary folder this old belongs to a process that was killed


@contextmanager
def atomic_file(path: Path) -> Generator[BinaryIO]:
    """Open a file for writing that replaces `path` when the block ends without an error.

    A file has one writer at a time: the temporary name is always the same, so a killed process leaves at most one.

    Example:
        with atomic_file(run / "meta.json") as file:
            file.write(b"{}")
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    flush_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Replace the text of a file, in UTF-8."""
    with atomic_file(path) as file:
        file.write(text.encode())


@contextmanager
def atomic_folder(path: Path) -> Generator[Path]:
    """A temporary folder that becomes `path` when the block ends without an error.

    `path` may be absent or an empty folder; anything else is an `OSError`, so the first of several writers wins.

    Example:
        with atomic_folder(run / "checkpoints" / "step-000010") as folder:
            save_file(weights, folder / "model.safetensors")
    """
    temporary = temporary_name(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        _share_files(temporary)
        flush_files(temporary)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    flush_folder(path.parent)


def _share_files(folder: Path) -> None:
    """Let those who may read the folder read its files: safetensors writes some that only their owner can read."""
    mode = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


def temporary_name(path: Path) -> Path:
    """A hidden name beside `path` that no other process uses."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def remove_stale(path: Path) -> None:
    """Remove temporary folders of `path` that killed processes left behind."""
    for temporary in path.parent.glob(f".{path.name}.*.tmp"):
        if time.time() - temporary.stat().st_mtime > STALE_S:
            shutil.rmtree(temporary, ignore_errors=True)


def flush_files(folder: Path) -> None:
    """Flush every file under a folder to disk, and the folders themselves."""
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            flush_folder(path)
            continue
        with path.open("rb") as file:
            os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to disk, so that a rename survives a power failure."""
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
