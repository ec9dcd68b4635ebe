"""The data set that the tasks of a split come from: one that a model was not trained on is beyond its training."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Protocol, runtime_checkable

from ramet.interfaces import Taskset

GENERATED = "generated"
GENERATED_SPLITS = ("train", "eval", "long")


@runtime_checkable
class HasSources(Protocol):
    """A taskset with splits from several data sets. Splits for training and evaluation of one data set are equal."""

    def source(self, split: str) -> str: ...


def source_of(taskset: Taskset, split: str) -> str | None:
    """The data set of a split; None if all splits of the taskset are of one kind."""
    return taskset.source(split) if isinstance(taskset, HasSources) else None


def named_source(split: str) -> str:
    """The data set in the name of a split: generated tasks, or what comes before the first underscore.

    Example:
        named_source("2wiki_train")  # "2wiki"
        named_source("long")         # "generated"
    """
    return GENERATED if split in GENERATED_SPLITS else split.partition("_")[0]


def file_source(file: str | Path | None) -> str:
    """A file by its content, so that a copy elsewhere is the same data set; by its name if it cannot be read."""
    path = Path(file or "").expanduser()
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else path.name
