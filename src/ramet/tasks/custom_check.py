"""Custom checks of answers: functions of the user, named as "module:function" or "file.py:function".

They run in the process of a grader: a check that loops, blocks or crashes costs one verdict and nothing else.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

from ramet.agent.functions import describe_error
from ramet.errors import ConfigError
from ramet.plugins import import_file
from ramet.tasks.files import Fields
from ramet.tasks.grader import Grader, Unfinished

Check = Callable[[str, Fields], object]


def load_check(spec: str) -> Check:
    """Import the function "module:function" or "file.py:function"."""
    place, _, name = spec.rpartition(":")
    try:
        module = import_file(place) if place.endswith(".py") else import_module(place)
    except (ConfigError, ImportError, SyntaxError, ValueError) as error:
        raise ConfigError(f"jsonl: cannot import the check {spec}: {error}") from None
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"jsonl: {place} has no function {name!r}")
    try:
        inspect.signature(function).bind("answer", {})
    except (TypeError, ValueError):
        raise ConfigError(f"jsonl: the check {spec} must take two arguments, the answer and the row") from None
    return function


class CustomCheck:
    """A check that is imported here once, to refuse what cannot work, and called in the process of its grader.

    Example:
        CustomCheck("my_checks.py:polite", seconds=30.0).score("Thank you.", {"answer": "thanks"}, task_id="1")
    """

    def __init__(self, spec: str, *, seconds: float) -> None:
        load_check(spec)
        place, _, name = spec.rpartition(":")
        self.spec = f"{Path(place).absolute()}:{name}" if place.endswith(".py") else spec
        self.seconds = seconds
        self.grader = Grader(__name__, library="json")

    def score(self, answer: str, row: Fields, *, task_id: str) -> float:
        """The score of an answer. `Unfinished` if the check raised or took too long."""
        return self.grader.call("run_check", self.spec, answer, row, task_id, seconds=self.seconds)


# In the grader process.


def run_check(spec: str, answer: str, row: Fields, task_id: str) -> float:
    """The score that a check gives. One that raises has not accepted the answer."""
    return checked_score(_call(spec, answer, row), f"jsonl: {Path(spec).name} on {task_id}")


@cache
def _loaded(spec: str) -> Check:
    return load_check(spec)


def _call(spec: str, answer: str, row: Fields) -> object:
    check = _loaded(spec)
    try:
        return check(answer, row)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  the user's code may raise anything
        name, message = describe_error(error)
        raise Unfinished(f"{name}{_place(error)}: {' '.join(message.split())}") from None


def _place(error: Exception) -> str:
    """The last line of the check that an exception passed through; empty for a function without Python code."""
    own = traceback.extract_tb(error.__traceback__)[1:]
    lines = [frame.lineno for frame in own if frame.filename == own[0].filename]
    return f" in {Path(own[0].filename).name}, line {lines[-1]}" if lines else ""


def checked_score(value: object, where: str) -> float:
    if not isinstance(value, (bool, int, float)) or not 0 <= value <= 1:
        raise ConfigError(f"{where} returned {value!r}; expected a bool or a number from 0 to 1")
    return float(value)
