"""The types a parent can request from a child: `int`, `"list[str]"`, `"dict[str, float] | None"`."""

from __future__ import annotations

import ast
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ramet.agent.reading import load
from ramet.agent.values import brief, is_small
from ramet.errors import MalformedAction
from ramet.types import clean

NAMES: dict[str, Any] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "list": list,
    "dict": dict,
    "tuple": tuple,
    "set": set,
    "None": None,
    "Any": Any,
}
MAX_DEPTH = 20  # of nested types
MAX_TYPE = 500  # characters of a type
MAX_ANSWER = 100_000  # characters of an answer that is read as a value
# What pydantic and the types themselves raise for values and types that do not fit together.
FAILURES = (ValueError, RuntimeError, MemoryError, TypeError, LookupError, ArithmeticError)


def type_text(wanted: object) -> str:
    """A type as text: `int` and `"int"` are the same."""
    if isinstance(wanted, str):
        return wanted
    name = getattr(wanted, "__name__", None)
    return name if isinstance(name, str) else brief(wanted)


def parse_type(wanted: object) -> Any:
    """The type that a text names. The text is parsed, never evaluated.

    Example:
        parse_type("list[int]")  # list[int]
    """
    text = type_text(wanted)
    try:
        if len(text) > MAX_TYPE:
            raise ValueError("too long")
        parsed = _build(ast.parse(text.strip(), mode="eval").body)
        TypeAdapter(parsed)  # refuses dict[int]
        return parsed
    except (SyntaxError, *FAILURES):
        raise MalformedAction(
            f"returns={text[:60]!r} is not a type ramet knows: use {', '.join(NAMES)}, or list[...], dict[..., ...], |"
        ) from None


def _build(node: ast.expr, *, depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    match node:
        case ast.Name(id=name) if name in NAMES:
            return NAMES[name]
        case ast.Constant(value=None):
            return None
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _build(left, depth=depth + 1) | _build(right, depth=depth + 1)
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in ("list", "dict", "tuple", "set"):
            arguments = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return NAMES[name][tuple(_build(argument, depth=depth + 1) for argument in arguments)]
        case _:
            raise ValueError("not a type")


def convert(value: object, wanted: object, *, asked_by: str = "finish wants") -> Any:
    """Convert a value to the wanted type, or raise `MalformedAction`."""
    try:
        return TypeAdapter(parse_type(wanted)).validate_python(value)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]["msg"]
    except FAILURES as error:  # a list as a key, a number that is too large
        fault = str(error)
    shown = str(value)[:60] if isinstance(value, str) or is_small(value) else brief(value)
    raise MalformedAction(f"{asked_by} {type_text(wanted)}, got {clean(shown)!r}: {fault[:200]}")


def read_answer(text: str, wanted: object) -> tuple[Any, str]:
    """The value in an answer written as JSON or as plain text, and the value as JSON; or raise `MalformedAction`.

    Example:
        read_answer("[3, 4]", "list[int]")  # ([3, 4], "[3,4]")
        read_answer("Ada", "str")           # ("Ada", '"Ada"')
    """
    if len(text) > MAX_ANSWER:
        raise MalformedAction(
            f"the answer has {len(text):,} characters; at most {MAX_ANSWER:,} are read: answer with less"
        )
    values: list[object] = [text]
    with suppress(MalformedAction):  # not JSON: the text itself may be of the type
        values.insert(0, load(text))
    faults: list[MalformedAction] = []
    for value in values:
        try:
            value = convert(value, wanted, asked_by="the answer must be JSON of type")
            return value, _dump(value, wanted)
        except MalformedAction as fault:
            faults.append(fault)
    raise faults[0]


def _dump(value: object, wanted: object) -> str:
    try:
        return TypeAdapter(parse_type(wanted)).dump_json(value).decode()
    except FAILURES as error:
        raise MalformedAction(f"the answer cannot be written as JSON: {str(error)[:200]}") from None
