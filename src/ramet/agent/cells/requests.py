"""The arguments of `delegate` in a cell."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from ramet.agent.sandbox import HostCall
from ramet.agent.wording import cut
from ramet.errors import MalformedAction
from ramet.interfaces import Request


def read_request(call: HostCall, context: Mapping[str, str]) -> Request:
    """Read the arguments of `delegate(goal, context=None, tokens=None, returns=None)`."""
    try:
        bound = SIGNATURE.bind(*call.args, **call.kwargs)
    except TypeError as error:
        raise MalformedAction(f"delegate{SIGNATURE}: {cut(str(error), 200)}") from None
    bound.apply_defaults()
    given = bound.arguments
    keys = _keys(given["context"], context)
    return Request(
        goal=given["goal"],
        context=keys or (),
        text=None if keys is not None else given["context"],
        tokens=given["tokens"],
        returns=given["returns"],
    )


def _keys(passed: object, context: Mapping[str, str]) -> list[object] | None:
    """The context keys of a call, or None when it passes a value. Only a node with texts can name keys."""
    if passed is None:
        return []
    if context and isinstance(passed, list) and all(isinstance(key, str) for key in passed):  # pyright: ignore[reportUnknownVariableType]
        return list(passed)  # pyright: ignore[reportUnknownArgumentType]
    return [passed] if isinstance(passed, str) and passed in context else None


def _signature(goal: str, context: object = None, tokens: int | None = None, returns: object = None) -> None: ...


SIGNATURE = inspect.signature(_signature)
