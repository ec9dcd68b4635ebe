"""A process in which sessions with another package's environments run: many calls at a time, with state between them.

A `Grader` answers one call after another and keeps nothing. The tools of an environment belong to one tree: they change
its state, and clones call them in parallel. Here every call is a task in one event loop, as in the package itself. A
call that takes too long is cancelled. If the loop no longer answers, the process is killed and its sessions are lost.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import suppress
from importlib import import_module
from itertools import count
from types import ModuleType
from typing import Any, cast

from ramet.tasks.grader import (
    START_S,
    Unfinished,
    describe,
    is_cancelled,
    limit_memory,
    open_replies,
    read_reply,
    start_process,
)

PING_S = 10.0  # a loop that does not answer for so long is blocked
SLICE_S = 0.05  # how soon a cancelled thread stops waiting
PING = "ping"


class Sessions:
    """Calls async functions of a module in another process that imports `library`. Can be used from any thread.

    Example:
        Sessions("ramet.tasks.peers.verifiers", library="verifiers", extra="verifiers").call("close", 1, seconds=5)
    """

    def __init__(self, module: str, *, library: str, extra: str, ping_s: float = PING_S) -> None:
        self.module, self.library, self.extra, self.ping_s = module, library, extra, ping_s
        self._process: _Process | None = None
        self._posted: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._lock = threading.Lock()
        atexit.register(self.stop)

    def call(self, function: str, *arguments: Any, seconds: float) -> Any:
        """Call a function and return its result. It may raise `ConfigError`; any other failure is `Unfinished`."""
        process = self._running()
        with suppress(IndexError):
            while True:
                process.send(*self._posted.popleft())
        number, future = process.send(function, arguments)
        if not _wait(future, seconds):
            process.cancel(number)
            if is_cancelled():
                raise Unfinished("it was cancelled")
            self._kill_if_blocked(process)
            raise Unfinished(f"no result within {seconds:g} seconds")
        return read_reply(future.result(), self.library, self.extra)

    def post(self, function: str, *arguments: Any) -> None:
        """Call a function together with the next call, without its result. Takes no lock: a destructor may post."""
        self._posted.append((function, arguments))

    def stop(self) -> None:
        """Kill the process, if there is one."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.end()

    def _running(self) -> _Process:
        with self._lock:
            if self._process is None or self._process.ended:
                self._process = _Process(self.module, self.library)
            process = self._process
        if not _wait(process.ready, START_S):
            process.end()
        read_reply(process.ready.result(), self.library, self.extra)
        return process

    def _kill_if_blocked(self, process: _Process) -> None:
        number, future = process.send(PING, ())
        if not _wait(future, self.ping_s):
            process.cancel(number)
            process.end()


def _wait(future: Future[Any], seconds: float) -> bool:
    """Whether the future is done within these seconds; not if the work of this thread is cancelled before."""
    limit = time.monotonic() + seconds
    while not is_cancelled():
        left = limit - time.monotonic()
        if wait([future], timeout=min(SLICE_S, max(0.0, left))).done:
            return True
        if left <= 0:
            return False
    return False


class _Process:
    """One process, and the calls that it has not answered yet."""

    def __init__(self, module: str, library: str) -> None:
        self.popen = start_process(__name__, module, library)
        self.ended = False
        self.ready: Future[Any] = Future()
        self._pending: dict[int, Future[Any]] = {0: self.ready}
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True, name="ramet-sessions")
        self._reader.start()

    def send(self, function: str, arguments: Iterable[Any]) -> tuple[int, Future[Any]]:
        """Begin a call: its number, and its reply to come."""
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            if self.ended:
                future.set_result(self._gone())
            else:
                self._pending[number] = future
                self._write({"id": number, "call": function, "arguments": list(arguments)})
        return number, future

    def cancel(self, number: int) -> None:
        with self._lock:
            self._pending.pop(number, None)
            self._write({"cancel": number})

    def end(self) -> None:
        """Kill the process; calls without a reply get one that says so."""
        self.popen.kill()
        self._reader.join()

    def _write(self, request: dict[str, Any]) -> None:
        with suppress(OSError, ValueError):  # the pipe of a process that ended is closed
            stdin = self.popen.stdin
            if stdin is not None:
                stdin.write(json.dumps(request) + "\n")
                stdin.flush()

    def _read(self) -> None:
        for line in self.popen.stdout or ():
            reply = cast(dict[str, Any], json.loads(line))
            with self._lock:
                future = self._pending.pop(reply["id"], None)
            if future is not None:
                future.set_result(reply)
        self.popen.wait()
        self._fail()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _fail(self) -> None:
        with self._lock:
            self.ended = True
            pending, self._pending = self._pending, {}
        for future in pending.values():
            future.set_result(self._gone())

    def _gone(self) -> dict[str, str]:
        return {"error": "the process of the environment ended"}


# In the other process.


def serve(module: str, library: str, requests: Iterable[str], reply: Callable[[dict[str, Any]], None]) -> None:
    """Answer calls, several at a time, until the input ends."""
    try:
        import_module(library)
        functions = import_module(module)
    except ImportError as error:
        reply({"id": 0, "missing": str(error)})
        return
    asyncio.run(_serve(functions, requests, reply))


async def _serve(functions: ModuleType, requests: Iterable[str], reply: Callable[[dict[str, Any]], None]) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    tasks: dict[int, asyncio.Task[None]] = {}

    def take(request: dict[str, Any]) -> None:
        if "cancel" in request:
            task = tasks.get(request["cancel"])
            if task is not None:
                task.cancel()
            return
        number = request["id"]
        tasks[number] = loop.create_task(_answer(functions, request, reply))
        tasks[number].add_done_callback(lambda _: tasks.pop(number, None))

    def read() -> None:
        for line in requests:
            loop.call_soon_threadsafe(take, json.loads(line))
        loop.call_soon_threadsafe(ended.set)

    reply({"id": 0, "value": "ready"})
    threading.Thread(target=read, daemon=True).start()
    await ended.wait()


async def _answer(functions: ModuleType, request: dict[str, Any], reply: Callable[[dict[str, Any]], None]) -> None:
    name, arguments = request["call"], request["arguments"]
    try:
        answer = {"value": None if name == PING else await getattr(functions, name)(*arguments)}
    except Exception as error:  # noqa: BLE001  environments are other people's code
        answer = describe(error)
    reply({"id": request["id"], **answer})


def main() -> None:
    reply = open_replies()
    limit_memory()
    serve(sys.argv[1], sys.argv[2], sys.stdin, reply)


if __name__ == "__main__":
    main()
