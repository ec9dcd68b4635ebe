"""Function calls of the `terse` dialect: `$ name argument, argument`.

Arguments are given in the order of the function's parameters and separated by a comma and a space; the last one is the
rest of the line, so a text may contain commas. They are converted to the types of the parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any

from ramet.agent.functions import Failed, call_async
from ramet.agent.wording import as_text, cut, signature
from ramet.errors import ConfigError, MalformedAction
from ramet.interfaces import HostFunction

CALL, SEPARATOR = "$", ", "
MAX_NAME = 40
TRUTH = {"true": True, "false": False}
PLAIN: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float, "bool": TRUTH.__getitem__}


def check_functions(functions: Mapping[str, HostFunction]) -> None:
    """Refuse functions that a line cannot call."""
    for name, function in functions.items():
        if not fits_line(function):
            raise ConfigError(
                f"terse cannot call {name}{signature(function)}: arguments must be texts, numbers or truth values; "
                "use tools or python"
            )


def fits_line(function: HostFunction) -> bool:
    """Whether every argument that a function needs is a text, a number or a truth value."""
    parameters = inspect.signature(function).parameters.values()
    return all(_is_plain(parameter) or parameter.default is not parameter.empty for parameter in parameters)


def _is_plain(parameter: inspect.Parameter) -> bool:
    own = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    return own and (parameter.annotation is parameter.empty or _type_name(parameter) in PLAIN)


def _type_name(parameter: inspect.Parameter) -> str:
    """The name of a type, without `| None`; annotations may be texts."""
    name = getattr(parameter.annotation, "__name__", None) or str(parameter.annotation)
    return name.removesuffix(" | None")


def parse_call(line: str, functions: Mapping[str, HostFunction]) -> tuple[HostFunction, list[Any]]:
    """The function that a line calls, and its arguments.

    Example:
        parse_call("len a b", {"len": len})  # (len, ["a b"])
    """
    name, _, rest = line.strip().partition(" ")
    function = functions.get(name)
    if function is None:
        raise MalformedAction(f"no {cut(name, MAX_NAME)}")
    parameters = list(takewhile(_is_plain, inspect.signature(function).parameters.values()))
    texts = rest.split(SEPARATOR, max(len(parameters) - 1, 0)) if rest else []
    needed = sum(parameter.default is parameter.empty for parameter in parameters)
    if not needed <= len(texts) <= len(parameters):
        raise MalformedAction(f"no {name}{signature(function)}")
    try:
        return function, [_convert(text, parameter) for text, parameter in zip(texts, parameters, strict=False)]
    except (ValueError, KeyError):
        raise MalformedAction(f"no {name}{signature(function)}") from None


def _convert(text: str, parameter: inspect.Parameter) -> Any:
    if parameter.annotation is parameter.empty:
        return text
    return PLAIN[_type_name(parameter)](text)


async def call_line(line: str, functions: Mapping[str, HostFunction]) -> tuple[str, bool]:
    """What the node reads after a call, and whether the call failed."""
    try:
        function, arguments = parse_call(line, functions)
    except MalformedAction as fault:
        return str(fault), True
    value = await call_async(function, arguments, {}, then=as_text)
    return (value.text, True) if isinstance(value, Failed) else (value, False)


def write_call(name: str, arguments: Mapping[str, Any]) -> str:
    """The line of a call whose arguments are in the order of the parameters.

    Example:
        write_call("move", {"room": "a", "steps": 3})  # "move a, 3"
    """
    texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in arguments.values()]
    if any(SEPARATOR in text or "\n" in text for text in texts[:-1]):
        raise ConfigError(f"terse cannot write this call of {name}: only its last argument may contain {SEPARATOR!r}")
    return f"{name} {SEPARATOR.join(texts)}".rstrip()
