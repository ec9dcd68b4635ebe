"""Levels of difficulty: splits of a taskset, or ranges of the sizes of its tasks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, pairwise

from ramet.errors import ConfigError
from ramet.interfaces import HasSizes, Taskset
from ramet.tasks.dice import seed_of
from ramet.tasks.registry import check_split, known_size
from ramet.tasks.returned import split_size, task_at
from ramet.train.settings import CurriculumConfig

SPAN = 2**20  # indices of an endless split that each step has for itself
LOOKED_AT = 2000  # tasks of an endless split among which every level must have one
SizeOf = Callable[[int], float | None]  # the size of a task, by its index


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Tasks of one split that are about equally hard."""

    name: str  # in metrics
    split: str
    members: Sequence[int] | None = None  # indices; None: endless
    belongs: Callable[[int], bool] | None = None  # of an endless level; None: all indices do

    def indices(self, *, step: int, start: int, seed: int, once: bool = False) -> Iterator[int]:
        """Tasks of a finite level from position `start`, reshuffled every epoch.

        With `once`, they end when every task has come: after two epochs, because `start` may be anywhere in one. An
        endless level has tasks of its own for every step.
        """
        if self.members is None:
            return filter(self.belongs or _all, count(step * SPAN))
        positions = range(start, start + 2 * len(self.members)) if once else count(start)
        return (self._at(position, seed) for position in positions)

    def _at(self, position: int, seed: int) -> int:
        members = self.members or ()
        epoch, place = divmod(position, len(members))
        return members[_order(len(members), seed_of(seed, "level", self.name, epoch))[place]]


def _all(index: int) -> bool:
    del index
    return True


@lru_cache(maxsize=64)
def _order(size: int, seed: int) -> list[int]:
    order = list(range(size))
    random.Random(seed).shuffle(order)
    return order


def find_levels(taskset: Taskset, split: str, config: CurriculumConfig) -> tuple[Level, ...]:
    """The levels that the settings name, each with at least one task; none without a curriculum."""
    if config.splits:
        return tuple(_split_level(taskset, spec) for spec in config.splits)
    if not config.sizes:
        return ()
    if not isinstance(taskset, HasSizes):
        raise ConfigError(f"curriculum.sizes: tasks of {taskset.name} have no sizes; give curriculum.splits")
    size_of = _sizes(taskset, split)
    bounds = pairwise((-math.inf, *config.sizes))
    return tuple(_size_level(taskset, split, size_of, low, high) for low, high in bounds)


def _split_level(taskset: Taskset, spec: str) -> Level:
    """A level that is a split, given by its name or as NAME:SPLIT."""
    name, _, split = spec.rpartition(":")
    if name not in ("", taskset.name):
        raise ConfigError(f"curriculum.splits: levels are splits of one taskset, here {taskset.name}; got {spec!r}")
    size = split_size(taskset, check_split(taskset, split))
    if size == 0:
        raise ConfigError(f"curriculum.splits: {taskset.name}:{split} has no tasks")
    return Level(name=split, split=split, members=None if size is None else range(size))


def _size_level(taskset: Taskset, split: str, size_of: SizeOf, low: float, high: float) -> Level:
    """The tasks of a split that are larger than `low` and at most as large as `high`."""

    def belongs(index: int) -> bool:
        size = size_of(index)
        return size is not None and low < size <= high

    size = split_size(taskset, split)
    candidates = filter(belongs, range(LOOKED_AT if size is None else size))
    first = next(candidates, None)
    if first is None:
        least = "" if low == -math.inf else f"above {low:g} and "
        raise ConfigError(f"curriculum.sizes: {taskset.name}:{split} has no task of a size {least}up to {high:g}")
    members = None if size is None else [first, *candidates]
    return Level(name=f"upto_{high:g}", split=split, members=members, belongs=belongs)


def _sizes(taskset: Taskset, split: str) -> SizeOf:
    """Sizes by index. Making a task may take milliseconds, and several levels ask for the same ones."""

    @lru_cache(maxsize=SPAN)
    def size_of(index: int) -> float | None:
        return known_size(taskset, task_at(taskset, split, index))

    return size_of
