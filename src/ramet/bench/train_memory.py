"""What a training needs beside time: memory of the GPU, and what a checkpoint costs."""

# pyright: standard

from __future__ import annotations

import shutil
import time
from functools import partial
from pathlib import Path

import anyio
import torch

from ramet.train.local.backend import LocalBackend

GIB = 2**30


def reset_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_gib() -> float | None:
    """The most memory that torch has reserved on the GPU since `reset_peak`; None without a GPU."""
    return torch.cuda.max_memory_reserved() / GIB if torch.cuda.is_available() else None


def checkpoint_seconds(backend: LocalBackend, run: Path, *, step: int) -> dict[str, float]:
    """Save a checkpoint, then restore weights and optimiser from it."""
    began = time.perf_counter()
    folder = anyio.run(partial(backend.save, run, step=step, keep=1))
    saved = time.perf_counter()
    size = sum(file.stat().st_size for file in folder.iterdir())
    anyio.run(backend.load, folder)
    restored = time.perf_counter()
    shutil.rmtree(folder)
    return {"save_s": saved - began, "restore_s": restored - saved, "checkpoint_gb": size / 1e9}
