"""Native tool calls on the wire: assembled from the pieces of a stream, and written into requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator

from ramet.types import Message, ToolCall, clean

MAX_CALLS = 128  # of one turn that are kept
MAX_NAME = 256  # characters of a name or an id


def _as_json(value: object) -> object:
    """Some servers send arguments as an object, not as a text with JSON."""
    return json.dumps(value) if isinstance(value, dict | list) else value


class FunctionDelta(BaseModel):
    name: str | None = None
    arguments: Annotated[str | None, BeforeValidator(_as_json)] = None


class CallDelta(BaseModel):
    """A call, or the next piece of one."""

    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None


@dataclass(slots=True)
class _Call:
    index: int | None
    id: str = ""
    name: str = ""
    arguments: str = ""


class CallsInParts:
    """The calls of one turn, as far as they have been received."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def add(self, delta: CallDelta) -> None:
        call = self._place(delta)
        if call is None:
            return
        function = delta.function or FunctionDelta()
        call.id = call.id or (delta.id or "")[:MAX_NAME]
        call.name = call.name or (function.name or "")[:MAX_NAME]
        call.arguments += function.arguments or ""

    def _place(self, delta: CallDelta) -> _Call | None:
        """The call that a piece belongs to: by its index, or else the last one. An id of its own begins another."""
        last = self._calls[-1] if self._calls else None
        found = next((call for call in reversed(self._calls) if call.index == delta.index), None)
        if delta.index is None:
            found = None if delta.id and (last is None or last.id != delta.id) else last
        elif found is not None and delta.id and found.id and delta.id != found.id:
            found = None  # parallel calls that all have the index 0
        if found is not None and not delta.id and _is_another(found, delta.function):
            found = None
        if found is None and len(self._calls) < MAX_CALLS:
            found = _Call(delta.index)
            self._calls.append(found)
        return found

    def result(self) -> tuple[ToolCall, ...]:
        """The calls, each with an id of its own."""
        calls: list[ToolCall] = []
        ids: set[str] = set()
        for number, call in enumerate(self._calls):
            own = clean(call.id) if call.id and call.id not in ids else f"call_{number}"
            ids.add(own)
            calls.append(ToolCall(id=own, name=clean(call.name), arguments=clean(call.arguments)))
        return tuple(calls)


def _is_another(call: _Call, function: FunctionDelta | None) -> bool:
    """Whether a piece without an id is a call of its own: it has a name, and the call before it is complete."""
    if function is None or not function.name or not function.arguments:
        return False
    try:
        return isinstance(json.loads(call.arguments), dict)
    except (ValueError, RecursionError):
        return False


def delta_text(deltas: Sequence[CallDelta]) -> str:
    """What the model wrote of these calls: names and arguments."""
    functions = [delta.function for delta in deltas if delta.function is not None]
    return "".join(f"{function.name or ''}{function.arguments or ''}" for function in functions)


def wire_message(message: Message) -> dict[str, Any]:
    """A message as OpenAI-compatible servers take it."""
    sent: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "tool":
        sent["tool_call_id"] = message.call_id
    if message.calls:
        sent["content"] = message.content or None
        sent["tool_calls"] = [_wire_call(call) for call in message.calls]
    return sent


def _wire_call(call: ToolCall) -> dict[str, Any]:
    """A call as part of the history. Servers parse its arguments: what is not an object is left to the result."""
    try:
        loaded: object = json.loads(call.arguments)
    except (ValueError, RecursionError):
        loaded = None
    arguments = call.arguments if isinstance(cast(object, loaded), dict) else "{}"
    return {"id": call.id, "type": "function", "function": {"name": call.name or "unknown", "arguments": arguments}}
