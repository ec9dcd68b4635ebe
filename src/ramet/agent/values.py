"""Values that a model wrote: how large they are, checked before any text is built from them.

A list whose items are all the same list is small in memory and huge as text: ten levels of ten items are ten thousand
million items. So sizes are counted as if nothing were shared, and the count ends at the limit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Protocol, cast, runtime_checkable

from ramet.errors import MalformedAction
from ramet.types import clean

MAX_BYTES = 16 << 20  # of memory of one value
MAX_FINAL = 1 << 20  # bytes of memory of a value that a cell finishes with
MAX_ITEMS = 200_000
MAX_DEPTH = 100  # of nested lists and dicts
MAX_BITS = 14_000  # of a whole number, about 4,200 digits: Python writes no number of more than 4,300
SMALL = 4096  # bytes: a value that may be written out whole in a message
END = object()


@runtime_checkable
class Instance(Protocol):
    """An object of a class that a cell defined, as it crosses from the sandbox. Its repr writes all of it."""

    @property
    def attributes(self) -> Mapping[str, object]: ...


def measure(value: object, *, most: int = MAX_BYTES) -> int:
    """Bytes of memory of a value in which nothing is shared; raise `MalformedAction` if it exceeds a limit.

    Example:
        measure("abc") < 100  # True
    """
    total = items = 0
    left: list[Iterator[object]] = [iter((value,))]
    while left:
        item = next(left[-1], END)
        if item is END:
            left.pop()
            continue
        items += 1
        total += _bytes(item)
        if total > most or items > MAX_ITEMS:
            raise MalformedAction(f"the value is too large: at most {most:,} bytes and {MAX_ITEMS:,} items")
        if isinstance(item, int) and item.bit_length() > MAX_BITS:
            raise MalformedAction("a number has more than 4,000 digits")
        inside = _inside(item)
        if inside is not None:
            left.append(iter(inside))
        if len(left) > MAX_DEPTH + 1:
            raise MalformedAction(f"the value is nested more than {MAX_DEPTH} levels deep")
    return total


def _bytes(item: object) -> int:
    """Bytes of memory; for numbers more, because writing them takes longer than their size suggests."""
    if isinstance(item, int):
        return sys.getsizeof(item) + (item.bit_length() ** 2 >> 10)
    return 400 if isinstance(item, float) else sys.getsizeof(item)


def _inside(item: object) -> Iterable[object] | None:
    if isinstance(item, dict):
        pairs = cast(dict[object, object], item)
        return [*pairs.keys(), *pairs.values()]
    if isinstance(item, Instance):
        return [*item.attributes.values(), *item.attributes]
    if isinstance(item, BaseException):
        return item.args
    return cast(Iterable[object], item) if isinstance(item, list | tuple | set | frozenset) else None


def is_small(value: object) -> bool:
    """Whether a value can be written out whole."""
    try:
        return measure(value, most=SMALL) <= SMALL
    except MalformedAction:
        return False


def brief(value: object) -> str:
    """A value for a message: its repr, or what it is if that would be too long.

    Example:
        brief([1, 2])    # "[1, 2]"
        brief(10**5000)  # "a number of more than 4,000 digits"
    """
    if isinstance(value, str) or is_small(value):
        return clean(repr(value))
    if isinstance(value, int):
        return "a number of more than 4,000 digits"
    size = f" of {len(cast(list[object], value)):,} items" if isinstance(value, Sized) else ""
    return f"a {type(value).__name__}{size}"


def tidy(value: object, *, depth: int = 0) -> object:
    """A value from JSON with every lone surrogate replaced; raise `MalformedAction` if it is nested too deeply."""
    if isinstance(value, str):
        return clean(value)
    if depth > MAX_DEPTH:
        raise MalformedAction(f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, list):
        return [tidy(item, depth=depth + 1) for item in cast(list[object], value)]
    if isinstance(value, dict):
        pairs = cast(dict[str, object], value)
        return {clean(key): tidy(item, depth=depth + 1) for key, item in pairs.items()}
    return value
