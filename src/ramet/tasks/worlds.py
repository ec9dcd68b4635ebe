"""Worlds of your own by reference: `world=tools.py:Library`, for any task.

The class is called with the task if it takes one argument, else with none, once for every tree; an object is shared by
all trees.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

from ramet import plugins
from ramet.errors import ConfigError
from ramet.interfaces import Taskset, World
from ramet.types import Task


def make_world(reference: str, task: Task) -> World:
    """The world of a task."""
    found = plugins.load(reference, "world")
    if not inspect.isclass(found) and not inspect.isroutine(found):
        return found
    return plugins.make(reference, "world", *([task] if _takes_task(found) else []))


def _takes_task(found: Any) -> bool:
    try:
        inspect.signature(found).bind(object())
    except (TypeError, ValueError):
        return False
    return True


def with_world(taskset: Taskset, reference: str) -> Taskset:
    """The taskset with this world for its tasks instead of its own; the taskset itself without a reference."""
    if not reference:
        return taskset
    plugins.load(reference, "world")  # a mistake is reported before anything runs
    changed: Any = copy.copy(taskset)
    try:
        object.__setattr__(changed, "world", lambda task: make_world(reference, task))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    except AttributeError:
        raise ConfigError(f"world={reference}: {taskset.name} has __slots__, so its world cannot be replaced") from None
    return changed
