"""Code cells in a shared pool of worker processes.

Cells run in pydantic-monty: an interpreter with no file, network, environment or package access and with limits on
time, memory and recursion. A node holds a worker only while its code runs. When a cell waits for children, or ends,
the interpreter's state is saved as bytes and the worker returns to the pool. So one worker serves a tree of any depth,
and a thousand waiting parents cost a thousand small byte strings.

Worker calls block, so they run in threads: the same code works under asyncio and trio.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.from_thread
import anyio.to_thread
from pydantic_monty import (
    FunctionSnapshot,
    FutureSnapshot,
    Monty,
    MontyComplete,
    MontyCrashedError,
    MontyError,
    MontyRuntimeError,
    MontySession,
    MontySyntaxError,
    NameLookupSnapshot,
    ResourceLimits,
)

Snapshot = FunctionSnapshot | FutureSnapshot | NameLookupSnapshot | MontyComplete


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCall:
    """A call from inside a cell whose result comes later, through `resume`."""

    id: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellState:
    """A cell after running: parked at an await, finished with a value, failed, or run to its end."""

    parked: bytes | None = None
    pending: tuple[int, ...] = ()
    finished: bool = False
    value: object = None
    error: str | None = None


@dataclass(slots=True)
class Printed:
    """A cell's output up to a limit; the rest is only counted."""

    limit: int
    parts: list[str] = field(default_factory=list[str])
    kept: int = 0
    total: int = 0

    def __call__(self, stream: str, text: str) -> None:
        self.total += len(text)
        if self.kept < self.limit:
            self.parts.append(text[: self.limit - self.kept])
            self.kept += len(self.parts[-1])

    @property
    def text(self) -> str:
        cut_off = f"\n… ({self.total:,} characters in all)" if self.total > self.kept else ""
        return "".join(self.parts) + cut_off


class Sandbox:
    """A pool of worker processes.

    Example:
        async with Sandbox(workers=2) as sandbox:
            interpreter = sandbox.interpreter({}, output_bytes=4096)
            state = await interpreter.start("print(1 + 1)")
    """

    def __init__(
        self, *, workers: int = 2, seconds: float = 5.0, memory_mb: int = 64, recursion: int = 200, calls: int = 5000
    ) -> None:
        self.limits: ResourceLimits = {
            "max_feed_duration_secs": seconds,
            "max_memory": memory_mb << 20,
            "max_recursion_depth": recursion,
            "max_suspensions": calls,
        }
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
class _Worker:
    """The worker process that a thread is using, so that a cancelled node can kill it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    pid: int | None = None

    def set(self, pid: int | None) -> None:
        with self.lock:
            self.pid = pid

    def kill(self) -> None:
        with self.lock:  # a worker that was returned may already serve another node
            if self.pid is not None:
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

    async def start(self, code: str) -> CellState:
        """Run a cell until it ends, fails, or waits for the results of `calls`."""
        self.printed = Printed(self._output_bytes)
        self.calls = {}

        def begin(session: MontySession) -> Snapshot:
            if self._state is None:
                return session.feed_start(code, inputs=self._inputs, print_callback=self.printed)
            session.load_session(self._state)
            return session.feed_start(code, print_callback=self.printed)

        return await self._use_worker(begin)

    async def resume(self, parked: bytes, answers: Mapping[int, Any]) -> CellState:
        """Continue a parked cell. An answer that is an exception is raised inside it."""
        results: dict[int, Any] = {
            number: {"exception": answer} if isinstance(answer, Exception) else {"return_value": answer}
            for number, answer in answers.items()
        }

        def begin(session: MontySession) -> Snapshot:
            snapshot = session.load_snapshot(parked, print_callback=self.printed)
            if not isinstance(snapshot, FutureSnapshot):
                raise AssertionError(f"parked at {type(snapshot).__name__}")
            return snapshot.resume(results)

        return await self._use_worker(begin)

    async def _use_worker(self, begin: Callable[[MontySession], Snapshot]) -> CellState:
        """Hold a worker while code runs. When the node is cancelled, the worker is killed, so this returns at once."""
        worker = _Worker()

        async def kill_on_cancel() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                worker.kill()

        state = CellState()
        async with anyio.create_task_group() as group:
            group.start_soon(kill_on_cancel)
            state = await anyio.to_thread.run_sync(self._advance, begin, worker, limiter=self.sandbox.limiter)
            group.cancel_scope.cancel()
        return state

    def _advance(self, begin: Callable[[MontySession], Snapshot], worker: _Worker) -> CellState:
        try:
            with self.sandbox.pool.checkout(limits=self.sandbox.limits, os_policy={"sleep": "zero"}) as session:
                worker.set(session.worker_pid)
                try:
                    return self._drive(session, begin(session))
                except (MontyRuntimeError, MontySyntaxError) as error:
                    return self._failed(session, error)
                finally:
                    worker.set(None)
        except MontyCrashedError as error:
            return CellState(error=f"the cell's process died ({error}); variables of this cell are lost")
        except MontyError as error:  # a value that cannot cross into the sandbox
            return CellState(error=str(error))

    def _drive(self, session: MontySession, snapshot: Snapshot) -> CellState:
        """Answer calls that have a result now; stop where the cell has to wait."""
        while True:
            if isinstance(snapshot, MontyComplete):
                self._state = session.dump()
                return CellState()
            if isinstance(snapshot, FutureSnapshot):
                return CellState(parked=snapshot.dump(), pending=tuple(snapshot.pending_call_ids))
            if isinstance(snapshot, NameLookupSnapshot):
                function = self.functions.get(snapshot.variable_name) if snapshot.object_id is None else None
                snapshot = snapshot.resume() if function is None else snapshot.resume(value=function)
            elif snapshot.is_os_function or snapshot.object_id is not None:
                snapshot = snapshot.resume_not_handled()
            elif snapshot.function_name in self.deferred:
                call = HostCall(
                    id=snapshot.call_id, name=snapshot.function_name, args=snapshot.args, kwargs=snapshot.kwargs
                )
                self.calls[call.id] = call
                snapshot = snapshot.resume({"future": ...})
            else:
                ended, snapshot = self._answer(snapshot)
                if ended is not None:
                    return ended

    def _answer(self, snapshot: FunctionSnapshot) -> tuple[CellState | None, Snapshot]:
        """Call a host function on the event loop's thread, so that worlds need no locks."""
        function = self.functions.get(snapshot.function_name)
        if function is None:
            missing = NameError(f"name {snapshot.function_name!r} is not defined")
            return None, snapshot.resume({"exception": missing})
        args, kwargs = snapshot.args, snapshot.kwargs
        ends = snapshot.function_name == "finish"
        # `finish` only checks its value, which is safe in this thread.
        value = _call(function, args, kwargs) if ends else anyio.from_thread.run_sync(_call, function, args, kwargs)
        if isinstance(value, Exception):
            return None, snapshot.resume({"exception": value})
        if ends:
            return CellState(finished=True, value=value), snapshot
        return None, snapshot.resume({"return_value": value})

    def _failed(self, session: MontySession, error: MontyRuntimeError | MontySyntaxError) -> CellState:
        text = error.display()
        # An interpreter stopped by its limits may be inconsistent: keep the state from before the cell.
        if isinstance(error.exception(), (TimeoutError, MemoryError)):
            return CellState(error=f"{text}\nvariables of this cell are lost")
        self._state = session.dump()
        return CellState(error=text)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The function's value, or the exception to raise in the cell."""
    from ramet.errors import ModelFault

    try:
        return function(*args, **kwargs)
    except (TypeError, ValueError, LookupError) as error:
        return error
    except ModelFault as fault:
        return ValueError(str(fault))
