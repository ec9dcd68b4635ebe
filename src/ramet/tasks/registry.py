"""Tasksets, by name. A new one is one file and one line here.

Example:
    load("craft", data="data").task("hard", 17)
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, cast

from ramet.errors import ConfigError
from ramet.interfaces import Sized, Taskset
from ramet.types import Task

TASKSETS: dict[str, str] = {
    "arithmetic": "ramet.tasks.arithmetic:Arithmetic",
    "codes": "ramet.tasks.codes:Codes",
    "craft": "ramet.tasks.craft.taskset:Craft",
    "textcraft": "ramet.tasks.craft.textcraft:TextCraft",
    "multihop": "ramet.tasks.multihop.taskset:Multihop",
    "search": "ramet.tasks.search:Search",
    "aggregate": "ramet.tasks.aggregate.taskset:Aggregate",
    "math": "ramet.tasks.math:Math",
    "countdown": "ramet.tasks.countdown.taskset:Countdown",
    "game24": "ramet.tasks.countdown.taskset:Game24",
    "number_search": "ramet.tasks.number_search:NumberSearch",
    "gym": "ramet.tasks.gym:Gym",
    "jsonl": "ramet.tasks.jsonl:JsonLines",
}


def load(name: str, **options: Any) -> Taskset:
    """A taskset with its options; an unknown name or option names the nearest."""
    make = taskset_class(name)
    known = [one for one in inspect.signature(make).parameters if one != "self"]
    for option in options:
        if option not in known:
            raise ConfigError(f"{name} has no option {option!r}: {_nearest(option, known)}")
    try:
        return make(**options)
    except (TypeError, AttributeError) as error:  # an option of the wrong kind
        given = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise ConfigError(f"{name} cannot be made with {given}: {error}") from None


def taskset_class(name: str) -> Any:
    """The class behind a name."""
    if name not in TASKSETS:
        raise ConfigError(f"unknown taskset {name!r}: {_nearest(name, list(TASKSETS))}")
    module, _, kind = TASKSETS[name].partition(":")
    return getattr(import_module(module), kind)


def find(spec: str, options: Mapping[str, Any]) -> tuple[Taskset, Task]:
    """The task that `craft:hard/17` means."""
    name, _, place = spec.partition(":")
    split, _, index = place.partition("/")
    if not split or not index.isdigit():
        raise ConfigError(f"{spec!r} is not a task: write NAME:SPLIT/INDEX, like craft:hard/17")
    taskset = load(name, **options)
    return taskset, taskset.task(check_split(taskset, split), int(index))


def spec_of(text: str) -> tuple[str, str]:
    """Taskset and split.

    Example:
        spec_of("craft:hard")  # ("craft", "hard")
    """
    name, _, split = text.partition(":")
    if not name or not split or "/" in split:
        raise ConfigError(f"{text!r} is not a taskset and its split: write NAME:SPLIT, like craft:hard")
    return name, split


def check_split(taskset: Taskset, split: str) -> str:
    """The split, if the taskset has it."""
    if split not in taskset.splits:
        raise ConfigError(f"{taskset.name} has no split {split!r}: {_nearest(split, list(taskset.splits))}")
    return split


def check_index(taskset: Taskset, split: str, index: int) -> int:
    """The index, if the split goes that far."""
    size = taskset.size(check_split(taskset, split))
    if index < 0 or (size is not None and index >= size):
        there = f"tasks 0 to {size - 1}" if size else "no tasks"
        raise ConfigError(f"{taskset.name}:{split} has {there}, not {index}")
    return index


def observed_sizes(taskset: Sized, tasks: Iterable[Task]) -> tuple[float, float] | None:
    """The smallest and the largest size among tasks, for splits that come from a file."""
    found = [size for task in tasks if (size := taskset.size_of(task)) is not None]
    return (min(found), max(found)) if found else None


def rows_of(taskset: Taskset, split: str) -> Iterator[Task]:
    """Every task of a split that has an end."""
    return (taskset.task(split, index) for index in range(taskset.size(split) or 0))


def span(value: object, *, name: str, least: int = 1) -> tuple[int, int]:
    """An option that is a range: `[3, 10]`, or one number for both ends."""
    ends = cast(list[object], list(value)) if isinstance(value, (list, tuple)) else [value, value]  # pyright: ignore[reportUnknownArgumentType]
    if len(ends) != 2 or not all(isinstance(end, int) for end in ends):
        raise ConfigError(f"{name} is a whole number or a range [least, most]; got {value!r}")
    low, high = cast(tuple[int, int], tuple(ends))
    if not least <= low <= high:
        raise ConfigError(f"{name} is a range from {least} up, least first; got {value!r}")
    return low, high


def _nearest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    listing = f"accepted are {', '.join(known)}" if known else "there are none"
    return f"did you mean {near[0]}? ({listing})" if near else listing
