"""JSON schemas of functions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pytest

from ramet.agent.schema import function_schema


@dataclass
class Place:
    city: str
    floor: int = 0


def add(a: int, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


def parameters(function: Any) -> dict[str, Any]:
    return function_schema("f", function)["parameters"]


def test_a_function_is_described_by_its_signature_and_docstring():
    assert function_schema("plus", add) == {
        "name": "plus",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 0}},
            "required": ["a"],
            "additionalProperties": False,
        },
    }


def test_a_schema_attribute_replaces_the_signature():
    def call(**arguments: Any) -> str:
        return str(arguments)

    call.schema = {"properties": {"path": {"type": "string"}}, "required": ["path"]}  # pyright: ignore
    assert parameters(call) == {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
    }


def test_lists_choices_unions_and_records_have_their_schema():
    def search(keys: list[str], order: Literal["new", "old"], near: Place | None = None) -> None:
        del keys, order, near

    schema = parameters(search)
    assert schema["properties"]["keys"] == {"type": "array", "items": {"type": "string"}}
    assert schema["properties"]["order"]["enum"] == ["new", "old"]
    assert schema["properties"]["near"]["anyOf"] == [{"$ref": "#/$defs/Place"}, {"type": "null"}]
    assert schema["$defs"]["Place"]["properties"]["city"] == {"type": "string"}
    assert schema["required"] == ["keys", "order"]


class Unknowable:
    pass


class Callable_:
    def __call__(self, number: int) -> int:
        """Double it."""
        return 2 * number


ANYTHING: Any = object()


def _missing(a: Nowhere, b: Any = ANYTHING) -> None:  # noqa: F821  # pyright: ignore
    del a, b


def _unknowable(a: Unknowable, b: Any) -> None:
    del a, b


FUNCTIONS: list[Any] = [_missing, _unknowable]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_type_that_has_no_schema_allows_everything(function: Any):
    assert parameters(function)["properties"] == {"a": {}, "b": {}}


def test_objects_partials_and_builtins_can_be_described():
    assert parameters(Callable_())["properties"] == {"number": {"type": "integer"}}
    assert parameters(partial(add, b=3))["properties"]["a"] == {"type": "integer"}
    assert parameters(dict)["type"] == "object"


def test_keyword_arguments_of_any_name_are_allowed():
    def anything(**more: int) -> None:
        del more

    assert parameters(anything) == {"type": "object", "properties": {}, "additionalProperties": True}
