"""Tasksets by name. A new one is one file and one line here.

One of your own needs no line: `my_tasks.py:Backwards`, `package.module:Name`, or an entry point (`plugins.py`).

Example:
    load_taskset("craft").task("hard", 17)
    load_taskset("my_tasks.py:Backwards").task("train", 0)
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from numbers import Real
from typing import Any, cast, get_type_hints

from ramet import plugins
from ramet.errors import ConfigError, did_you_mean
from ramet.interfaces import HasSizes, Taskset
from ramet.tasks.returned import split_size, task_at
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
SOURCES: dict[str, str] = {  # tasksets whose tasks another package has: verifiers:NAME, inspect:file.py@task
    "verifiers": "ramet.tasks.peers.verifiers:VerifiersTasks",
    "inspect": "ramet.tasks.peers.inspect:InspectTasks",
}


def load_taskset(name: str, **options: Any) -> Taskset:
    """The taskset of this name, with its options. `ramet tasks` lists the names.

    Example:
        load_taskset("arithmetic", operators=[3, 5])
        load_taskset("my_tasks.py:Backwards")
    """
    make = taskset_class(name)
    if not callable(make):  # an object in a file
        return plugins.make(name, "taskset", **options)
    known = [option for option in inspect.signature(make).parameters if option != "self"]
    for option in options:
        if option not in known:
            raise ConfigError(f"{name} has no option {option!r}: {did_you_mean(option, known)}")
    taskset = plugins.make(name, "taskset", **options) if is_plugin(name) else _make(name, make, options)
    _check_types(name, make, options)
    return taskset


def _make(name: str, make: Any, options: Mapping[str, Any]) -> Taskset:
    try:
        return make(**options)
    except (TypeError, AttributeError) as error:  # an option of the wrong type
        given = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise ConfigError(f"{name} cannot be made with {given}: {error}") from None


def _check_types(name: str, make: Any, options: Mapping[str, Any]) -> None:
    """Refuse options of another type than the taskset declares, which would fail when they are used."""
    from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

    hints = _hints(make.func if isinstance(make, partial) else make) if options else {}
    for option, value in options.items():
        try:
            # Pydantic takes true for 1, unless it is strict.
            TypeAdapter(hints.get(option, Any)).validate_python(value, strict=isinstance(value, bool))
        except PydanticSchemaGenerationError:  # a type of our own: the taskset checks it
            continue
        except ValidationError as error:
            message = error.errors(include_input=False)[0]["msg"].lower()
            raise ConfigError(f"taskset.{option} of {name}: {message}; got {str(value)[:80]!r}") from None


def _hints(make: Any) -> dict[str, Any]:
    try:
        return get_type_hints(make.__init__ if inspect.isclass(make) else make)
    except NameError:  # of a plug-in: a type that is imported for type checkers only
        return {}


def taskset_class(name: str) -> Any:
    """The class of a taskset, by name; of a plug-in, what its reference names."""
    source, _, what = name.partition(":")
    if source in SOURCES and what:
        return partial(_import(SOURCES[source]), what)
    if is_plugin(name):
        return plugins.load(name, "taskset")
    check_taskset_name(name)
    return _import(TASKSETS[name])


def check_taskset_name(name: str) -> None:
    """Refuse a name that no taskset has."""
    if name not in TASKSETS and not is_plugin(name):
        plugins.check_has_name(name, "taskset")
        raise ConfigError(f"unknown taskset {name!r}: {did_you_mean(name, taskset_names())}")


def _import(place: str) -> Any:
    module, _, kind = place.partition(":")
    return getattr(import_module(module), kind)


def is_plugin(name: str) -> bool:
    """Whether a taskset is neither built in nor one of another package's tasks."""
    return plugins.is_reference(name) or (name not in TASKSETS and name in plugins.entry_point_names("taskset"))


def taskset_names() -> list[str]:
    """All tasksets that have a name: those built in, then those of installed packages."""
    return [*TASKSETS, *(name for name in plugins.entry_point_names("taskset") if name not in TASKSETS)]


def find_task(spec: str, options: Mapping[str, Any]) -> tuple[Taskset, Task]:
    """The taskset and the task that a text such as `craft:hard/17` names."""
    place, _, index = spec.rpartition("/")
    name, split = split_spec(place)
    complete = bool(split) or not _needs_split(place)
    if not complete or "/" in split or not (index.isascii() and index.isdigit() and len(index) < MAX_DIGITS):
        raise ConfigError(f"{spec!r} is not a task: write NAME:SPLIT/INDEX, like craft:hard/17")
    taskset = load_taskset(name, **options)
    return taskset, task_at(taskset, check_split(taskset, split), int(index))


def parse_spec(text: str) -> tuple[str, str]:
    """The names of a taskset and of its split; the split of a plug-in may be left out.

    Example:
        parse_spec("craft:hard")                   # ("craft", "hard")
        parse_spec("my_tasks.py:Backwards:train")  # ("my_tasks.py:Backwards", "train")
        parse_spec("my_tasks.py:Backwards")        # ("my_tasks.py:Backwards", "")
    """
    name, split = split_spec(text)
    if not split and name in TASKSETS:
        raise ConfigError(f"{name} needs a split: {', '.join(f'{name}:{known}' for known in _splits(name))}")
    if not split:
        plugins.check_has_name(text, "taskset")
        if name and _needs_split(text):
            check_taskset_name(name)
    if not name or "/" in split or (not split and _needs_split(text)):
        raise ConfigError(f"{text!r} is not a taskset and its split: write NAME:SPLIT, like craft:hard")
    return name, split


def _splits(name: str) -> Iterable[str]:
    try:
        return load_taskset(name).splits
    except ConfigError:  # it cannot be made without options
        return ["SPLIT"]


def short_name(*specs: str) -> str:
    """Tasks or splits as a few words for the name of a directory: without folders, `.py` and words that repeat.

    Example:
        short_name("/home/a/products.py:Products:held_out", "craft:hard")  # "products-held-out-craft-hard"
    """
    text = " ".join(plugins.shortened(spec).replace(".py:", ":") for spec in specs)
    return "-".join(dict.fromkeys(re.findall(r"[a-z0-9]+", text.lower())))


def split_spec(text: str) -> tuple[str, str]:
    """The two parts of NAME:SPLIT, unchecked. The name of a plug-in has a colon of its own."""
    head, _, rest = text.partition(":")
    if _needs_split(text):
        return head, rest
    what, _, split = rest.partition(":")
    return (f"{head}:{what}", split) if what else ("", "")


def _needs_split(text: str) -> bool:
    """Whether a name is a plain word, with nothing but its split after the colon."""
    head = text.partition(":")[0]
    return not (head in SOURCES or "." in head or "/" in head or text.startswith(plugins.GIVEN))


def check_split(taskset: Taskset, split: str, *, default: str = "train") -> str:
    """The split, if the taskset has it. An empty one is the default, or else the first."""
    if not split:
        return default if default in taskset.splits else next(iter(taskset.splits))
    if split not in taskset.splits:
        raise ConfigError(f"{taskset.name} has no split {split!r}: {did_you_mean(split, taskset.splits)}")
    return split


def check_index(taskset: Taskset, split: str, index: int) -> int:
    """The index, if the split has a task there."""
    size = split_size(taskset, check_split(taskset, split))
    if index < 0 or (size is not None and index >= size):
        there = f"tasks 0 to {size - 1}" if size else "no tasks"
        raise ConfigError(f"{taskset.name}:{split} has {there}, not {index}")
    return index


def split_tasks(taskset: Taskset, split: str) -> Iterator[Task]:
    """Every task of a finite split."""
    return (task_at(taskset, split, index) for index in range(split_size(taskset, split) or 0))


def known_size(taskset: object, task: Task) -> float | None:
    """The size of a task; None if its taskset has no sizes, or gives one that is no finite number."""
    return finite_number(taskset.size_of(task)) if isinstance(taskset, HasSizes) else None


def finite_number(value: object) -> float | None:
    """A number that a file or a plug-in gives; None for NaN, infinity, and what is no number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return cast(float, value) if math.isfinite(value) else None
    except OverflowError:  # a whole number of more than 308 digits
        return None


def observed_sizes(taskset: HasSizes, tasks: Iterable[Task]) -> tuple[float, float] | None:
    """The smallest and the largest size among tasks, for splits that come from a file."""
    sizes = [size for task in tasks if (size := known_size(taskset, task)) is not None]
    return (min(sizes), max(sizes)) if sizes else None


def parse_range(value: object, *, name: str, least: int = 1) -> tuple[int, int]:
    """The value of an option that is a range: `[3, 10]`, or one number for both ends."""
    ends = cast(list[object], list(value)) if isinstance(value, (list, tuple)) else [value, value]  # pyright: ignore[reportUnknownArgumentType]
    if len(ends) != 2 or not all(type(end) is int for end in ends):
        raise ConfigError(f"{name} must be a whole number or a range [least, most]; got {value!r}")
    low, high = cast(tuple[int, int], tuple(ends))
    if not least <= low <= high:
        raise ConfigError(f"{name} must be a range from {least} up, the smaller first; got {value!r}")
    return low, high
