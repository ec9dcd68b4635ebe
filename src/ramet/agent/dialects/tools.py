"""Hermes-style tool calls: `<tool_call>{"name": "delegate", "arguments": {"goals": [...]}}</tool_call>`.

Calls of one turn run in parallel, turns run one after another. Texts are passed by key: the root sees the keys, the
clone gets the text.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import anyio
import json_repair

from ramet.agent.prompts import load
from ramet.agent.wording import (
    CLOSING_REASON,
    after_thoughts,
    answer_in,
    as_text,
    context_block,
    cut,
    describe,
    missing_note,
    remaining_text,
    report_text,
    signature,
)
from ramet.errors import MalformedAction, ModelFault
from ramet.interfaces import Host, HostFunction, Outcome, Remaining, Report, Request, Result
from ramet.types import Stop

OPEN, CLOSE = "<tool_call>", "</tool_call>"
BLOCK = re.compile(re.escape(OPEN) + r"(.*?)" + re.escape(CLOSE), re.DOTALL)
ACCEPTED = ("goals", "context", "tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One well-formed tool call."""

    name: str
    arguments: dict[str, Any]
    repaired: bool = False


def parse_calls(text: str, *, finish: Literal["stop", "length"]) -> list[Call | MalformedAction]:
    """All calls of a turn, in order. An unreadable block becomes the fault that explains it.

    Example:
        parse_calls('<tool_call>{"name": "f", "arguments": {}}</tool_call>', finish="stop")
    """
    text = after_thoughts(text)
    if OPEN not in text:
        return []
    calls = [_parse(match.group(1)) for match in BLOCK.finditer(text)]
    rest = BLOCK.sub("", text)
    if OPEN in rest:
        unclosed = rest.partition(OPEN)[2]
        if finish == "length":
            calls.append(MalformedAction("the turn was cut off before this call was complete"))
        else:  # models drop the closing tag, servers strip it
            calls.append(_parse(unclosed, repaired=True))
    return calls


def _parse(block: str, *, repaired: bool = False) -> Call | MalformedAction:
    try:
        loaded: object = json.loads(block)
    except json.JSONDecodeError as error:
        repaired = True
        loaded = cast(object, json_repair.loads(block))
        if not isinstance(loaded, dict):
            return MalformedAction(f"not valid JSON ({error}): {cut(block.strip(), 80)}")
    if not isinstance(loaded, dict):
        return MalformedAction(f'a tool call is an object {{"name", "arguments"}}, not {cut(block.strip(), 80)}')
    call = cast(dict[str, Any], loaded)
    name, arguments = call.get("name"), call.get("arguments", {})
    if isinstance(arguments, str):  # some models write the arguments as a JSON text
        arguments = cast(object, json_repair.loads(arguments))
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return MalformedAction('a tool call needs "name" (a string) and "arguments" (an object)')
    return Call(name=name, arguments=cast(dict[str, Any], arguments), repaired=repaired)


def parse_requests(arguments: Mapping[str, Any], *, call: int) -> list[Request]:
    """The children that one `delegate` call requests.

    A goal is a text, or an object with `goal` and its own `context` and `tokens`.
    """
    goals: object = arguments.get("goals", arguments.get("goal"))
    if isinstance(goals, (str, dict)):
        goals = [cast(object, goals)]
    if not isinstance(goals, list) or not goals:
        raise MalformedAction('delegate needs goals, a list of texts: {"goals": ["...", "..."]}')
    entries = cast(list[object], goals)
    shared = _as_list(arguments.get("context"))
    tokens = arguments.get("tokens")
    each = cast(list[object], tokens) if isinstance(tokens, list) else [tokens] * len(entries)
    each = each + [None] * (len(entries) - len(each))
    requests: list[Request] = []
    for goal, wanted in zip(entries, each, strict=False):
        entry = cast(dict[str, Any], goal) if isinstance(goal, dict) else {"goal": goal}
        keys = [*shared, *_as_list(entry.get("context"))]
        requests.append(Request(goal=entry.get("goal"), context=keys, tokens=entry.get("tokens", wanted), call=call))
    return requests


def _as_list(value: object) -> list[object]:
    if value is None:
        return []
    return cast(list[object], value) if isinstance(value, list) else [value]


class ToolsDialect:
    """The `tools` dialect."""

    name = "tools"
    stop = ()

    def system(self, *, functions: Mapping[str, HostFunction], may_delegate: bool, child: bool) -> str:
        tools = [load("tools_delegate")] if may_delegate else []
        if functions:
            tools.append(describe(functions))
        listing = "Tools:\n" + "\n".join(tools) if tools else "There are no tools: answer directly."
        return "\n".join([load("tools"), listing, *([load("child")] if child else [])])

    def opening(self, host: Host, *, missing: Sequence[str]) -> str:
        parts = [host.node.goal]
        if host.context and not host.reads_texts:
            # The root sees titles only: it delegates the reading.
            parts.append("Context keys:\n" + "\n".join(f"- {key}" for key in host.context))
        elif host.context:
            parts.append(context_block(host.context))
        parts.append(missing_note(missing))
        return "\n\n".join(part for part in parts if part)

    def results(self, results: Sequence[Result]) -> str:
        lines = "\n".join(f"{result.label}: {result.text}" for result in results)
        return f"<tool_response>\n{lines}\n</tool_response>"

    def remaining(self, remaining: Remaining) -> str:
        return remaining_text(remaining)

    def closing(self, why: Stop) -> str:
        return (
            f"{CLOSING_REASON[why]} Give your final answer now, from what you have, without tool calls.\n"
            "Answer with: Answer: ..."
        )

    def session(self, host: Host) -> ToolsSession:
        return ToolsSession(host)


@dataclass(slots=True)
class TurnWork:
    """The requests and function calls of one turn, and a slot for each call's results."""

    slots: list[list[Result]]
    requests: list[tuple[int, Request]] = field(default_factory=list[tuple[int, Request]])
    functions: list[tuple[int, Call, HostFunction]] = field(default_factory=list[tuple[int, Call, HostFunction]])
    repairs: int = 0
    faults: int = 0


class ToolsSession:
    """One node's tool calls."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._turn = 0

    async def act(self, text: str, *, finish: Literal["stop", "length"]) -> Outcome:
        self._turn += 1
        calls = parse_calls(text, finish=finish)
        if calls:
            return await self._run(calls)
        answer = answer_in(text)
        if answer is not None and finish == "stop":
            return Outcome(done=True, answer=answer)
        why = "your turn was cut off before it ended" if finish == "length" else "your turn was empty"
        return Outcome(results=[Result("note", why)], faults=1)

    async def close(self, text: str) -> Outcome:
        plain = BLOCK.sub("", after_thoughts(text)).partition(OPEN)[0]
        return Outcome(done=True, answer=answer_in(plain))

    async def _run(self, calls: Sequence[Call | MalformedAction]) -> Outcome:
        """Run all calls of the turn: plain functions first, then async functions and clones in parallel."""
        turn = TurnWork([[] for _ in calls])
        for number, call in enumerate(calls):
            self._sort_call(number, call, turn)
        # Plain functions change the world in the order written; async functions run in parallel with the clones.
        for number, call, function in turn.functions:
            if not inspect.iscoroutinefunction(function):
                await self._call(function, call, turn, number)
        reports: list[Report] = []
        async_calls = [entry for entry in turn.functions if inspect.iscoroutinefunction(entry[2])]
        async with anyio.create_task_group() if async_calls else nullcontext() as group:
            for number, call, function in async_calls:
                if group is not None:
                    group.start_soon(self._call, function, call, turn, number)
            if turn.requests:
                reports = await self.host.run_all([request for _, request in turn.requests])
        return self._outcome(turn, reports)

    def _sort_call(self, number: int, call: Call | MalformedAction, turn: TurnWork) -> None:
        """Add a call to the turn's requests or functions; a malformed call gets its fault as result."""
        try:
            if isinstance(call, MalformedAction):
                raise call
            turn.repairs += call.repaired
            if call.name == "delegate":
                turn.requests += [(number, request) for request in parse_requests(call.arguments, call=number)]
                turn.slots[number] += _ignored(call)
            else:
                turn.functions.append((number, call, self._function(call)))
        except ModelFault as fault:
            turn.faults += 1
            turn.slots[number].append(Result(call.name if isinstance(call, Call) else "tool_call", str(fault)))

    def _outcome(self, turn: TurnWork, reports: Sequence[Report]) -> Outcome:
        for ordinal, ((number, _), report) in enumerate(zip(turn.requests, reports, strict=True), start=1):
            turn.slots[number].append(self._result(report, ordinal))
            turn.faults += report.stop is None
        results = [result for slot in turn.slots for result in slot]
        return Outcome(results=results, repairs=turn.repairs, faults=turn.faults)

    def _result(self, report: Report, ordinal: int) -> Result:
        return Result(f"clone {self._turn}.{ordinal}", report_text(report, limit=self.host.result_bytes))

    def _function(self, call: Call) -> HostFunction:
        function = self.host.functions.get(call.name)
        if function is None:
            known = ["delegate", *self.host.functions]
            raise MalformedAction(f"there is no tool {cut(call.name, 60)!r}; there are {', '.join(known)}")
        try:
            inspect.signature(function).bind(**call.arguments)
        except TypeError as error:
            raise MalformedAction(f"{error}; the signature is {call.name}{signature(function)}") from None
        return function

    async def _call(self, function: HostFunction, call: Call, turn: TurnWork, number: int) -> None:
        slot = turn.slots[number]
        try:
            value = function(**call.arguments)
            value = await value if inspect.isawaitable(value) else value
            slot.append(Result(call.name, cut(as_text(value), self.host.output_bytes)))
        except (ModelFault, ValueError, LookupError) as fault:
            turn.faults += 1
            slot.append(Result(call.name, cut(f"error: {fault}", self.host.output_bytes)))


def _ignored(call: Call) -> list[Result]:
    """Notes on arguments of a `delegate` call that have no effect: nothing is dropped silently."""
    notes: list[Result] = []
    unknown = [name for name in call.arguments if name not in (*ACCEPTED, "goal")]
    if unknown:
        notes.append(Result("delegate", f"ignored {cut(', '.join(unknown), 80)}; accepted are {', '.join(ACCEPTED)}"))
    goals, tokens = call.arguments.get("goals"), call.arguments.get("tokens")
    if isinstance(goals, list) and isinstance(tokens, list):
        given, wanted = len(cast(list[object], tokens)), len(cast(list[object], goals))
        if given > wanted:
            notes.append(Result("delegate", f"ignored {given - wanted} of {given} tokens: there are {wanted} goals"))
    return notes
