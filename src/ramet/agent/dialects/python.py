"""One Python cell per turn, with `await delegate(...)`, the world's functions and `finish(value)`.

The cell is ordinary async Python. Children start when the cell awaits: all calls made by then are admitted together
and run in parallel, and the cell resumes as soon as the first child answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from ramet.agent.cells.answers import Answers
from ramet.agent.cells.requests import read_request
from ramet.agent.cells.rewrite import Rewritten, prelude, rewrite
from ramet.agent.cells.trace import display
from ramet.agent.functions import Failed, call_async
from ramet.agent.prompts import load
from ramet.agent.returns import convert, type_text
from ramet.agent.sandbox import CellState, HostCall, Interpreter, Sandbox, instance_in
from ramet.agent.task_groups import task_group
from ramet.agent.values import MAX_FINAL, brief, measure
from ramet.agent.wording import (
    CLOSING_REASON,
    after_thoughts,
    answer_in,
    answer_in_cut,
    as_text,
    cut,
    describe,
    is_async,
    missing_note,
    num_bytes,
    remaining_text,
    report_text,
    shorten,
    too_many_calls,
)
from ramet.errors import MalformedAction
from ramet.interfaces import Child, CutAnswer, Host, HostFunction, Outcome, Remaining, Report, Request, Result
from ramet.types import Refusal, State, Stop, clean

OPEN, CLOSE = "<python>", "</python>"
DEFERRED = {"delegate", "_aio_park", "_aio_timer"}
FENCE = re.compile(r"```(?:python|py)?\s*\n(.*?)(?:```|\Z)", re.DOTALL)
LONG_CELL = 4000  # characters: a longer cell is rewritten in another thread
NOT_AWAITED = "delegate(...) was called without await, so no clone was started: write `await delegate(...)`"


def cell_in(text: str) -> str | None:
    """The code in a turn: between python tags, or in the first fenced block.

    Example:
        cell_in("<python>print(1)</python>")  # "print(1)"
    """
    text = clean(after_thoughts(text))
    if OPEN in text:
        return text.partition(OPEN)[2].partition(CLOSE)[0].strip("\n")
    fenced = FENCE.search(text)
    return fenced.group(1) if fenced else None


class PythonDialect:
    """The `python` dialect: the model writes cells of Python that run in a sandbox and call `await delegate(...)`.

    Pass an open `Sandbox` to share worker processes between trees; by default each tree has two of its own.
    """

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
            tools.append(describe(functions, awaited=True))
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
        self._calls = 0  # of the cell
        self._answers = Answers()
        self._has_asyncio = False  # whether a cell used more of asyncio than the interpreter has
        deferred = {name for name, function in host.functions.items() if is_async(function)}
        functions: dict[str, Callable[..., Any]] = {
            **{name: self._counted(function) for name, function in host.functions.items()},
            "finish": self._finish,
            "delegate": _by_name,
            "_aio_wake": self._wake,
            "_aio_interrupt": self._interrupt,
        }
        inputs = {"context": dict(host.context) if host.text is None else host.text}
        self.interpreter: Interpreter = sandbox.interpreter(
            functions, deferred=frozenset(deferred | DEFERRED), inputs=inputs, output_bytes=host.output_bytes
        )

    async def act(self, text: str, *, finish: Literal["stop", "length"]) -> Outcome:
        code = cell_in(text)
        if code is None:
            return self._plain_answer(text, finish=finish)
        if finish == "length" and CLOSE not in text:
            return Outcome(results=[Result("note", "your turn was cut off before the cell was complete")], faults=1)
        return replace(await self._run(code), action=code)

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

    def answer_in_cut(self, text: str) -> CutAnswer | None:
        """The answer as text; a cell is not run, because time is up."""
        return answer_in_cut(text) if cell_in(text) is None else None

    def _plain_answer(self, text: str, *, finish: Literal["stop", "length"]) -> Outcome:
        """The answer in a turn without a cell, if the turn is complete and the answer has the wanted type."""
        answer = answer_in(text)
        if answer is None or finish == "length":
            why = "your turn was cut off before it ended" if finish == "length" else "your turn was empty"
            return Outcome(results=[Result("note", why)], faults=1)
        if self.host.returns is None:
            return Outcome(done=True, answer=answer, value=self._cut_for_parent(answer))
        try:
            value = self._checked(convert(answer, self.host.returns))
        except MalformedAction as fault:
            return Outcome(results=[Result("note", f"{fault}; use finish(value) in a cell")], faults=1)
        return Outcome(done=True, answer=as_text(value), value=value)

    def _cut_for_parent(self, answer: str) -> str:
        return answer if self.host.node.parent is None else cut(answer, self.host.result_bytes)

    def _finish(self, value: object = None) -> object:
        """Check the value. A wrong one raises inside the cell, so that the child can correct it."""
        try:
            measure(value, most=MAX_FINAL)
        except MalformedAction:
            if not self._closing:
                raise
            return self._cut_for_parent(brief(value))
        if self.host.returns is not None and not self._closing:
            value = convert(value, self.host.returns)
        return self._checked(value)

    def _checked(self, value: object) -> object:
        """A value that can go to the parent. In the final turn, a value that cannot becomes a text."""
        if self.host.node.parent is None:
            return value
        text, limit = as_text(value), self.host.result_bytes
        size, instance = num_bytes(text), instance_in(value)
        if self._closing:
            return cut(text, limit) if size > limit or instance is not None else value
        if instance is not None:
            raise MalformedAction(f"finish with numbers, texts, lists and dicts, not with a {instance}")
        if size > limit:
            raise MalformedAction(f"the value is {size:,} bytes as text; at most {limit:,} go back: finish with less")
        return value

    def _wake(self, number: int) -> None:
        call = self.interpreter.calls.get(number)
        if call is not None and call.name == "_aio_park":
            self._answers.wake(number)

    def _interrupt(self, number: int) -> None:
        self._answers.interrupt(number)

    def _counted(self, function: HostFunction) -> HostFunction:
        """The function, with its calls counted against the limit of the turn."""
        if self.host.budget.max_calls is None or is_async(function):
            return function

        def counted(*args: Any, **kwargs: Any) -> Any:
            if self._is_one_too_many():
                raise MalformedAction(too_many_calls(self._calls))
            return function(*args, **kwargs)

        return counted

    def _is_one_too_many(self) -> bool:
        most = self.host.budget.max_calls
        if most is not None and self._calls >= most:
            return True
        self._calls += 1
        return False

    async def _run(self, code: str) -> Outcome:
        """Run a cell and its children to the end."""
        self._cells += 1
        self._calls = 0
        answers = self._answers = Answers()
        notes: list[Result] = []
        state = CellState()
        try:
            cell = await self._rewrite(code)
        except MalformedAction as fault:
            return Outcome(results=[Result(f"cell {self._cells}", str(fault))], faults=1)
        try:
            async with task_group() as group:
                state = await self._start(code, cell)
                while state.parked is not None:
                    self._start_calls(state, group, answers, notes)
                    self.host.node.state = State.WAITING
                    ready = await answers.wait(state.pending)
                    self.host.node.state = State.ACTING
                    state = await self.interpreter.resume(state.parked, ready)
                group.cancel_scope.cancel()  # calls that the cell no longer awaits
        finally:
            self.interpreter.close_calls()
        return self._outcome(state, answers, notes)

    async def _rewrite(self, code: str) -> Rewritten | None:
        work = partial(rewrite, code, always=self._has_asyncio)
        if len(code) <= LONG_CELL:
            return work()
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)

    async def _start(self, code: str, cell: Rewritten | None) -> CellState:
        """Start a cell as it was written, or rewritten if it uses more of asyncio than the interpreter has."""
        if cell is None:
            return await self.interpreter.start(code)
        if not self._has_asyncio:
            state = await self.interpreter.start(prelude())
            if state.error is not None:
                return state
            self._has_asyncio = True
        return await self.interpreter.start("_aio_loop.abandon()", cell.code, display=partial(display, cell=cell))

    def _start_calls(self, state: CellState, group: TaskGroup, answers: Answers, notes: list[Result]) -> None:
        """Start every new call. Children are admitted together, before any of them starts."""
        known = self.interpreter.calls  # without calls of earlier cells
        calls = [known[i] for i in sorted(state.pending) if i in known and i not in answers.started]
        awaited = len(state.pending) - len(calls)
        answers.started.update(call.id for call in calls)
        self._start_children([call for call in calls if call.name == "delegate"], group, answers, notes, awaited)
        for call in calls:
            if call.name == "_aio_timer":
                answers.set_timer(call.id, call.args[0] if call.args else None)
            elif call.name in DEFERRED:  # a clone has its start, and a parked task waits to be woken
                continue
            elif call.returned is None and self._is_one_too_many():
                answers.give(call.id, ValueError(too_many_calls(self._calls)))
            else:
                answers.begin(call.id)
                group.start_soon(answers.run, call.id, partial(self._function, call))

    def _start_children(
        self, calls: Sequence[HostCall], group: TaskGroup, answers: Answers, notes: list[Result], awaited: int
    ) -> None:
        asked: list[HostCall] = []
        requests: list[Request] = []
        for call in calls:
            if self._is_one_too_many():
                answers.give(call.id, f"[{too_many_calls(self._calls)}]")
                continue
            try:
                requests.append(read_request(call, self.host.context))
                asked.append(call)
            except MalformedAction as fault:
                answers.give(call.id, TypeError(str(fault)))
        admitted = self.host.admit(requests, awaited=awaited) if requests else []
        for call, child in zip(asked, admitted, strict=True):
            if isinstance(child, Refusal):
                report = Report(goal=child.goal, error=child.reason, refused=child.kind)
                answers.give(call.id, f"[{report_text(report, limit=self.host.result_bytes)}]")
            else:
                answers.begin(call.id)
                group.start_soon(answers.run, call.id, partial(self._child, child, notes))

    async def _child(self, child: Child, notes: list[Result]) -> object:
        """The child's value, or a text that says why there is none."""
        report = await child.run()
        if report.answer is None:
            return f"[{report_text(report, limit=self.host.result_bytes)}]"
        if report.stop is not Stop.ANSWERED:
            notes.append(Result("note", f"partial, stopped by {report.stop}: {cut(report.goal, 60)}"))
        if report.missing:
            notes.append(Result("note", f"unknown context keys: {', '.join(report.missing)}"))
        return report.value if report.value is not None else cut(report.answer, self.host.result_bytes)

    async def _function(self, call: HostCall) -> object:
        function = self.host.functions[call.name] if call.returned is None else lambda: call.returned
        value = await call_async(function, call.args, call.kwargs)
        return value.for_cell if isinstance(value, Failed) else value

    def _outcome(self, state: CellState, answers: Answers, notes: list[Result]) -> Outcome:
        if state.finished:
            text = as_text(state.value)
            return Outcome(done=True, answer=text, value=state.value)
        not_awaited = any(
            call.name == "delegate" for number, call in self.interpreter.calls.items() if number not in answers.started
        )
        shown = self._shown([state.error or "", NOT_AWAITED if not_awaited else ""]) or "(no output)"
        failed = state.error is not None or not_awaited
        results = shorten([Result(f"cell {self._cells}", shown)], self.host.budget.max_result_chars)
        return Outcome(results=[*results, *notes], faults=int(failed))

    def _shown(self, messages: Sequence[str]) -> str:
        """What the cell printed, then messages about it, together at most `output_bytes`. Output is cut first."""
        printed, limit = self.interpreter.printed, self.host.output_bytes
        message = "\n".join(filter(None, messages))
        least = 0 if not printed.total else min(limit // 2, num_bytes(printed.text) + 1)  # bytes of the output
        message = cut(message, limit - least)
        if not message:
            return printed.text.rstrip("\n")
        return "\n".join(filter(None, [printed.within(limit - num_bytes(message) - 1).rstrip("\n"), message]))


def _by_name() -> None:
    """What `delegate` is when a cell names it without calling it."""
