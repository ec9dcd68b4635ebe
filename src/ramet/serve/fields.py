"""Typed reading of a JSON body. Every error names the field and what is accepted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from ramet.serve.errors import RequestError, wrong
from ramet.types import clean

SHOWN = 60  # characters of a wrong value in an error
MAX_DEPTH = 200  # of arrays and objects in each other
SURROGATES = (b"\\ud", b"\\uD", b"\xed", b"\0")  # a body with half of a character has one of these, in any encoding


def parse_body(body: bytes) -> Fields:
    """The JSON object of a request, without lone surrogates. No JSON, or too deep or too long a number, is a 400."""
    try:
        found: object = json.loads(body, parse_constant=no_number, parse_float=_finite)
        if any(mark in body for mark in SURROGATES):
            found = json.loads(clean(json.dumps(found, ensure_ascii=False)))
        if too_deep(found):
            raise RecursionError
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RequestError(400, f"the body is not valid JSON: {reason[:200]}") from None
    if not isinstance(found, dict):
        raise RequestError(400, f"the body must be a JSON object; got {kind(found)}")
    return Fields(cast(dict[str, Any], found))


def no_number(word: str) -> float:
    """NaN, Infinity and -Infinity, which Python reads and other servers refuse."""
    raise ValueError(f"{word} is not a JSON number")


def _finite(word: str) -> float:
    number = float(word)
    if math.isinf(number):
        raise ValueError(f"{word[:SHOWN]} is too large a number")
    return number


def too_deep(value: object) -> bool:
    """Whether arrays and objects are in each other more than `MAX_DEPTH` times: work on them could end the stack."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return False
    return True


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast(dict[str, object], value).values()
    return cast(list[object], value) if isinstance(value, list) else ()


def kind(value: object) -> str:
    """What a JSON value is, for errors."""
    names: dict[object, str] = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)


def shown(value: object) -> str:
    """A value in an error, cut if it is long."""
    if isinstance(value, (dict, list)):
        return kind(cast(object, value))
    text = repr(value) if isinstance(value, str) else json.dumps(value)
    return clean(text if len(text) <= SHOWN else text[:SHOWN] + "…")


class Fields:
    """The fields of one object. `path` is where it is in the request, for errors: `messages[2].`."""

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self.values = values
        self.path = path

    def name(self, key: str) -> str:
        return f"{self.path}{key}"[:200]

    def has(self, key: str) -> bool:
        """Whether a field is there and not null."""
        return self.values.get(key) is not None

    def wrong(self, key: str, accepted: str) -> RequestError:
        name = self.name(key)
        return wrong(name, f"{name} must be {accepted}; got {shown(self.values.get(key))}")

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return clean(value)

    def choice(self, key: str, accepted: Sequence[str], default: str | None = None) -> str:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or value not in accepted:
            raise self.wrong(key, f"one of {', '.join(map(json.dumps, accepted))}")
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def count(self, key: str, *, least: int = 1) -> int | None:
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(key, f"an integer of at least {least}")
        return value

    def number(self, key: str, *, low: float, high: float) -> float | None:
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self.wrong(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def objects(self, key: str) -> list[Fields]:
        """A list of objects; none if the field is missing."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(key, "an array of objects")
        items = cast(list[object], value)
        return [self._object(item, f"{key}[{place}]") for place, item in enumerate(items)]

    def object(self, key: str) -> Fields | None:
        value = self.values.get(key)
        return None if value is None else self._object(value, key)

    def _object(self, value: object, key: str) -> Fields:
        name = self.name(key)
        if not isinstance(value, dict):
            raise wrong(name, f"{name} must be an object; got {shown(value)}")
        return Fields(cast(dict[str, Any], value), f"{name}.")

    def refuse(self, key: str, reason: str, *, unless: Sequence[object] = ()) -> None:
        """A 400 if the field asks for what a tree cannot do. `unless`: values that ask for nothing."""
        value = self.values.get(key)
        if value is None or any(type(value) is type(word) and value == word for word in unless):
            return
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value in unless:
            return
        name = self.name(key)
        raise wrong(name, f"{name} is not supported: {reason}", code="unsupported_parameter")
