"""Custom checks of answers: functions of the user, named as "module:function" or "file.py:function"."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from ramet.agent.functions import describe_error
from ramet.errors import ConfigError
from ramet.tasks.files import Fields
from ramet.tasks.grader import Unfinished

Check = Callable[[str, Fields], object]


def load_check(spec: str) -> Check:
    """Import the function "module:function" or "file.py:function"."""
    place, _, name = spec.rpartition(":")
    try:
        module = _import_file(Path(place)) if place.endswith(".py") else import_module(place)
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"jsonl: cannot import the check {spec}: {error}") from None
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"jsonl: {place} has no function {name!r}")
    try:
        inspect.signature(function).bind("answer", {})
    except (TypeError, ValueError):
        raise ConfigError(f"jsonl: the check {spec} must take two arguments, the answer and the row") from None
    return function


def run_check(check: Check, answer: str, row: Fields) -> object:
    """What a custom check returns. One that raises has not accepted the answer."""
    try:
        return check(answer, row)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  the user's code may raise anything
        name, message = describe_error(error)
        raise Unfinished(f"{name}: {' '.join(message.split())}") from None


def _import_file(file: Path) -> Any:
    spec = spec_from_file_location(f"ramet_check_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = sys.modules[spec.name] = module_from_spec(spec)  # dataclasses look up their module there
    spec.loader.exec_module(module)
    return module


def checked_score(value: object, where: str) -> float:
    if not isinstance(value, (bool, int, float)) or not 0 <= value <= 1:
        raise ConfigError(f"{where} returned {value!r}; expected a bool or a number from 0 to 1")
    return float(value)
