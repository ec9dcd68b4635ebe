"""The parameters of requests. What a server refuses is renamed or left out, once, with a note."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

# Without these a request means nearly the same.
OPTIONAL = (
    "temperature",
    "seed",
    "stop",
    "stream_options",
    "logprobs",
    "return_token_ids",
    "top_p",
    "top_k",
    "tool_choice",
    "parallel_tool_calls",
)
LIMITS = ("max_tokens", "max_completion_tokens")  # two names of one parameter
REFUSED = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown|unexpected|not permitted|not allowed|extra_forbidden|forbidden"
    r"|deprecated|only the default|invalid (?:parameter|argument|field|request field)|incompatible|not recogni[sz]ed",
    re.IGNORECASE,
)
REFUSING_STATUS = {400, 422}


class Parameters:
    """What goes into requests beside the prompt. `note` gets one line for every parameter that a server refuses."""

    def __init__(
        self, server: str, *, limit: str = "max_tokens", left_out: Iterable[str] = (), note: Callable[[str], None]
    ) -> None:
        self._server = server
        self._limit = limit
        self._left_out = set(left_out)
        self._refused_limits: set[str] = set()
        self._note = note

    def fit(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body as this server takes it; it has `max_tokens`."""
        fitted = {key: value for key, value in body.items() if key not in self._left_out}
        if self._limit != "max_tokens":
            fitted[self._limit] = fitted.pop("max_tokens")
        return fitted

    def learn(self, sent: Mapping[str, Any], status: int, error: str) -> bool:
        """Whether an error means that another form of the request is worth a try; remembers which."""
        if status not in REFUSING_STATUS:
            return False
        message, parameter = _parts(error)
        if not REFUSED.search(message):
            return False
        named = [name for name in (*LIMITS, *OPTIONAL) if name in sent and _names(name, message, parameter)]
        changed = [self._change(name) for name in named]
        return any(changed)

    def _change(self, name: str) -> bool:
        if name in LIMITS:
            return self._rename_limit(name)
        if name not in self._left_out:
            self._left_out.add(name)
            self._note(f"{self._server} does not accept {name}: it is left out")
        return True

    def _rename_limit(self, name: str) -> bool:
        other = LIMITS[1 - LIMITS.index(name)]
        if other in self._refused_limits:
            return False
        if name not in self._refused_limits:
            self._refused_limits.add(name)
            self._limit = other
            self._note(f"{self._server} does not accept {name}: {other} is sent instead")
        return True


def _parts(error: str) -> tuple[str, str]:
    """The message of an error response, and the parameter that it names, if it does."""
    try:
        content: object = json.loads(error)
    except (ValueError, RecursionError):
        return error, ""
    outer = cast(dict[str, object], content) if isinstance(content, dict) else {}
    inner = outer.get("error", outer)
    parameter = cast(dict[str, object], inner).get("param") if isinstance(inner, dict) else None
    return error, parameter if isinstance(parameter, str) else ""


def _names(name: str, message: str, parameter: str) -> bool:
    """Whether an error is about a parameter: the one it names, or else any that its message has as a word."""
    if parameter:
        return parameter == name
    return re.search(rf"(?<![\w.]){name}(?!\w)", message) is not None
