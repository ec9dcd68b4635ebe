"""What is asked: tasks of one or more splits, each with its size, its part of the table, and whether it is beyond what
the model was trained on.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

from ramet.errors import ConfigError
from ramet.interfaces import Sized, Taskset
from ramet.tasks.registry import check_split, load, spec_of, taskset_class
from ramet.types import Task

MOST_BUCKETS = 8


@dataclass(frozen=True, slots=True)
class Trained:
    """What a model was trained on: a taskset, and the sizes of its tasks. Either may be unknown."""

    taskset: str | None
    least: float
    most: float

    def covers(self, taskset: str, size: float | None) -> bool:
        if self.taskset is not None and taskset != self.taskset:
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


def tasksets_of(
    specs: Sequence[str],
    options: Mapping[str, Any],
    *,
    own: Mapping[str, Taskset] | None = None,
) -> list[tuple[str, Taskset, str]]:
    """Every spec with its taskset and split. An option goes to the tasksets that have it; one of them must.

    `own` are tasksets by name that are there already.
    """
    if not specs:
        raise ConfigError("which tasks? write NAME:SPLIT, like craft:hard (ramet tasks lists them)")
    if len(set(specs)) < len(specs):
        raise ConfigError(f"a split is named twice in {' '.join(specs)}")
    names = [spec_of(spec)[0] for spec in specs]
    loaded = dict(own or {})
    known = {name: set(inspect.signature(taskset_class(name)).parameters) for name in names if name not in loaded}
    strange = {option: value for option, value in options.items() if all(option not in one for one in known.values())}
    for name in known:
        loaded[name] = load(name, **strange, **{key: value for key, value in options.items() if key in known[name]})
    return [
        (spec, loaded[name], check_split(loaded[name], spec_of(spec)[1]))
        for spec, name in zip(specs, names, strict=True)
    ]


def items_of(
    tasksets: Sequence[tuple[str, Taskset, str]], *, num_tasks: int, trained: Sequence[Trained] = ()
) -> list[Item]:
    """The first tasks of every split, or all it has; a bucket is a split, or a size where there is but one split."""
    found: list[Item] = []
    for spec, taskset, split in tasksets:
        size = taskset.size(split)
        if size == 0:
            raise ConfigError(f"{spec} has no tasks")
        for index in range(num_tasks if size is None else min(size, num_tasks)):
            task = taskset.task(split, index)
            size_of_it = taskset.size_of(task) if isinstance(taskset, Sized) else None
            beyond = bool(trained) and not any(one.covers(taskset.name, size_of_it) for one in trained)
            found.append(Item(taskset=taskset, split=spec, task=task, size=size_of_it, bucket=spec, beyond=beyond))
    _check_names(found)
    if len(tasksets) > 1 or any(item.size is None for item in found):
        return found
    parts = buckets([(item.size or 0.0, item.beyond) for item in found])
    return [replace(item, bucket=part) for item, part in zip(found, parts, strict=True)]


def _check_names(items: Sequence[Item]) -> None:
    """Methods are compared item by item, so every item has a name of its own."""
    seen: set[str] = set()
    for item in items:
        if item.task.id in seen:
            raise ConfigError(f"two tasks are called {item.task.id!r}: evaluate their splits apart")
        seen.add(item.task.id)


def buckets(sizes: Sequence[tuple[float, bool]], *, most: int = MOST_BUCKETS) -> list[str]:
    """A part of the table for each size: a size of its own, or a range where there are many.

    None mixes sizes that were trained on with others.

    Example:
        buckets([(3, False), (4, False), (7, True), (3, False)])          # ["3", "4", "7", "3"]
        buckets([(1, False), (2, False), (3, False), (9, True)], most=2)  # ["1-3", "1-3", "1-3", "9"]
    """
    distinct = sorted(set(sizes))
    runs = [[size for size, _ in run] for _, run in groupby(distinct, key=lambda one: one[1])]
    labels: dict[float, str] = {}
    for run, parts in zip(runs, _parts([len(run) for run in runs], most), strict=True):
        edges = [round(place * len(run) / parts) for place in range(parts + 1)]
        for first, last in pairwise(edges):
            group = run[first:last]
            name = f"{group[0]:g}" if len(group) == 1 else f"{group[0]:g}-{group[-1]:g}"
            labels |= dict.fromkeys(group, name)
    return [labels[size] for size, _ in sizes]


def _parts(lengths: Sequence[int], most: int) -> list[int]:
    """Into how many parts each run is cut: one at least, more where parts are longest, no more than `most` in all."""
    parts = [1] * len(lengths)
    while sum(parts) < most:
        longest = max(range(len(lengths)), key=lambda i: lengths[i] / parts[i])
        if lengths[longest] <= parts[longest]:
            break
        parts[longest] += 1
    return parts
