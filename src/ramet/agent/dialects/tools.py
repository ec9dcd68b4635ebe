"""Hermes-style tool calls: `<tool_call>{"name": "delegate", "arguments": {"goals": [...]}}</tool_call>`.

Calls of one turn run in parallel, turns run one after another. Texts are passed by key: the root sees the keys, the
clone gets the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from ramet.agent import reading
from ramet.agent.functions import Failed, call_async, check_arguments
from ramet.agent.prompts import load
from ramet.agent.reading import Repairs, off_loop
from ramet.agent.returns import read_answer, type_text
from ramet.agent.task_groups import task_group
from ramet.agent.wording import (
    CLOSING_REASON,
    after_thoughts,
    answer_in,
    answer_in_cut,
    as_text,
    context_block,
    cut,
    describe,
    is_async,
    missing_note,
    num_bytes,
    remaining_text,
    report_text,
    shorten,
    signature,
    too_many_calls,
)
from ramet.errors import MalformedAction, ModelFault
from ramet.interfaces import CutAnswer, Host, HostFunction, Outcome, Remaining, Report, Request, Result
from ramet.types import Stop, clean

OPEN, CLOSE = "<tool_call>", "</tool_call>"
NO_TOOLS = "There are no tools: answer directly."
MAX_CALLS = 1000  # of a turn that are read
MAX_NAME = 60  # bytes of a name in a message
CUT_OFF = "the turn was cut off before this call was complete"
ACCEPTED = ("goals", "context", "tokens")  # as the prompt says; `returns` is accepted too, see `ToolsDialect`


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One well-formed tool call."""

    name: str
    arguments: dict[str, Any]
    repaired: bool = False


def parse_calls(
    text: str, *, finish: Literal["stop", "length"], repairs: Repairs | None = None
) -> list[Call | MalformedAction]:
    """All calls of a turn, in order. An unreadable block becomes the fault that explains it.

    Example:
        parse_calls('<tool_call>{"name": "f", "arguments": {}}</tool_call>', finish="stop")
    """
    repairs = repairs or Repairs()
    blocks, _, unclosed = split_calls(clean(after_thoughts(text)))
    calls = [_parse(block, repairs) for block in blocks[:MAX_CALLS]]
    if len(blocks) > MAX_CALLS:
        calls.append(MalformedAction(f"one turn makes at most {MAX_CALLS:,} calls; {len(blocks):,} were written"))
    elif unclosed is not None and finish == "length":
        calls.append(MalformedAction(CUT_OFF))
    elif unclosed is not None:  # models drop the closing tag, servers strip it
        calls.append(_parse(unclosed, repairs, repaired=True))
    return calls


def split_calls(text: str) -> tuple[list[str], str, str | None]:
    """The blocks between tags, the text outside of them, and the text after a tag that is not closed.

    Example:
        split_calls("a<tool_call>b</tool_call>c<tool_call>d")  # (["b"], "ac", "d")
    """
    blocks: list[str] = []
    outside: list[str] = []
    at = 0
    while (start := text.find(OPEN, at)) >= 0:
        outside.append(text[at:start])
        end = text.find(CLOSE, start + len(OPEN))
        if end < 0:
            return blocks, "".join(outside), text[start + len(OPEN) :]
        blocks.append(text[start + len(OPEN) : end])
        at = end + len(CLOSE)
    return blocks, "".join([*outside, text[at:]]), None


def _without_calls(text: str) -> str:
    _, plain, _ = split_calls(clean(after_thoughts(text)))
    return plain


def _parse(block: str, repairs: Repairs, *, repaired: bool = False) -> Call | MalformedAction:
    try:
        loaded, broken = load_object(block, repairs)
        if not isinstance(loaded, dict):
            raise MalformedAction(f'a tool call is an object {{"name", "arguments"}}, not {cut(block.strip(), 80)}')
        call = cast(dict[str, Any], loaded)
        name, arguments = call.get("name"), call.get("arguments", {})
        if isinstance(arguments, str):  # some models write the arguments as a JSON text
            arguments, _ = load_object(arguments, repairs)
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise MalformedAction('a tool call needs "name" (a string) and "arguments" (an object)')
    except MalformedAction as fault:
        return fault
    return Call(name=name, arguments=cast(dict[str, Any], arguments), repaired=repaired or broken)


def load_object(text: str, repairs: Repairs) -> tuple[object, bool]:
    """The value of a JSON text, and whether it had to be repaired. Only an object is worth repairing."""
    try:
        return reading.load(text), False
    except MalformedAction as fault:
        reason = str(fault)
    try:
        loaded = repairs.repair(text)
    except MalformedAction as fault:
        reason, loaded = f"{reason}; {fault}", None
    if not isinstance(loaded, dict):
        raise MalformedAction(f"not valid JSON ({reason}): {cut(text.strip(), 80)}")
    return cast(object, loaded), True


def parse_requests(arguments: Mapping[str, Any], *, call: int) -> list[Request]:
    """The children that one `delegate` call requests.

    A goal is a text, or an object with `goal` and its own `context`, `tokens` and `returns`.
    """
    goals: object = arguments.get("goals", arguments.get("goal"))
    if isinstance(goals, (str, dict)):
        goals = [cast(object, goals)]
    if not isinstance(goals, list) or not goals:
        raise MalformedAction('delegate needs goals, a list of texts: {"goals": ["...", "..."]}')
    entries = cast(list[object], goals)
    shared = _as_list(arguments.get("context"))
    tokens, types = (_one_each(arguments.get(name), len(entries)) for name in ("tokens", "returns"))
    requests: list[Request] = []
    for goal, wanted, returns in zip(entries, tokens, types, strict=True):
        entry = cast(dict[str, Any], goal) if isinstance(goal, dict) else {"goal": goal}
        requests.append(
            Request(
                goal=entry.get("goal"),
                context=[*shared, *_as_list(entry.get("context"))],
                tokens=entry.get("tokens", wanted),
                returns=entry.get("returns", returns),
                call=call,
            )
        )
    return requests


def _one_each(value: object, number: int) -> list[object]:
    """One value for each goal: those of a list, then none; or the same for all."""
    each = cast(list[object], value) if isinstance(value, list) else [value] * number
    return (each + [None] * number)[:number]


def _as_list(value: object) -> list[object]:
    if value is None:
        return []
    return cast(list[object], value) if isinstance(value, list) else [value]


class ToolsDialect:
    """The `tools` dialect: the model writes calls as JSON inside <tool_call> tags.

    A parent may always ask for the type of an answer (`returns`). The prompt mentions this only with `returns=True`,
    which is the dialect `tools-returns`, so that models trained with the shorter prompt keep it.
    """

    stop = ()

    def __init__(self, *, returns: bool = False) -> None:
        self.name = "tools-returns" if returns else "tools"
        self._delegate = "tools_delegate_returns" if returns else "tools_delegate"

    def system(self, *, functions: Mapping[str, HostFunction], may_delegate: bool, child: bool) -> str:
        tools = [load(self._delegate)] if may_delegate else []
        if functions:
            tools.append(describe(functions, awaited=False))
        listing = "Tools:\n" + "\n".join(tools) if tools else NO_TOOLS
        return "\n".join([load("tools"), listing, *([load("child")] if child else [])])

    def opening(self, host: Host, *, missing: Sequence[str]) -> str:
        parts = [host.node.goal]
        if host.context and not host.reads_texts:
            # The root sees titles only: it delegates the reading.
            parts.append("Context keys:\n" + "\n".join(f"- {key}" for key in host.context))
        elif host.context:
            parts.append(context_block(host.context))
        if host.returns is not None:
            parts.append(f"Answer with JSON of type {type_text(host.returns)}.")
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
        calls = await off_loop(lambda repairs: parse_calls(text, finish=finish, repairs=repairs))
        if calls:
            return await self._carry_out(calls)
        answer = answer_in(text)
        if answer is not None and finish == "stop":
            return self._answer(answer)
        why = "your turn was cut off before it ended" if finish == "length" else "your turn was empty"
        return Outcome(results=[Result("note", why)], faults=1)

    async def _carry_out(self, calls: Sequence[Call | MalformedAction]) -> Outcome:
        outcome = await self._run(calls)
        return replace(outcome, action=[(call.name, call.arguments) for call in calls if isinstance(call, Call)])

    def answer_in_cut(self, text: str) -> CutAnswer | None:
        return answer_in_cut(_without_calls(text))

    async def close(self, text: str) -> Outcome:
        answer = answer_in(_without_calls(text))
        outcome = Outcome() if answer is None else self._answer(answer)
        return outcome if outcome.done else Outcome(done=True, answer=answer, faults=outcome.faults)

    def _answer(self, answer: str) -> Outcome:
        """The answer; if the parent asked for a type, as checked JSON, or a fault that the clone can correct."""
        if self.host.returns is None:
            return Outcome(done=True, answer=answer)
        try:
            value, text = read_answer(answer, self.host.returns)
            size, limit = num_bytes(text), self.host.result_bytes
            if size > limit:
                raise MalformedAction(f"the answer is {size:,} bytes; at most {limit:,} go back: answer with less")
        except MalformedAction as fault:
            return Outcome(results=[Result("note", str(fault))], faults=1)
        return Outcome(done=True, answer=text, value=value)

    async def _run(self, calls: Sequence[Call | MalformedAction]) -> Outcome:
        """Run all calls of the turn: plain functions first, then async functions and clones in parallel."""
        turn = TurnWork([[] for _ in calls])
        for number, call in enumerate(calls):
            self._sort_call(number, call, turn)
        # Plain functions change the world in the order written; async functions run in parallel with the clones.
        for number, call, function in turn.functions:
            if not is_async(function):
                await self._call(function, call, turn, number)
        reports: list[Report] = []
        async_calls = [entry for entry in turn.functions if is_async(entry[2])]
        async with task_group() if async_calls else nullcontext() as group:
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
            most = self.host.budget.max_calls
            if most is not None and number >= most:
                raise MalformedAction(too_many_calls(most))
            turn.repairs += call.repaired
            if call.name == "delegate":
                turn.requests += [(number, request) for request in parse_requests(call.arguments, call=number)]
                turn.slots[number] += _ignored(call)
            else:
                turn.functions.append((number, call, self._function(call)))
        except ModelFault as fault:
            turn.faults += 1
            label = cut(call.name, MAX_NAME) if isinstance(call, Call) else "tool_call"
            turn.slots[number].append(Result(label, cut(str(fault), self.host.output_bytes)))

    def _outcome(self, turn: TurnWork, reports: Sequence[Report]) -> Outcome:
        for ordinal, ((number, _), report) in enumerate(zip(turn.requests, reports, strict=True), start=1):
            turn.slots[number].append(self._result(report, ordinal))
            turn.faults += report.stop is None
        limit = self.host.budget.max_result_chars
        results = [
            replace(result, call=number) for number, slot in enumerate(turn.slots) for result in shorten(slot, limit)
        ]
        return Outcome(results=results, repairs=turn.repairs, faults=turn.faults)

    def _result(self, report: Report, ordinal: int) -> Result:
        return Result(f"clone {self._turn}.{ordinal}", report_text(report, limit=self.host.result_bytes))

    def _function(self, call: Call) -> HostFunction:
        function = self.host.functions.get(call.name)
        if function is None:
            known = ["delegate", *self.host.functions]
            raise MalformedAction(f"there is no tool {cut(call.name, MAX_NAME)!r}; there are {', '.join(known)}")
        try:
            check_arguments(function, call.arguments)
        except TypeError as error:
            raise MalformedAction(
                f"{cut(str(error), 200)}; the signature is {call.name}{signature(function)}"
            ) from None
        return function

    async def _call(self, function: HostFunction, call: Call, turn: TurnWork, number: int) -> None:
        text = await call_async(function, (), call.arguments, then=as_text)
        if isinstance(text, Failed):
            turn.faults += 1
            text = text.text
        turn.slots[number].append(Result(call.name, cut(text, self.host.output_bytes)))


def _ignored(call: Call) -> list[Result]:
    """Notes on arguments of a `delegate` call that have no effect: nothing is dropped silently."""
    notes: list[Result] = []
    unknown = [name for name in call.arguments if name not in (*ACCEPTED, "goal", "returns")]
    if unknown:
        notes.append(Result("delegate", f"ignored {cut(', '.join(unknown), 80)}; accepted are {', '.join(ACCEPTED)}"))
    goals, tokens = call.arguments.get("goals"), call.arguments.get("tokens")
    if isinstance(goals, list) and isinstance(tokens, list):
        given, wanted = len(cast(list[object], tokens)), len(cast(list[object], goals))
        if given > wanted:
            notes.append(Result("delegate", f"ignored {given - wanted} of {given} tokens: there are {wanted} goals"))
    return notes
