"""Tools that a client offers: the root calls them, the client carries them out, clones never see them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ramet.serve.errors import wrong
from ramet.serve.fields import Fields, shown

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
MAX_TOOLS = 128
RESERVED = ("delegate", "finish")  # of the runtime
Choice = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTool:
    """A function of the client, as it describes it."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def facts(self) -> dict[str, Any]:
        """The function as an OpenAI-compatible server reads it."""
        facts = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {key: value for key, value in facts.items() if value}

    @property
    def text(self) -> str:
        """One line for the system prompt."""
        return json.dumps(self.facts, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools of a request and how they may be called."""

    tools: tuple[ClientTool, ...] = ()
    choice: Choice = "auto"
    parallel: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.tools)


def read_tools(body: Fields, *, nested: bool) -> ToolUse:
    """The fields `tools`, `tool_choice` and `parallel_tool_calls`. `nested`: as in `/v1/chat/completions`."""
    listed = body.objects("tools")
    if len(listed) > MAX_TOOLS:
        raise wrong("tools", f"tools may have at most {MAX_TOOLS} entries; got {len(listed):,}")
    tools = tuple(_read_tool(entry, nested=nested) for entry in listed)
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise wrong("tools", "two tools have the same name")
    choice, named = _read_choice(body, names, nested=nested)
    if named is not None:
        tools = tuple(tool for tool in tools if tool.name == named)
    parallel = body.flag("parallel_tool_calls", default=True)
    return ToolUse(tools=() if choice == "none" else tools, choice=choice, parallel=parallel)


def _read_tool(entry: Fields, *, nested: bool) -> ClientTool:
    if entry.values.get("type") != "function":
        raise entry.wrong("type", '"function": other kinds of tools are not supported')
    function = entry.object("function") if nested else entry
    if function is None:
        raise entry.wrong("function", "an object with a name")
    name = function.text("name")
    if not NAME.fullmatch(name):
        raise function.wrong("name", "1 to 64 letters, digits, _ and -")
    if name in RESERVED:
        raise function.wrong("name", f"a name other than {' and '.join(RESERVED)}, which every node has")
    parameters = function.object("parameters")
    return ClientTool(
        name=name,
        description=function.text("description", ""),
        parameters={} if parameters is None else parameters.values,
    )


def _read_choice(body: Fields, names: Sequence[str], *, nested: bool) -> tuple[Choice, str | None]:
    """How tools may be chosen, and the one that must be, if the request names one."""
    choice = body.values.get("tool_choice")
    if isinstance(choice, dict):
        entry = body.object("tool_choice") or body
        function = entry.object("function") if nested else entry
        name = "" if function is None else function.text("name", "")
        if entry.values.get("type") != "function" or name not in names:
            accepted = f'{{"type": "function"}} with the name of one of the tools; got {shown(name)}'
            raise wrong("tool_choice", f"tool_choice must be auto, none, required or {accepted}")
        return "required", name
    word = body.choice("tool_choice", ("auto", "none", "required"), "auto")
    if word == "required" and not names:
        raise wrong("tool_choice", "tool_choice is required, but there are no tools")
    return ("none" if word == "none" else "required" if word == "required" else "auto"), None
