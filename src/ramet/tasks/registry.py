"""Tasksets by name. A new one is one file and one line here.

Example:
    load_taskset("craft").task("hard", 17)
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, cast, get_type_hints

from ramet.errors import ConfigError, did_you_mean
from ramet.interfaces import HasSizes, Taskset
from ramet.types import Task

MAX_DIGITS = 19  # of the index of a task

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


def load_taskset(name: str, **options: Any) -> Taskset:
    """The taskset of this name, with its options."""
    make = taskset_class(name)
    known = [option for option in inspect.signature(make).parameters if option != "self"]
    for option in options:
        if option not in known:
            raise ConfigError(f"{name} has no option {option!r}: {did_you_mean(option, known)}")
    try:
        taskset = make(**options)
    except (TypeError, AttributeError) as error:  # an option of the wrong type
        given = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise ConfigError(f"{name} cannot be made with {given}: {error}") from None
    _check_types(name, make, options)
    return taskset


def _check_types(name: str, make: Any, options: Mapping[str, Any]) -> None:
    """Refuse options of another type than the taskset declares, which would fail when they are used."""
    from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

    hints = get_type_hints(make.__init__)
    for option, value in options.items():
        try:
            TypeAdapter(hints.get(option, Any)).validate_python(value)
        except PydanticSchemaGenerationError:  # a type of our own: the taskset checks it
            continue
        except ValidationError as error:
            message = error.errors(include_input=False)[0]["msg"].lower()
            raise ConfigError(f"taskset.{option} of {name}: {message}; got {str(value)[:80]!r}") from None


def taskset_class(name: str) -> Any:
    """The class of a taskset, by name."""
    if name not in TASKSETS:
        raise ConfigError(f"unknown taskset {name!r}: {did_you_mean(name, TASKSETS)}")
    module, _, kind = TASKSETS[name].partition(":")
    return getattr(import_module(module), kind)


def find_task(spec: str, options: Mapping[str, Any]) -> tuple[Taskset, Task]:
    """The taskset and the task that a text such as `craft:hard/17` names."""
    name, _, place = spec.partition(":")
    split, _, index = place.partition("/")
    if not split or not (index.isascii() and index.isdigit() and len(index) < MAX_DIGITS):
        raise ConfigError(f"{spec!r} is not a task: write NAME:SPLIT/INDEX, like craft:hard/17")
    taskset = load_taskset(name, **options)
    return taskset, taskset.task(check_split(taskset, split), int(index))


def parse_spec(text: str) -> tuple[str, str]:
    """The names of a taskset and of its split.

    Example:
        parse_spec("craft:hard")  # ("craft", "hard")
    """
    name, _, split = text.partition(":")
    if not name or not split or "/" in split:
        raise ConfigError(f"{text!r} is not a taskset and its split: write NAME:SPLIT, like craft:hard")
    return name, split


def check_split(taskset: Taskset, split: str) -> str:
    """The split, if the taskset has it."""
    if split not in taskset.splits:
        raise ConfigError(f"{taskset.name} has no split {split!r}: {did_you_mean(split, taskset.splits)}")
    return split


def check_index(taskset: Taskset, split: str, index: int) -> int:
    """The index, if the split has a task there."""
    size = taskset.size(check_split(taskset, split))
    if index < 0 or (size is not None and index >= size):
        there = f"tasks 0 to {size - 1}" if size else "no tasks"
        raise ConfigError(f"{taskset.name}:{split} has {there}, not {index}")
    return index


def split_tasks(taskset: Taskset, split: str) -> Iterator[Task]:
    """Every task of a finite split."""
    return (taskset.task(split, index) for index in range(taskset.size(split) or 0))


def observed_sizes(taskset: HasSizes, tasks: Iterable[Task]) -> tuple[float, float] | None:
    """The smallest and the largest size among tasks, for splits that come from a file."""
    sizes = [size for task in tasks if (size := taskset.size_of(task)) is not None]
    return (min(sizes), max(sizes)) if sizes else None


def parse_range(value: object, *, name: str, least: int = 1) -> tuple[int, int]:
    """The value of an option that is a range: `[3, 10]`, or one number for both ends."""
    ends = cast(list[object], list(value)) if isinstance(value, (list, tuple)) else [value, value]  # pyright: ignore[reportUnknownArgumentType]
    if len(ends) != 2 or not all(isinstance(end, int) for end in ends):
        raise ConfigError(f"{name} must be a whole number or a range [least, most]; got {value!r}")
    low, high = cast(tuple[int, int], tuple(ends))
    if not least <= low <= high:
        raise ConfigError(f"{name} must be a range from {least} up, the smaller first; got {value!r}")
    return low, high
