"""Native tool calling: `delegate` and the world's functions are tools of the server's API.

The server tells the model how to write a call, and returns calls apart from the text. Everything else is as in the
dialect `tools`: calls of one turn run in parallel, turns run one after another, texts are passed by key. A model that
writes its calls as text all the same (its server has no parser for them) is understood too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from ramet.agent.dialects.tools import CUT_OFF, NO_TOOLS, Call, ToolsDialect, ToolsSession, load_object
from ramet.agent.prompts import load
from ramet.agent.reading import Repairs, off_loop
from ramet.agent.schema import function_schema
from ramet.agent.wording import cut
from ramet.errors import MalformedAction
from ramet.interfaces import Host, HostFunction, Outcome, Result
from ramet.types import Message, ToolCall, clean

NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")
LONGEST_NAME = 64  # of a tool; servers refuse longer ones, and other characters
INTERRUPTED = "…"  # the result of a call that has none
STRINGS = {"type": "array", "items": {"type": "string"}}


def delegate_schema() -> dict[str, Any]:
    """The tool that starts clones, with the description that the dialect `tools` has in its prompt."""
    _, _, about = load("tools_delegate").partition("\n")
    properties = {
        "goals": STRINGS | {"description": "One text per clone: what it is to do and what to return."},
        "context": STRINGS | {"description": "Keys of the texts that every clone gets."},
        "tokens": {"type": "array", "items": {"type": "integer"}, "description": "A limit for each clone."},
    }
    parameters = {"type": "object", "properties": properties, "required": ["goals"]}
    return {"name": "delegate", "description": " ".join(about.split()), "parameters": parameters}


def tool_names(functions: Mapping[str, HostFunction]) -> dict[str, str]:
    """The names of functions by the names of their tools, which have letters, digits, _ and - only.

    Example:
        tool_names({"files.read": print})  # {"files_read": "files.read"}
    """
    names: dict[str, str] = {}
    for name in functions:
        plain = NOT_IN_A_NAME.sub("_", name)[:LONGEST_NAME] or "_"
        number = 2
        tool = plain
        while tool in names or (tool == "delegate" and name != tool):
            tool = f"{plain[: LONGEST_NAME - 4]}_{number}"
            number += 1
        names[tool] = name
    return names


class NativeDialect(ToolsDialect):
    """The `native` dialect, for servers that take `tools` and return `tool_calls`."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "native"

    def system(self, *, functions: Mapping[str, HostFunction], may_delegate: bool, child: bool) -> str:
        none = [] if functions or may_delegate else [NO_TOOLS]
        return "\n".join([load("native"), *none, *([load("child")] if child else [])])

    def tools(
        self, *, functions: Mapping[str, HostFunction], may_delegate: bool, child: bool
    ) -> list[Mapping[str, Any]]:
        del child
        schemas = [delegate_schema()] if may_delegate else []
        schemas += [function_schema(tool, functions[name]) for tool, name in tool_names(functions).items()]
        return [{"type": "function", "function": schema} for schema in schemas]

    def messages(self, results: Sequence[Result], calls: Sequence[ToolCall], *, note: str) -> list[Message]:
        messages: list[Message] = []
        for number, call in enumerate(calls):
            own = [result for result in results if result.call == number]
            messages.append(Message("tool", _content(call, own), call_id=call.id))
        rest = [result for result in results if result.call is None or result.call >= len(calls)]
        parts = [self.results(rest) if rest else "", note]
        text = "\n\n".join(part for part in parts if part)
        return [*messages, *([Message("user", text)] if text else [])]

    def session(self, host: Host) -> NativeSession:
        return NativeSession(host)


def _content(call: ToolCall, results: Sequence[Result]) -> str:
    """What one call brought: a function's value as it is, the answers of clones under their labels."""
    if len(results) == 1 and results[0].label == call.name:
        return results[0].text
    return "\n".join(f"{result.label}: {result.text}" for result in results) or INTERRUPTED


class NativeSession(ToolsSession):
    """One node's native tool calls."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._names = tool_names(host.functions)

    async def act_on(self, text: str, calls: Sequence[ToolCall], *, finish: Literal["stop", "length"]) -> Outcome:
        """Carry out the calls that the server returned. Calls written in the text beside them are only text."""
        del text
        self._turn += 1
        return await self._carry_out(await self.read(calls, finish=finish))

    async def read(
        self, calls: Sequence[ToolCall], *, finish: Literal["stop", "length"]
    ) -> list[Call | MalformedAction]:
        """Calls with their arguments as objects. One that cannot be read becomes the fault that explains it."""
        return await off_loop(lambda repairs: self._read(calls, finish, repairs))

    def _read(
        self, calls: Sequence[ToolCall], finish: Literal["stop", "length"], repairs: Repairs
    ) -> list[Call | MalformedAction]:
        last = len(calls) - 1
        cut_off = finish == "length"
        return [self._read_one(call, repairs, cut_off=cut_off and number == last) for number, call in enumerate(calls)]

    def _read_one(self, call: ToolCall, repairs: Repairs, *, cut_off: bool) -> Call | MalformedAction:
        """One call. The last one of a turn that was cut off is complete only if its arguments are."""
        text = clean(call.arguments).strip()
        if cut_off and not text:
            return MalformedAction(CUT_OFF)
        try:
            arguments, repaired = load_object(text or "{}", repairs)
        except MalformedAction as fault:
            return MalformedAction(CUT_OFF) if cut_off else fault
        if cut_off and repaired:
            return MalformedAction(CUT_OFF)
        if not isinstance(arguments, dict):
            return MalformedAction(f"the arguments of a call are an object, not {cut(call.arguments, 80)}")
        name = clean(self._names.get(call.name, call.name))
        return Call(name=name, arguments=cast(dict[str, Any], arguments), repaired=repaired)
