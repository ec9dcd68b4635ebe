"""Pickles of messages and trees.

A tree has thousands of small records, and Python restores a frozen dataclass with slots slowly: it looks its fields up
for every object. Here they are restored by the setters of their slots, about five times as fast.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from functools import cache
from typing import Any

from ramet.errors import EngineError, RametError
from ramet.types import Completion, Message, Piece, Prompt, Verdict

RECORDS = (Completion, Message, Piece, Prompt, Verdict)  # frozen dataclasses with slots, of which there are many
# What a value raises that cannot be pickled, or not be restored.
NOT_PICKLED = (pickle.PickleError, TypeError, AttributeError, ValueError, RecursionError)


def dumps(value: Any) -> bytes:
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _TABLE
    pickler.dump(value)
    return file.getvalue()


def loads(data: bytes) -> Any:
    """Only for bytes from a process of this run."""
    return pickle.loads(data)


def sendable(error: RametError) -> RametError:
    """The error, or one with its text if another process could not restore it."""
    if type(error).__module__ == RametError.__module__:
        with suppress(*NOT_PICKLED):
            loads(dumps(error))
            return error
    return EngineError(str(error))


def restore(kind: type[Any], values: tuple[Any, ...]) -> Any:
    """A record with these values in its fields."""
    record = object.__new__(kind)
    for set_field, value in zip(_setters(kind), values, strict=True):
        set_field(record, value)
    return record


@cache
def _setters(kind: type[Any]) -> tuple[Callable[[Any, Any], None], ...]:
    return tuple(getattr(kind, each.name).__set__ for each in fields(kind))


def _reduce(names: tuple[str, ...], record: Any) -> tuple[Any, ...]:
    return restore, (type(record), tuple(getattr(record, name) for name in names))


def _reducer(kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    names = tuple(each.name for each in fields(kind))
    return lambda record: _reduce(names, record)


_TABLE = {**copyreg.dispatch_table, **{kind: _reducer(kind) for kind in RECORDS}}
