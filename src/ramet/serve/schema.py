"""JSON Schema, as far as `response_format` needs it: what a schema may hold, and why a value does not match it.

Checking is bounded: a schema of a client may refer to itself in ways that would take forever.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, cast

from ramet.serve.errors import RequestError, wrong
from ramet.serve.fields import no_number, shown

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
SIZES = ("minLength", "maxLength", "minItems", "maxItems")
CHECKED = (
    *("type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "oneOf", "allOf"),
    *("$ref", "$defs", "definitions", "multipleOf", *BOUNDS, *SIZES),
)
NOTES = ("title", "description", "default", "examples", "format", "$schema", "$id", "$comment", "deprecated")
MAX_STEPS = 20_000  # of one check
MAX_DEPTH = 100


class _Mismatch(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Schema:
    """A JSON Schema that can be checked.

    Example:
        Schema({"type": "object", "required": ["a"]}).problem("{}")  # "$.a is missing"
    """

    definition: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def problem(self, text: str) -> str | None:
        """Why a text is not JSON that matches; None if it is."""
        try:
            value: object = json.loads(text, parse_constant=no_number)
        except (ValueError, RecursionError) as error:
            return f"it is not valid JSON ({str(error)[:100]})"
        try:
            _Check(self.definition).check(self.definition, value, "$", 0)
        except _Mismatch as mismatch:
            return str(mismatch)
        return None


def read_schema(definition: Mapping[str, Any], param: str) -> Schema:
    """A schema whose every keyword is known; anything else is a 400 that names the keyword."""
    waiting: list[tuple[object, str, int]] = [(definition, param, 0)]
    schemas: list[Mapping[str, Any]] = []
    steps = 0
    while waiting:
        schema, place, depth = waiting.pop()
        steps += 1
        if depth > MAX_DEPTH or steps > MAX_STEPS:
            raise wrong(param, f"{param} is too large or nested too deeply")
        if isinstance(schema, bool):
            continue
        if not isinstance(schema, dict):
            raise wrong(place, f"{place} must be a schema, which is an object; got {shown(schema)}")
        schemas.append(cast(dict[str, Any], schema))
        waiting += [(inner, name, depth + 1) for name, inner in _inner(schemas[-1], place)]
    _check_references(schemas, definition, param)
    return Schema(definition)


def _inner(schema: Mapping[str, Any], place: str) -> list[tuple[str, object]]:
    """The schemas inside a schema, after its own keywords have been checked."""
    for key, value in schema.items():
        if key not in CHECKED and key not in NOTES:
            raise wrong(place, f"{place} uses {shown(key)}, which is not supported; supported: {', '.join(CHECKED)}")
        _check_keyword(key, value, f"{place}.{key}")
    found: list[tuple[str, object]] = []
    for key in ("properties", "$defs", "definitions"):
        found += [(f"{place}.{key}.{name}"[:200], inner) for name, inner in schema.get(key, {}).items()]
    for key in ("anyOf", "oneOf", "allOf"):
        found += [(f"{place}.{key}", inner) for inner in schema.get(key, [])]
    return found + [(f"{place}.{key}", schema[key]) for key in ("items", "additionalProperties") if key in schema]


def _check_keyword(key: str, value: object, place: str) -> None:
    """The value of one keyword; schemas inside it are checked by the caller."""
    items = _items(value)
    is_list, is_number = isinstance(value, list), _is_number(value)
    is_step = _is_number(value) and 0 < cast(float, value) < math.inf
    accepted: dict[str, tuple[str, bool]] = {
        **dict.fromkeys(("properties", "$defs", "definitions"), ("an object", isinstance(value, dict))),
        **dict.fromkeys(("anyOf", "oneOf", "allOf"), ("an array of schemas", is_list and bool(items))),
        "required": ("an array of strings", is_list and all(isinstance(name, str) for name in items)),
        "enum": ("an array", is_list),
        "$ref": ("a string", isinstance(value, str)),
        **dict.fromkeys((*BOUNDS, *SIZES), ("a number", is_number)),
        "multipleOf": ("a number above 0", is_step),
        "type": (
            f"one of {', '.join(TYPES)}, or an array of them",
            bool(items) and all(isinstance(name, str) and name in TYPES for name in items),
        ),
    }
    if key in accepted and not accepted[key][1]:
        raise wrong(place[:200], f"{place[:200]} must be {accepted[key][0]}; got {shown(value)}")


def _items(value: object) -> list[object]:
    return cast(list[object], value) if isinstance(value, list) else [value]


def _check_references(schemas: Sequence[Mapping[str, Any]], whole: Mapping[str, Any], param: str) -> None:
    """Every `$ref` leads to one of the schemas, and not to a default or an example, whose keywords were not checked."""
    known = set(map(id, schemas))
    for schema in schemas:
        reference = schema.get("$ref")
        if reference is not None and id(_resolve(whole, reference)) not in known:
            raise RequestError(400, f"{param} refers to {shown(reference)}, which it does not have", param=param)


def _resolve(whole: Mapping[str, Any], reference: str) -> Mapping[str, Any] | None:
    found: object = whole
    for part in [] if reference == "#" else reference.removeprefix("#/").split("/"):
        found = cast(dict[str, object], found).get(part) if isinstance(found, dict) else None
    return cast(Mapping[str, Any], found) if isinstance(found, dict) and reference.startswith("#") else None


class _Check:
    """One check of one value, with its steps counted."""

    def __init__(self, whole: Mapping[str, Any]) -> None:
        self.whole = whole
        self.steps = 0

    def check(self, schema: object, value: object, place: str, depth: int) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS or depth > MAX_DEPTH:
            raise _Mismatch("it is too large or nested too deeply to be checked")
        if isinstance(schema, bool):
            if not schema:
                raise _Mismatch(f"{place} is not allowed")
            return
        definition = cast(Mapping[str, Any], schema)
        if "$ref" in definition:
            self.check(_resolve(self.whole, definition["$ref"]), value, place, depth + 1)
        self._check_itself(definition, value, place)
        self._check_inside(definition, value, place, depth)
        self._check_combined(definition, value, place, depth)

    def _check_itself(self, schema: Mapping[str, Any], value: object, place: str) -> None:
        """Type, constants, bounds and sizes."""
        if "type" in schema and not any(_is(value, cast(str, name)) for name in _items(schema["type"])):
            raise _Mismatch(f"{place} is not of type {' or '.join(map(str, _items(schema['type'])))}")
        if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
            raise _Mismatch(f"{place} is not one of {shown_list(schema['enum'])}")
        if "const" in schema and not _same(value, schema["const"]):
            raise _Mismatch(f"{place} is not {shown(schema['const'])}")
        if _is_number(value):
            number = cast(float, value)
            holds = {
                "minimum": number >= schema.get("minimum", number),
                "maximum": number <= schema.get("maximum", number),
                "exclusiveMinimum": "exclusiveMinimum" not in schema or number > schema["exclusiveMinimum"],
                "exclusiveMaximum": "exclusiveMaximum" not in schema or number < schema["exclusiveMaximum"],
                "multipleOf": "multipleOf" not in schema or _is_multiple(number, schema["multipleOf"]),
            }
            for name, held in holds.items():
                if not held:
                    raise _Mismatch(f"{place} is {shown(value)}, and its {name} is {schema[name]}")
        kind = "Length" if isinstance(value, str) else "Items" if isinstance(value, list) else ""
        size = len(cast(list[object], value)) if kind else 0
        if kind and not schema.get(f"min{kind}", size) <= size <= schema.get(f"max{kind}", size):
            raise _Mismatch(f"{place} has {size} {'characters' if kind == 'Length' else 'items'}")

    def _check_inside(self, schema: Mapping[str, Any], value: object, place: str, depth: int) -> None:
        if isinstance(value, list) and "items" in schema:
            for number, item in enumerate(cast(list[object], value)):
                self.check(schema["items"], item, f"{place}[{number}]", depth + 1)
        if not isinstance(value, dict):
            return
        entries, properties = cast(dict[str, object], value), schema.get("properties", {})
        for name in schema.get("required", []):
            if name not in entries:
                raise _Mismatch(f"{place}.{name} is missing")
        for name, item in entries.items():
            self.check(
                properties.get(name, schema.get("additionalProperties", True)), item, f"{place}.{name}", depth + 1
            )

    def _check_combined(self, schema: Mapping[str, Any], value: object, place: str, depth: int) -> None:
        for part in schema.get("allOf", []):
            self.check(part, value, place, depth + 1)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                fitting = sum(self._fits(part, value, place, depth + 1) for part in schema[key])
                if not fitting or (key == "oneOf" and fitting > 1):
                    raise _Mismatch(f"{place} matches {fitting} schemas of {key}")

    def _fits(self, schema: object, value: object, place: str, depth: int) -> bool:
        try:
            self.check(schema, value, place, depth)
        except _Mismatch:
            if self.steps > MAX_STEPS:
                raise
            return False
        return True


def _is(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES[name])


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_multiple(value: float, step: float) -> bool:
    """Whether a number is a multiple of another, as decimal fractions: 0.3 is one of 0.1, which no floats show."""
    return abs(value) < math.inf and (_exact(value) / _exact(step)).denominator == 1


def _exact(value: float) -> Fraction:
    """The number as it is written in JSON."""
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def _same(value: object, other: object) -> bool:
    """JSON equality: true is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def shown_list(values: list[object]) -> str:
    return ", ".join(shown(value) for value in values[:8]) + (" …" if len(values) > 8 else "")
