"""A tool that is described by a JSON Schema, as a function that every dialect can call. Knows nothing of MCP clients.

What a server lists is not trusted: it may be huge, it may clash with other names, it may not be a schema at all.
"""

from __future__ import annotations

import inspect
import json
import keyword
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ramet.agent.wording import cut
from ramet.inputs.world import RESERVED
from ramet.interfaces import HostFunction
from ramet.types import printable

MAX_NAME = 64  # characters
MAX_ABOUT = 2000  # bytes of a description
MAX_SCHEMA = 16_384  # characters of a schema as JSON; a larger one is replaced by one that allows everything
MAX_PARAMETERS = 64
MAX_RESULT = 1_000_000  # bytes of a result; dialects show less of it
TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
    "null": "None",
}
Call = Callable[[Mapping[str, Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A tool as a server lists it."""

    name: str
    about: str
    schema: Mapping[str, Any]
    read_only: bool = False  # changes nothing: it can be called again, in any order


def as_function(tool: Listed, call: Call, *, taken: Iterable[str] = ()) -> HostFunction:
    """An async function with the tool's name, description and parameters; `schema` is its JSON Schema."""
    schema = bounded_schema(tool.schema)
    signature = signature_of(schema)
    variable = inspect.Parameter.VAR_KEYWORD
    rest = next((name for name, one in signature.parameters.items() if one.kind is variable), None)

    async def function(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs).arguments
        more: dict[str, Any] = {} if rest is None else bound.pop(rest, {})
        return await call({**bound, **more})

    made: Any = function
    made.__name__ = made.__qualname__ = safe_name(tool.name, taken=taken)
    made.__doc__ = cut(printable(tool.about.strip()), MAX_ABOUT)
    made.__signature__ = signature
    made.schema = schema
    made.read_only = tool.read_only
    return made


def safe_name(name: str, *, taken: Iterable[str] = ()) -> str:
    """An identifier like the name, that is not `taken` and means nothing else.

    Example:
        safe_name("get-weather")                        # "get_weather"
        safe_name("search", taken=["search"])           # "search_2"
        safe_name("delegate")                           # "delegate_2"
    """
    word = re.sub(r"\W+", "_", name[:MAX_NAME], flags=re.ASCII).strip("_") or "tool"
    word = f"tool_{word}" if word[0].isdigit() else word
    unusable = {*taken, *RESERVED, *keyword.kwlist, *keyword.softkwlist}
    number, candidate = 2, word
    while candidate in unusable:
        candidate, number = f"{word}_{number}", number + 1
    return candidate


def bounded_schema(schema: object) -> dict[str, Any]:
    """The schema of an object, or one that allows every object if it is too large or not one."""
    anything: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": True}
    if not isinstance(schema, Mapping):
        return anything
    try:
        text = json.dumps(dict(cast(Mapping[str, Any], schema)))
    except (TypeError, ValueError, RecursionError):
        return anything
    if len(text) > MAX_SCHEMA:
        return anything
    loaded: dict[str, Any] = json.loads(text)
    return loaded | {"type": "object"}


def signature_of(schema: Mapping[str, Any]) -> inspect.Signature:
    """Parameters of the properties of a schema, required ones first.

    Example:
        str(signature_of({"properties": {"city": {"type": "string"}}, "required": ["city"]}))  # "(city: 'str')"
    """
    properties = _properties(schema)
    listed: object = schema.get("required", [])
    required = [str(name) for name in cast(list[object], listed)] if isinstance(listed, list) else []
    usable = [name for name in properties if name.isidentifier() and not keyword.iskeyword(name)][:MAX_PARAMETERS]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(name, kind, annotation=_annotation(properties[name])) for name in usable if name in required
    ]
    parameters += [
        inspect.Parameter(name, kind, default=_default(properties[name]), annotation=_annotation(properties[name]))
        for name in usable
        if name not in required
    ]
    if len(usable) < len(properties) or schema.get("additionalProperties") is True:
        name = "arguments"
        while name in properties:
            name = f"more_{name}"
        parameters.append(inspect.Parameter(name, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters)


def _properties(schema: Mapping[str, Any]) -> dict[str, Any]:
    found: object = schema.get("properties")
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def _annotation(schema: object) -> Any:
    """The type of a parameter as text; nothing where it is none of the plain ones."""
    kind: object = cast(dict[str, Any], schema).get("type") if isinstance(schema, dict) else None
    kinds = cast(list[object], kind) if isinstance(kind, list) else [kind]
    known = [TYPES[one] for one in kinds if isinstance(one, str) and one in TYPES]
    return " | ".join(known) if known else inspect.Parameter.empty


def _default(schema: object) -> Any:
    """A default as the schema has it, if it is short; else None."""
    value: object = cast(dict[str, Any], schema).get("default") if isinstance(schema, dict) else None
    return value if isinstance(value, (str, int, float, bool)) and len(str(value)) <= MAX_NAME else None


def result_text(content: Iterable[Any], structured: object = None) -> str:
    """The blocks of a result as one text of at most a million bytes. What is not text is named with its size."""
    parts: list[str] = []
    left = MAX_RESULT
    for block in content:
        part = cut(_block_text(block), left)
        parts.append(part)
        left -= len(part.encode(errors="replace")) + 1
        if left <= 0:
            break
    text = "\n".join(part for part in parts if part)
    if not text and structured is not None:
        text = json.dumps(structured, ensure_ascii=False)
    return cut(text, MAX_RESULT)


def _block_text(block: Any) -> str:
    text = getattr(block, "text", None)
    if isinstance(text, str):
        return text
    resource = getattr(block, "resource", None)
    if resource is not None:
        inner = getattr(resource, "text", None)
        return inner if isinstance(inner, str) else f"[{getattr(resource, 'mime_type', None) or 'a file'}, not shown]"
    uri = getattr(block, "uri", None)
    if uri is not None:
        return f"[a link: {str(uri)[:500]}]"
    data = getattr(block, "data", None)
    size = f", {len(data) * 3 // 4:,} bytes" if isinstance(data, str) else ""
    return f"[{getattr(block, 'mime_type', None) or getattr(block, 'type', 'something')}{size}, not shown]"
