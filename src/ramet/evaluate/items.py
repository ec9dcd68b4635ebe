"""The tasks of an evaluation: each with its size, its bucket, and whether it is beyond the training range."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

from ramet import plugins
from ramet.errors import ConfigError
from ramet.interfaces import Taskset
from ramet.tasks.registry import check_split, known_size, load_taskset, parse_spec, taskset_class
from ramet.tasks.returned import split_size, task_at
from ramet.tasks.sources import source_of
from ramet.tasks.worlds import with_world
from ramet.types import Task

MAX_BUCKETS = 8


@dataclass(frozen=True, slots=True)
class Trained:
    """What a model was trained on: a taskset (None: any), the range of its sizes, and the data set (None: any)."""

    taskset: str | None
    least: float
    most: float
    source: str | None = None

    def covers(self, taskset: str, size: float | None, source: str | None = None) -> bool:
        if self.taskset is not None and taskset != self.taskset:
            return False
        if self.source is not None and source != self.source:
            return False
        return size is None or self.least <= size <= self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One task to be answered."""

    taskset: Taskset
    split: str
    task: Task
    size: float | None
    bucket: str = ""
    beyond: bool = False


def load_tasksets(
    specs: Sequence[str],
    options: Mapping[str, Any],
    *,
    own: Mapping[str, Taskset] | None = None,
    world: str = "",
) -> list[tuple[str, Taskset, str]]:
    """Every spec with its taskset and split. An option goes to the tasksets that have it; at least one must.

    `own` are tasksets by spec that need no loading; `world` is that of the user, for all of them.
    """
    if not specs:
        raise ConfigError("which tasks? write NAME:SPLIT, like craft:hard (ramet tasks lists them)")
    if len(set(specs)) < len(specs):
        raise ConfigError(f"a split is named twice in {' '.join(specs)}")
    own, parsed = own or {}, [parse_spec(spec) for spec in specs]
    accepted = {name: _option_names(name) for spec, (name, _) in zip(specs, parsed, strict=True) if spec not in own}
    unknown = {key: value for key, value in options.items() if all(key not in known for known in accepted.values())}
    loaded: dict[str, Taskset] = {}
    for name, known in accepted.items():  # `load_taskset` refuses the unknown ones
        loaded[name] = load_taskset(name, **unknown, **{key: value for key, value in options.items() if key in known})
    found: list[tuple[str, Taskset, str]] = []
    for spec, (name, split) in zip(specs, parsed, strict=True):
        taskset = with_world(own[spec] if spec in own else loaded[name], world)
        found.append((plugins.shortened(spec), taskset, check_split(taskset, split, default="eval")))
    return found


def _option_names(name: str) -> set[str]:
    found = taskset_class(name)
    return set(inspect.signature(found).parameters) if callable(found) else set()


def select_items(
    tasksets: Sequence[tuple[str, Taskset, str]], *, num_tasks: int, trained: Sequence[Trained] = ()
) -> list[Item]:
    """The first tasks of every split, or all it has. A bucket is a split, or a size if there is only one split."""
    items: list[Item] = []
    for spec, taskset, split in tasksets:
        available, source = split_size(taskset, split), source_of(taskset, split)
        if available == 0:
            raise ConfigError(f"{spec} has no tasks")
        for index in range(num_tasks if available is None else min(available, num_tasks)):
            task = task_at(taskset, split, index)
            size = known_size(taskset, task)
            beyond = bool(trained) and not any(known.covers(taskset.name, size, source) for known in trained)
            items.append(Item(taskset=taskset, split=spec, task=task, size=size, bucket=spec, beyond=beyond))
    _check_unique_ids(items)
    if len(tasksets) > 1 or any(item.size is None for item in items):
        return items
    labels = size_buckets([(item.size or 0.0, item.beyond) for item in items])
    return [replace(item, bucket=label) for item, label in zip(items, labels, strict=True)]


def _check_unique_ids(items: Sequence[Item]) -> None:
    """Methods are compared item by item, so every item needs its own id."""
    seen: set[str] = set()
    for item in items:
        if item.task.id in seen:
            raise ConfigError(f"two tasks have the id {item.task.id!r}: evaluate their splits separately")
        seen.add(item.task.id)


def size_buckets(sizes: Sequence[tuple[float, bool]], *, most: int = MAX_BUCKETS) -> list[str]:
    """A bucket for each (size, beyond training): a single size, or a range if there are many sizes.

    No bucket mixes sizes within the training range with sizes beyond it.

    Example:
        size_buckets([(3, False), (4, False), (7, True), (3, False)])          # ["3", "4", "7", "3"]
        size_buckets([(1, False), (2, False), (3, False), (9, True)], most=2)  # ["1-3", "1-3", "1-3", "9"]
    """
    distinct = sorted(set(sizes))
    runs = [[size for size, _ in run] for _, run in groupby(distinct, key=lambda pair: pair[1])]
    labels: dict[float, str] = {}
    for run, parts in zip(runs, _parts_per_run([len(run) for run in runs], most), strict=True):
        edges = [round(place * len(run) / parts) for place in range(parts + 1)]
        for first, last in pairwise(edges):
            group = run[first:last]
            name = f"{group[0]:g}" if len(group) == 1 else f"{group[0]:g}-{group[-1]:g}"
            labels |= dict.fromkeys(group, name)
    return [labels[size] for size, _ in sizes]


def _parts_per_run(lengths: Sequence[int], most: int) -> list[int]:
    """How many parts each run is cut into: one or more each, the longest cut first, at most `most` in all."""
    parts = [1] * len(lengths)
    while sum(parts) < most:
        longest = max(range(len(lengths)), key=lambda i: lengths[i] / parts[i])
        if lengths[longest] <= parts[longest]:
            break
        parts[longest] += 1
    return parts
