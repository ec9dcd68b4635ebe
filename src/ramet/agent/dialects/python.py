"""One Python cell per turn, with `await delegate(...)`, the world's functions and `finish(value)`.

The cell is ordinary async Python. Children start when the cell awaits: all calls made by then are admitted together
and run in parallel, and the cell resumes as soon as the first child answers.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import anyio
from anyio.abc import TaskGroup

from ramet.agent.prompts import load
from ramet.agent.returns import convert, type_text
from ramet.agent.sandbox import CellState, HostCall, Interpreter, Sandbox
from ramet.agent.wording import (
    CLOSING_REASON,
    after_thoughts,
    answer_in,
    as_text,
    cut,
    describe,
    missing_note,
    remaining_text,
    report_text,
)
from ramet.errors import MalformedAction, ModelFault
from ramet.interfaces import Child, Host, HostFunction, Outcome, Remaining, Report, Request, Result
from ramet.types import Refusal, State, Stop

OPEN, CLOSE = "<python>", "</python>"
FENCE = re.compile(r"```(?:python|py)?\s*\n(.*?)(?:```|\Z)", re.DOTALL)
NOT_AWAITED = "delegate(...) was called without await, so no clone was started: write `await delegate(...)`"


def cell_in(text: str) -> str | None:
    """The code in a turn: between python tags, or in the first fenced block.

    Example:
        cell_in("<python>print(1)</python>")  # "print(1)"
    """
    text = after_thoughts(text)
    if OPEN in text:
        return text.partition(OPEN)[2].partition(CLOSE)[0].strip("\n")
    fenced = FENCE.search(text)
    return fenced.group(1) if fenced else None


class PythonDialect:
    """The `python` dialect. Pass an open `Sandbox` to share workers between trees; by default each tree has two."""

    name = "python"
    stop = (CLOSE,)

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self._shared = sandbox
        self._sandbox = sandbox
        self._users = 0

    async def __aenter__(self) -> Self:
        self._users += 1
        if self._sandbox is None:
            self._sandbox = await Sandbox().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._users -= 1
        if not self._users and self._sandbox is not None and self._shared is None:
            sandbox, self._sandbox = self._sandbox, None
            await sandbox.__aexit__(None, None, None)

    def system(self, *, functions: Mapping[str, HostFunction], may_delegate: bool, child: bool) -> str:
        tools = [load("python_delegate")] if may_delegate else []
        tools.append("finish(value)\n    End with this value as your answer.")
        if functions:
            tools.append(describe(functions))
        return "\n".join([load("python"), "Functions:", *tools, *([load("child")] if child else [])])

    def opening(self, host: Host, *, missing: Sequence[str]) -> str:
        parts = [host.node.goal]
        if host.text is not None:
            parts.append(f"The variable context holds {_measure(host.text)}.")
        elif host.context:
            sizes = "\n".join(f"- {key} ({len(text):,} characters)" for key, text in host.context.items())
            parts.append(f"The variable context is a dict of texts:\n{sizes}")
        if host.returns is not None:
            parts.append(f"finish with a value of type {type_text(host.returns)}.")
        parts.append(missing_note(missing))
        return "\n\n".join(part for part in parts if part)

    def results(self, results: Sequence[Result]) -> str:
        return "\n".join(f"[{result.label}]\n{result.text}" for result in results)

    def remaining(self, remaining: Remaining) -> str:
        return remaining_text(remaining)

    def closing(self, why: Stop) -> str:
        return (
            f"{CLOSING_REASON[why]} End now, from what you have: "
            "one short cell with finish(value), or just the answer as text."
        )

    def session(self, host: Host) -> PythonSession:
        if self._sandbox is None:
            raise AssertionError("PythonDialect is used inside `async with`")
        return PythonSession(host, self._sandbox)


def _measure(value: object) -> str:
    return f"a text of {len(value):,} characters" if isinstance(value, str) else f"a {type(value).__name__}"


class PythonSession:
    """One node's cells."""

    def __init__(self, host: Host, sandbox: Sandbox) -> None:
        self.host = host
        self._closing = False
        self._cells = 0
        deferred = {name for name, function in host.functions.items() if inspect.iscoroutinefunction(function)}
        functions: dict[str, Callable[..., Any]] = {**host.functions, "finish": self._finish, "delegate": _by_name}
        inputs = {"context": dict(host.context) if host.text is None else host.text}
        self.interpreter: Interpreter = sandbox.interpreter(
            functions, deferred=frozenset(deferred | {"delegate"}), inputs=inputs, output_bytes=host.output_bytes
        )

    async def act(self, text: str, *, finish: Literal["stop", "length"]) -> Outcome:
        code = cell_in(text)
        if code is None:
            return self._plain_answer(text, finish=finish)
        if finish == "length" and CLOSE not in text:
            return Outcome(results=[Result("note", "your turn was cut off before the cell was complete")], faults=1)
        return await self._run(code)

    async def close(self, text: str) -> Outcome:
        self._closing = True
        code = cell_in(text)
        if code is None:
            return Outcome(done=True, answer=answer_in(text))
        outcome = await self._run(code)
        if not outcome.done:  # what the cell printed is the best available answer
            printed = self.interpreter.printed.text.strip()
            return Outcome(done=True, answer=printed or None, faults=outcome.faults)
        return outcome

    def _plain_answer(self, text: str, *, finish: Literal["stop", "length"]) -> Outcome:
        """The answer in a turn without a cell, if the turn is complete and the answer has the wanted type."""
        answer = answer_in(text)
        if answer is None or finish == "length":
            why = "your turn was cut off before it ended" if finish == "length" else "your turn was empty"
            return Outcome(results=[Result("note", why)], faults=1)
        try:
            value = answer if self.host.returns is None else convert(answer, self.host.returns)
        except MalformedAction as fault:
            return Outcome(results=[Result("note", f"{fault}; use finish(value) in a cell")], faults=1)
        return Outcome(done=True, answer=as_text(value), value=value)

    def _finish(self, value: object = None) -> object:
        """Check the value. A wrong one raises inside the cell, so that the child can correct it."""
        if self.host.returns is not None and not self._closing:
            value = convert(value, self.host.returns)
        size, limit = len(as_text(value).encode()), self.host.result_bytes
        is_child = self.host.node.parent is not None
        if is_child and size > limit and not self._closing:
            raise MalformedAction(f"the value is {size:,} bytes as text; at most {limit:,} go back: finish with less")
        return value

    async def _run(self, code: str) -> Outcome:
        """Run a cell and its children to the end."""
        self._cells += 1
        answers = Answers()
        notes: list[Result] = []
        state = CellState()
        async with anyio.create_task_group() as group:
            state = await self.interpreter.start(code)
            while state.parked is not None:
                self._start_calls(state, group, answers, notes)
                self.host.node.state = State.WAITING
                ready = await answers.wait()
                self.host.node.state = State.ACTING
                state = await self.interpreter.resume(state.parked, ready)
            group.cancel_scope.cancel()  # calls that the cell no longer awaits
        return self._outcome(state, answers, notes)

    def _start_calls(self, state: CellState, group: TaskGroup, answers: Answers, notes: list[Result]) -> None:
        """Start every new call. Children are admitted together, before any of them starts."""
        calls = [self.interpreter.calls[i] for i in sorted(state.pending) if i not in answers.started]
        answers.started.update(call.id for call in calls)
        children = [call for call in calls if call.name == "delegate"]
        asked: list[HostCall] = []
        requests: list[Request] = []
        for call in children:
            try:
                requests.append(_request(call, self.host.context))
                asked.append(call)
            except MalformedAction as fault:
                answers.give(call.id, TypeError(str(fault)))
        awaited = len(state.pending) - len(calls)
        admitted = self.host.admit(requests, awaited=awaited) if requests else []
        for call, child in zip(asked, admitted, strict=True):
            if isinstance(child, Refusal):
                report = Report(goal=child.goal, error=child.reason, refused=child.kind)
                answers.give(call.id, f"[{report_text(report, limit=self.host.result_bytes)}]")
            else:
                group.start_soon(self._child, call.id, child, answers, notes)
        for call in calls:
            if call.name != "delegate":
                group.start_soon(self._function, call, answers)

    async def _child(self, number: int, child: Child, answers: Answers, notes: list[Result]) -> None:
        report = await child.run()
        if report.answer is None:
            answers.give(number, f"[{report_text(report, limit=self.host.result_bytes)}]")
            return
        if report.stop is not Stop.ANSWERED:
            notes.append(Result("note", f"partial, stopped by {report.stop}: {cut(report.goal, 60)}"))
        if report.missing:
            notes.append(Result("note", f"unknown context keys: {', '.join(report.missing)}"))
        answers.give(number, report.value if report.value is not None else report.answer)

    async def _function(self, call: HostCall, answers: Answers) -> None:
        try:
            answers.give(call.id, await self.host.functions[call.name](*call.args, **call.kwargs))
        except (TypeError, ValueError, LookupError) as error:
            answers.give(call.id, error)
        except ModelFault as fault:
            answers.give(call.id, ValueError(str(fault)))

    def _outcome(self, state: CellState, answers: Answers, notes: list[Result]) -> Outcome:
        if state.finished:
            text = as_text(state.value)
            return Outcome(done=True, answer=text, value=state.value)
        printed = self.interpreter.printed.text
        not_awaited = any(
            call.name == "delegate" for number, call in self.interpreter.calls.items() if number not in answers.started
        )
        error = cut(state.error or "", self.host.output_bytes)
        parts = [printed.rstrip("\n"), error, NOT_AWAITED if not_awaited else ""]
        shown = "\n".join(part for part in parts if part) or "(no output)"
        failed = state.error is not None or not_awaited
        return Outcome(results=[Result(f"cell {self._cells}", shown), *notes], faults=int(failed))


class Answers:
    """Results on their way into a parked cell."""

    def __init__(self) -> None:
        self.started: set[int] = set()
        self._ready: dict[int, object] = {}
        self._arrived = anyio.Event()

    def give(self, number: int, answer: object) -> None:
        self._ready[number] = answer
        self._arrived.set()

    async def wait(self) -> dict[int, object]:
        """Wait for the first answer, then take all that have arrived."""
        await self._arrived.wait()
        ready, self._ready = self._ready, {}
        self._arrived = anyio.Event()
        return ready


def _by_name() -> None:
    """What `delegate` is when a cell names it without calling it."""


def _request(call: HostCall, context: Mapping[str, str]) -> Request:
    """Read the arguments of `delegate(goal, context=None, tokens=None, returns=None)`."""
    try:
        bound = SIGNATURE.bind(*call.args, **call.kwargs)
    except TypeError as error:
        raise MalformedAction(f"delegate{SIGNATURE}: {error}") from None
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
