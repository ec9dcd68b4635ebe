"""JSON schemas of functions: what a server with native tool calling is given about a world."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from ramet.interfaces import HostFunction

ANY: dict[str, Any] = {}  # the schema of a parameter whose type says nothing


def function_schema(name: str, function: HostFunction) -> dict[str, Any]:
    """The name, description and parameters of a function, as servers with tool calling take them.

    A function whose signature does not describe its arguments (a tool of an MCP server) has them as a JSON Schema in
    its attribute `schema`. For others the schema is derived from the signature; the docstring is the description.

    Example:
        function_schema("f", lambda a, b=0: a + b)["parameters"]["required"]  # ["a"]
    """
    given: object = getattr(function, "schema", None)
    parameters = dict(cast(Mapping[str, Any], given)) if isinstance(given, Mapping) else _derived(function)
    parameters.setdefault("type", "object")
    parameters.setdefault("properties", {})
    return {"name": name, "description": inspect.getdoc(function) or "", "parameters": parameters}


def _derived(function: HostFunction) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    required: list[str] = []
    definitions: dict[str, Any] = {}
    types = _types(function)
    for parameter in _parameters(function):
        if parameter.kind is parameter.VAR_KEYWORD:
            schema["additionalProperties"] = True
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            one = _of_type(types.get(parameter.name, parameter.empty))
            definitions |= one.pop("$defs", {})
            schema["properties"][parameter.name] = one | _default(parameter)
            required += [parameter.name] if parameter.default is parameter.empty else []
    schema.setdefault("additionalProperties", False)
    return schema | ({"required": required} if required else {}) | ({"$defs": definitions} if definitions else {})


def _parameters(function: HostFunction) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some functions written in C have no signature
        return [inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD)]


def _types(function: HostFunction) -> dict[str, Any]:
    """The types of parameters; none if an annotation names something that cannot be found."""
    while isinstance(function, partial):
        function = function.func
    annotated = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    try:
        return typing.get_type_hints(annotated)
    except (NameError, TypeError, AttributeError, SyntaxError):
        return {}


def _of_type(annotation: Any) -> dict[str, Any]:
    """The schema of a type; of one that has none, the schema that allows everything."""
    if annotation is inspect.Parameter.empty or annotation is Any:
        return dict(ANY)
    from pydantic import PydanticUserError, TypeAdapter

    try:
        return _without_titles(TypeAdapter(annotation).json_schema())
    except (PydanticUserError, TypeError):
        return dict(ANY)


def _without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without the titles that are the names of its properties over again: they only cost tokens."""
    properties = cast(dict[str, Any], schema.get("properties", {}))
    kept = {key: value for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    if properties:
        kept["properties"] = {name: _without_titles(one) for name, one in properties.items()}
    if "$defs" in kept:
        kept["$defs"] = {name: _without_titles(one) for name, one in kept["$defs"].items()}
    return kept


def _default(parameter: inspect.Parameter) -> dict[str, Any]:
    if parameter.default is parameter.empty:
        return {}
    try:
        json.dumps(parameter.default)
    except (TypeError, ValueError, RecursionError):
        return {}
    return {"default": parameter.default}
