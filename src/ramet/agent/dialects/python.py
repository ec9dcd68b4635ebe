"""One Python cell a turn, with `await delegate(...)`, the world's functions and `finish(value)`.

The cell is ordinary async Python. Children start when the cell waits for them: all that were called by then are
admitted together and run in parallel, and the cell goes on as soon as the first answers.
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
from ramet.agent.sandbox import HostCall, Interpreter, Sandbox, Step
from ramet.agent.wording import (
    WHY,
    after_thoughts,
    answer_in,
    as_text,
    cut,
    describe,
    left_text,
    missing_note,
    report_text,
)
from ramet.errors import MalformedAction, ModelFault
from ramet.interfaces import Child, Host, HostFunction, Left, Outcome, Report, Request, Result
from ramet.types import Refusal, State, Stop

OPEN, CLOSE = "<python>", "</python>"
FENCE = re.compile(r"```(?:python|py)?\s*\n(.*?)(?:```|\Z)", re.DOTALL)
NOT_AWAITED = "delegate(...) was called without await, so no clone was started: write `await delegate(...)`"


def cell_in(text: str) -> str | None:
    """The code of a turn: between python tags, or in the first fenced block.

    Example:
        cell_in("<python>print(1)</python>")  # "print(1)"
    """
    text = after_thoughts(text)
    if OPEN in text:
        return text.partition(OPEN)[2].partition(CLOSE)[0].strip("\n")
    fenced = FENCE.search(text)
    return fenced.group(1) if fenced else None


class PythonDialect:
    """The `python` dialect. Give it an open `Sandbox` to share workers between trees; else each tree has two."""

    name = "python"
    stop = (CLOSE,)

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self._given = sandbox
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
        if not self._users and self._sandbox is not None and self._given is None:
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

    def left(self, left: Left) -> str:
        return left_text(left)

    def closing(self, why: Stop) -> str:
        return f"{WHY[why]} End now, from what you have: one short cell with finish(value), or just the answer as text."

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
        later = {name for name, function in host.functions.items() if inspect.iscoroutinefunction(function)}
        functions: dict[str, Callable[..., Any]] = {**host.functions, "finish": self._finish, "delegate": _by_name}
        inputs = {"context": dict(host.context) if host.text is None else host.text}
        self.interpreter: Interpreter = sandbox.interpreter(
            functions, later=frozenset(later | {"delegate"}), inputs=inputs, output_bytes=host.output_bytes
        )

    async def act(self, text: str, *, finish: Literal["stop", "length"]) -> Outcome:
        code = cell_in(text)
        if code is None:
            return self._spoken(text, finish=finish)
        if finish == "length" and CLOSE not in text:
            return Outcome(results=[Result("note", "your turn was cut off before the cell was complete")], faults=1)
        return await self._run(code)

    async def close(self, text: str) -> Outcome:
        self._closing = True
        code = cell_in(text)
        if code is None:
            return Outcome(done=True, answer=answer_in(text))
        outcome = await self._run(code)
        if not outcome.done:  # what the cell printed is the best there is
            printed = self.interpreter.printed.text.strip()
            return Outcome(done=True, answer=printed or None, faults=outcome.faults)
        return outcome

    def _spoken(self, text: str, *, finish: Literal["stop", "length"]) -> Outcome:
        """A turn without a cell is an answer, if it is complete and of the wanted type."""
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
        """Check the value; a wrong one is an error inside the cell, so that the child can mend it."""
        if self.host.returns is not None and not self._closing:
            value = convert(value, self.host.returns)
        size, limit = len(as_text(value).encode()), self.host.result_bytes
        is_child = self.host.node.parent is not None
        if is_child and size > limit and not self._closing:
            raise MalformedAction(f"the value is {size:,} bytes as text; at most {limit:,} go back: finish with less")
        return value

    async def _run(self, code: str) -> Outcome:
        """Run a cell to its end, children included."""
        self._cells += 1
        answers = Answers()
        notes: list[Result] = []
        step = Step()
        async with anyio.create_task_group() as group:
            step = await self.interpreter.start(code)
            while step.parked is not None:
                self._serve(step, group, answers, notes)
                self.host.node.state = State.WAITING
                ready = await answers.some()
                self.host.node.state = State.ACTING
                step = await self.interpreter.resume(step.parked, ready)
            group.cancel_scope.cancel()  # calls that nobody waits for any more
        return self._outcome(step, answers, notes)

    def _serve(self, step: Step, group: TaskGroup, answers: Answers, notes: list[Result]) -> None:
        """Start every call that is new. Children are admitted together, before any of them starts."""
        calls = [self.interpreter.calls[i] for i in sorted(step.pending) if i not in answers.begun]
        answers.begun.update(call.id for call in calls)
        children = [call for call in calls if call.name == "delegate"]
        asked: list[HostCall] = []
        requests: list[Request] = []
        for call in children:
            try:
                requests.append(_request(call, self.host.context))
                asked.append(call)
            except MalformedAction as fault:
                answers.give(call.id, TypeError(str(fault)))
        beside = len(step.pending) - len(calls)
        admitted = self.host.admit(requests, beside=beside) if requests else []
        for call, child in zip(asked, admitted, strict=True):
            if isinstance(child, Refusal):
                report = Report(goal=child.goal, error=child.reason)
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

    def _outcome(self, step: Step, answers: Answers, notes: list[Result]) -> Outcome:
        if step.finished:
            text = as_text(step.value)
            return Outcome(done=True, answer=text, value=step.value)
        printed = self.interpreter.printed.text
        forgotten = any(
            call.name == "delegate" for number, call in self.interpreter.calls.items() if number not in answers.begun
        )
        parts = [printed.rstrip("\n"), cut(step.error or "", self.host.output_bytes), NOT_AWAITED if forgotten else ""]
        shown = "\n".join(part for part in parts if part) or "(no output)"
        failed = step.error is not None or forgotten
        return Outcome(results=[Result(f"cell {self._cells}", shown), *notes], faults=int(failed))


class Answers:
    """Answers on their way into a waiting cell."""

    def __init__(self) -> None:
        self.begun: set[int] = set()
        self._ready: dict[int, object] = {}
        self._came = anyio.Event()

    def give(self, number: int, answer: object) -> None:
        self._ready[number] = answer
        self._came.set()

    async def some(self) -> dict[int, object]:
        """Wait for one, then take all that are there."""
        await self._came.wait()
        ready, self._ready = self._ready, {}
        self._came = anyio.Event()
        return ready


def _by_name() -> None:
    """Stands for `delegate` when a cell only names it."""


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


def _keys(handed: object, context: Mapping[str, str]) -> list[object] | None:
    """The keys somebody names, or None when a value is handed over. Only a node that has keys can name them."""
    if handed is None:
        return []
    if context and isinstance(handed, list) and all(isinstance(key, str) for key in handed):  # pyright: ignore[reportUnknownVariableType]
        return list(handed)  # pyright: ignore[reportUnknownArgumentType]
    return [handed] if isinstance(handed, str) and handed in context else None


def _signature(goal: str, context: object = None, tokens: int | None = None, returns: object = None) -> None: ...


SIGNATURE = inspect.signature(_signature)
