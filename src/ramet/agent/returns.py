"""The types a parent can request from a child: `int`, `"list[str]"`, `"dict[str, float] | None"`."""

from __future__ import annotations

import ast
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ramet.errors import MalformedAction

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


def type_text(wanted: object) -> str:
    """A type as text: `int` and `"int"` are the same."""
    return wanted if isinstance(wanted, str) else getattr(wanted, "__name__", None) or str(wanted)


def parse_type(wanted: object) -> Any:
    """The type that a text names. The text is parsed, never evaluated.

    Example:
        parse_type("list[int]")  # list[int]
    """
    text = type_text(wanted)
    try:
        return _build(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        raise MalformedAction(
            f"returns={text[:60]!r} is not a type ramet knows: use {', '.join(NAMES)}, or list[...], dict[..., ...], |"
        ) from None


def _build(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name) if name in NAMES:
            return NAMES[name]
        case ast.Constant(value=None):
            return None
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _build(left) | _build(right)
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in ("list", "dict", "tuple", "set"):
            arguments = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return NAMES[name][tuple(_build(argument) for argument in arguments)]
        case _:
            raise ValueError("not a type")


def convert(value: object, wanted: object) -> Any:
    """Convert a value to the wanted type, or raise `MalformedAction`."""
    try:
        return TypeAdapter(parse_type(wanted)).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        raise MalformedAction(f"finish wants {type_text(wanted)}, got {str(value)[:60]!r}: {first['msg']}") from None
