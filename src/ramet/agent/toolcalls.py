"""Native tool calling: the seams of a dialect that uses it, and its calls as text, as records show them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from ramet.agent.wording import is_thinking
from ramet.interfaces import HostFunction, Outcome, Result, Session
from ramet.types import Completion, Message, ToolCall, clean

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@runtime_checkable
class CallsTools(Protocol):
    """A dialect for servers with native tool calling: tools and results are not text of a message."""

    def tools(
        self, *, functions: Mapping[str, HostFunction], may_delegate: bool, child: bool
    ) -> Sequence[Mapping[str, Any]]:
        """What the model may call, in the format of OpenAI-compatible servers."""
        ...

    def messages(self, results: Sequence[Result], calls: Sequence[ToolCall], *, note: str) -> list[Message]:
        """The results of a turn: one message for each of its calls, then what belongs to none, and the note."""
        ...


@runtime_checkable
class ReadsCalls(Protocol):
    """A session that carries out calls which the server returned as such."""

    async def act_on(self, text: str, calls: Sequence[ToolCall], *, finish: Literal["stop", "length"]) -> Outcome:
        """Carry out the calls of a turn; `text` is what the model wrote beside them."""
        ...


async def act(session: Session, text: str, completion: Completion) -> Outcome:
    """Carry out a turn: its native calls, or else what its text asks for."""
    if completion.calls and isinstance(session, ReadsCalls):
        return await session.act_on(text, completion.calls, finish=completion.finish)
    if completion.finish == "length" and is_thinking(text):
        text = ""  # it was cut off in its thoughts: what looks like a call in them is a draft
    return await session.act(text, finish=completion.finish)


def call_text(call: ToolCall) -> str:
    """A call in the format of the dialect `tools`. Arguments that are not JSON stay a text.

    Example:
        call_text(ToolCall(id="1", name="f", arguments="{}"))  # '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    """
    try:
        arguments: object = json.loads(call.arguments)
        text = json.dumps({"name": call.name, "arguments": arguments}, ensure_ascii=False)
    except (ValueError, RecursionError):
        text = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"{OPEN}{clean(text)}{CLOSE}"


def tools_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """The tools of a node, one per line, as its record shows them."""
    return "\n".join(["Tools:", *(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)])


def messages_text(messages: Sequence[Message]) -> str:
    """Messages to the model as one text: the results of calls between tags, others as they are."""
    return "\n\n".join(
        f"<tool_response>\n{message.content}\n</tool_response>" if message.role == "tool" else message.content
        for message in messages
    )
