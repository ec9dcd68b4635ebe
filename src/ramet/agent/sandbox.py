"""Code cells in a shared pool of worker processes.

Cells run in pydantic-monty: an interpreter with no file, network, environment or package access and with limits on
time, memory and recursion. A node holds a worker only while its code runs. When a cell waits for children, or ends,
the interpreter's state is saved as bytes and the worker returns to the pool. So one worker serves a tree of any depth,
and a thousand waiting parents cost a thousand small byte strings.

Worker calls block, so they run in threads: the same code works under asyncio and trio.
"""

from __future__ import annotations

import inspect
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, cast

import anyio
import anyio.from_thread
import anyio.to_thread
from pydantic_monty import (
    FunctionSnapshot,
    FutureSnapshot,
    Monty,
    MontyClassProxy,
    MontyComplete,
    MontyCrashedError,
    MontyError,
    MontyRuntimeError,
    MontySession,
    MontySyntaxError,
    NameLookupSnapshot,
    ResourceLimits,
)

from ramet.agent.cells.printed import Printed
from ramet.agent.functions import Failed, call
from ramet.agent.task_groups import task_group
from ramet.agent.values import MAX_BYTES, measure
from ramet.agent.wording import cut
from ramet.errors import MalformedAction

STALLED = "Internal error in monty: asyncio scheduler stalled: no ready tasks and no pending external calls"
STUCK = (
    "this waits for something that will never happen: no clone, function or timer is running that could end it "
    "(calls of earlier cells have ended)"
)
LIMIT, LOST = "time limit exceeded", "variables of this cell are lost"
SHORTEST_S = 0.05  # a part of a cell may run for this long; there are at most `Sandbox.calls` parts
KEPT_BYTES = 2 * MAX_BYTES  # of memory: the arguments of all clones and async functions that one cell asks for
LONGEST_ERROR = 100_000  # characters of the message of an exception that is shown with its traceback
CANCELLED = "the node was cancelled"
Display = Callable[[MontyRuntimeError | MontySyntaxError], str]
Snapshot = FunctionSnapshot | FutureSnapshot | NameLookupSnapshot | MontyComplete


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCall:
    """A call from inside a cell whose result comes later, through `resume`.

    `returned` is what a plain function returned, if that has to be awaited.
    """

    id: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    returned: Awaitable[Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellState:
    """A cell after running: parked at an await, finished with a value, failed, or run to its end."""

    parked: bytes | None = None
    pending: tuple[int, ...] = ()
    finished: bool = False
    value: object = None
    error: str | None = None


class Sandbox:
    """A pool of worker processes.

    Example:
        async with Sandbox(workers=2) as sandbox:
            interpreter = sandbox.interpreter({}, output_bytes=4096)
            state = await interpreter.start("print(1 + 1)")
    """

    def __init__(
        self, *, workers: int = 2, seconds: float = 5.0, memory_mb: int = 32, recursion: int = 200, calls: int = 5000
    ) -> None:
        self.limits: ResourceLimits = {
            "max_feed_duration_secs": seconds,
            "max_memory": memory_mb << 20,
            "max_recursion_depth": recursion,
            "max_suspensions": calls,
        }
        self.calls = calls  # of a cell to the host, waits included
        self.pool = Monty(min_processes=1, max_processes=workers)
        self.limiter = anyio.CapacityLimiter(workers)

    async def __aenter__(self) -> Self:
        await anyio.to_thread.run_sync(self.pool.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.pool.__exit__, None, None, None)

    def interpreter(
        self,
        functions: Mapping[str, Callable[..., Any]],
        *,
        deferred: frozenset[str] = frozenset(),
        inputs: Mapping[str, Any] | None = None,
        output_bytes: int = 8192,
    ) -> Interpreter:
        """A new interpreter. Calls to `deferred` functions are answered through `resume`; others run at once.

        A function named `finish` ends the cell with its return value; it runs in another thread.
        """
        return Interpreter(self, functions, deferred=deferred, inputs=dict(inputs or {}), output_bytes=output_bytes)


@dataclass(slots=True)
class Worker:
    """The worker process that a thread is using, so that a cancelled node can kill it.

    A kill that comes before the process is known is remembered: the thread then does not use the process at all.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    pid: int | None = None
    killed: bool = False

    def take(self, pid: int | None) -> bool:
        """Use this process from now on; False if the node has been cancelled."""
        with self.lock:
            if not self.killed:
                self.pid = pid
            return not self.killed

    def leave(self) -> None:
        """The process goes back to the pool, where it may serve another node."""
        with self.lock:
            self.pid = None

    def kill(self) -> None:
        with self.lock:
            self.killed = True
            if self.pid is not None:
                with suppress(ProcessLookupError):  # it has ended by itself
                    os.kill(self.pid, signal.SIGKILL)
                self.pid = None


class Interpreter:
    """One node's interpreter: variables persist between cells, without a process of its own."""

    def __init__(
        self,
        sandbox: Sandbox,
        functions: Mapping[str, Callable[..., Any]],
        *,
        deferred: frozenset[str],
        inputs: dict[str, Any],
        output_bytes: int,
    ) -> None:
        self.sandbox = sandbox
        self.functions = functions
        self.deferred = deferred
        self.printed = Printed(output_bytes)
        self.calls: dict[int, HostCall] = {}
        self._output_bytes = output_bytes
        self._inputs = inputs
        self._state: bytes | None = None  # between cells
        self._rest: list[str] = []  # of the cell: parts that follow the one that runs
        self._suspended = 0  # how often the cell has called the host or waited
        self._kept_bytes = 0  # of memory, in the arguments of `calls`
        self._ran_s = 0.0  # how long the cell has run
        self._display: Display = _traceback

    async def start(self, *parts: str, display: Display | None = None) -> CellState:
        """Run a cell, given in one or more parts, until it ends, fails, or waits for the results of `calls`."""
        self.printed = Printed(self._output_bytes)
        self.calls = {}
        self._rest = list(parts[1:])
        self._suspended = self._kept_bytes = 0
        self._ran_s = 0.0
        self._display = display or _traceback

        def begin(session: MontySession) -> Snapshot:
            if self._state is None:
                return session.feed_start(parts[0], inputs=self._inputs, print_callback=self.printed)
            session.load_session(self._state)
            return session.feed_start(parts[0], print_callback=self.printed)

        return await self._use_worker(begin)

    async def resume(self, parked: bytes, answers: Mapping[int, Any]) -> CellState:
        """Continue a parked cell. An answer that is an exception is raised inside it."""
        results: dict[int, Any] = {
            number: {"exception": answer} if isinstance(answer, BaseException) else {"return_value": answer}
            for number, answer in answers.items()
        }

        def begin(session: MontySession) -> Snapshot:
            snapshot = session.load_snapshot(parked, print_callback=self.printed)
            if not isinstance(snapshot, FutureSnapshot):
                raise AssertionError(f"parked at {type(snapshot).__name__}")
            return snapshot.resume(results)

        return await self._use_worker(begin)

    def close_calls(self) -> None:
        """At the end of a cell: what functions returned and the cell has not awaited will never run."""
        for host_call in self.calls.values():
            if inspect.iscoroutine(host_call.returned):
                host_call.returned.close()

    async def _use_worker(self, begin: Callable[[MontySession], Snapshot]) -> CellState:
        """Hold a worker while code runs. When the node is cancelled, the worker is killed, so this returns at once."""
        worker = Worker()

        async def kill_on_cancel() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                worker.kill()

        state = CellState()
        async with task_group() as group:
            group.start_soon(kill_on_cancel)
            state = await anyio.to_thread.run_sync(self._advance, begin, worker, limiter=self.sandbox.limiter)
            group.cancel_scope.cancel()
        return state

    def _advance(self, begin: Callable[[MontySession], Snapshot], worker: Worker) -> CellState:
        if worker.killed:  # while it waited for a thread
            return CellState(error=CANCELLED)
        try:
            with self.sandbox.pool.checkout(limits=self._limits_left(), os_policy={"sleep": "zero"}) as session:
                if not worker.take(session.worker_pid):
                    return CellState(error=CANCELLED)
                began = _processor_s(session.worker_pid)
                try:
                    return self._drive(session, begin(session))
                except (MontyRuntimeError, MontySyntaxError) as error:
                    return self._failed(session, error)
                finally:
                    self._ran_s += max(0.0, _processor_s(session.worker_pid) - began)
                    worker.leave()
        except MontyCrashedError as error:
            return CellState(error=f"the cell's process died ({error}); {LOST}")
        except MontyError as error:  # a value that cannot cross into the sandbox
            return CellState(error=str(error)[:LONGEST_ERROR])

    def _limits_left(self) -> ResourceLimits:
        """The limits of the cell, with the time that its parts have left together."""
        limits = self.sandbox.limits
        seconds = limits.get("max_feed_duration_secs") or 0.0
        return {**limits, "max_feed_duration_secs": max(SHORTEST_S, seconds - self._ran_s)}

    def _drive(self, session: MontySession, snapshot: Snapshot) -> CellState:
        """Answer calls that have a result now; stop where the cell has to wait."""
        while True:
            self._suspended += 1
            if self._suspended > self.sandbox.calls:
                return CellState(error=f"the cell made more than {self.sandbox.calls:,} calls and waits; {LOST}")
            if isinstance(snapshot, MontyComplete):
                if not self._rest:
                    self._state = session.dump()
                    return CellState()
                snapshot = session.feed_start(self._rest.pop(0), print_callback=self.printed)
                continue
            if isinstance(snapshot, FutureSnapshot):
                return CellState(parked=snapshot.dump(), pending=tuple(snapshot.pending_call_ids))
            if isinstance(snapshot, NameLookupSnapshot):
                function = self.functions.get(snapshot.variable_name) if snapshot.object_id is None else None
                snapshot = snapshot.resume() if function is None else snapshot.resume(value=function)
            elif snapshot.is_os_function or snapshot.object_id is not None:
                snapshot = snapshot.resume_not_handled()
            elif snapshot.function_name in self.deferred:
                snapshot = self._defer(snapshot)
            else:
                ended, snapshot = self._answer(snapshot)
                if ended is not None:
                    return ended

    def _defer(self, snapshot: FunctionSnapshot) -> Snapshot:
        """Note a call whose result comes later. Arguments that are too large raise in the cell."""
        name, args, kwargs = snapshot.function_name, snapshot.args, snapshot.kwargs
        try:
            self._kept_bytes += measure((args, kwargs))
            if self._kept_bytes > KEPT_BYTES:
                raise MalformedAction(f"the arguments of all calls of a cell have at most {KEPT_BYTES:,} bytes")
        except MalformedAction as fault:
            return snapshot.resume({"exception": ValueError(str(fault))})
        self.calls[snapshot.call_id] = HostCall(id=snapshot.call_id, name=name, args=args, kwargs=kwargs)
        return snapshot.resume({"future": ...})

    def _answer(self, snapshot: FunctionSnapshot) -> tuple[CellState | None, Snapshot]:
        """Call a host function on the event loop's thread, so that worlds need no locks."""
        function = self.functions.get(snapshot.function_name)
        if function is None:
            missing = NameError(f"name {cut(snapshot.function_name, 60)!r} is not defined")
            return None, snapshot.resume({"exception": missing})
        args, kwargs = snapshot.args, snapshot.kwargs
        ends = snapshot.function_name == "finish"
        # `finish` only checks its value, which is safe in this thread.
        value = call(function, args, kwargs) if ends else _call_on_loop(function, args, kwargs)
        if isinstance(value, Failed):
            return None, snapshot.resume({"exception": value.for_cell})
        if ends:
            return CellState(finished=True, value=value), snapshot
        if inspect.isawaitable(value):
            number, name = snapshot.call_id, snapshot.function_name
            self.calls[number] = HostCall(id=number, name=name, args=(), kwargs={}, returned=value)
            return None, snapshot.resume({"future": ...})
        return None, snapshot.resume({"return_value": value})

    def _failed(self, session: MontySession, error: MontyRuntimeError | MontySyntaxError) -> CellState:
        cause = error.exception()
        message = str(cause)
        if len(message) > LONGEST_ERROR:  # a copy more of it, and the host has too many
            text = f"{type(cause).__name__}: {message[:LONGEST_ERROR]}"
        else:
            text = self._display(error).replace(STALLED, STUCK)
        # An interpreter stopped by its limits may be inconsistent: keep the state from before the cell.
        if isinstance(cause, MemoryError) or LIMIT in message[:LONGEST_ERROR]:
            return CellState(error=f"{text}\n{LOST}")
        self._state = session.dump()
        return CellState(error=text)


def instance_in(value: object) -> str | None:
    """The class of the first object of a cell's own class in a value. Such objects have no meaning in other cells."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            left += [*cast(dict[object, object], item).keys(), *cast(dict[object, object], item).values()]
        elif isinstance(item, list | tuple | set | frozenset):
            left += [*cast(list[object], item)]
        elif isinstance(item, MontyClassProxy):
            return item.name
    return None


def _traceback(error: MontyRuntimeError | MontySyntaxError) -> str:
    return error.display()


def _call_on_loop(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The value of a function of the world, called on the event loop's thread; or `Failed`."""
    try:
        measure((args, kwargs))
    except MalformedAction as fault:
        return Failed(fault)
    return anyio.from_thread.run_sync(call, function, args, kwargs)


def _processor_s(pid: int | None) -> float:
    """Seconds of processor time of a process; where a system does not say, seconds of the clock on the wall."""
    try:
        return time.clock_gettime((~pid << 3) | 2) if pid else 0.0  # the clock that clock_getcpuclockid(3) names
    except OSError:
        return time.monotonic()
