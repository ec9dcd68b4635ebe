"""A separate process for graders that compute with model output: they may hang, crash, print or exhaust memory.

It starts at the first call. A call that exceeds its timeout kills it, and the next call starts another. So does a call
whose node or run is cancelled. Its hash seed is fixed, so libraries that iterate over sets do so in the same order
everywhere.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol, TextIO, TypeVar, runtime_checkable

import anyio.lowlevel

from ramet.errors import ConfigError, ModelFault

MEMORY = 8 * 2**30  # bytes of address space; numeric libraries reserve far more than they use
START_S = 120.0  # loading a large library from a cold disk
SLICE_S = 0.005  # the longest that waiting for a verdict blocks the event loop
T = TypeVar("T")


class Unfinished(ModelFault):
    """A call without a result: it timed out, failed, or the grader ended."""


class Grader:
    """Calls functions of a module in another process that imports `library`.

    Example:
        Grader("ramet.tasks.math", library="math_verify").call("equal", r"\\frac12", "0.5", seconds=5)  # True
    """

    def __init__(self, module: str, *, library: str, extra: str = "tasks") -> None:
        self.module = module
        self.library = library
        self.extra = extra  # of this package, which installs the library
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0  # a forked copy of this object does not own the process
        self._lock = threading.Lock()
        self._waiting: deque[object] = deque()  # whose `run` comes next
        self._caller: threading.Thread | None = None  # of the latest call
        atexit.register(self.stop)

    def call(self, function: str, *arguments: Any, seconds: float = 10.0) -> Any:
        """Call a function and return its result. It may raise `ConfigError`; any other failure is `Unfinished`."""
        with self._lock:
            self._caller = threading.current_thread()
            process = self._running()
            if is_cancelled():
                raise Unfinished("it was cancelled")
            return self._ask(process, [function, arguments], seconds)

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, which calls this grader, while the event loop goes on. Cancelling kills the call.

        The loop is never idle meanwhile: an engine in lockstep takes no step before the verdict, so that its batches
        do not depend on how long a verdict takes.
        """
        place = object()
        self._waiting.append(place)
        try:
            while self._waiting[0] is not place:
                await anyio.lowlevel.checkpoint()
            return await self._run_in_thread(work)
        finally:
            self._waiting.remove(place)

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        thread = _Thread(work)
        thread.start()
        try:
            while not wait([thread.future], timeout=SLICE_S).done:
                await anyio.lowlevel.checkpoint()
        except BaseException:
            thread.cancelled = True
            while not wait([thread.future], timeout=SLICE_S).done:
                self._kill(thread)  # again, if its process was only just starting
            raise
        return thread.future.result()

    def _kill(self, thread: threading.Thread) -> None:
        process = self._process
        if process is not None and self._caller is thread:
            process.kill()

    def stop(self) -> None:
        """Kill the process, if there is one."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        process.wait()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self.stop()
            self._owner = os.getpid()
            self._process = start_process(__name__, self.module, self.library)
            self._ask(self._process, None, START_S)
        return self._process

    def _ask(self, process: subprocess.Popen[str], request: object, seconds: float) -> Any:
        """Send one line and read one line; the process is killed after `seconds`."""
        stdin, stdout, late = process.stdin, process.stdout, threading.Event()
        if stdin is None or stdout is None:
            raise AssertionError("a grader has pipes")

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            line = ""
            with suppress(OSError):  # the pipe of a grader that ended is closed
                if request is not None:
                    stdin.write(json.dumps(request) + "\n")
                    stdin.flush()
                line = stdout.readline()
        finally:
            timer.cancel()
            timer.join()
        if late.is_set() or not line.endswith("\n"):
            self.stop()
            raise Unfinished(f"it took more than {seconds:g} s" if late.is_set() else "the grader ended")
        reply = json.loads(line)
        if "missing" in reply:
            self.stop()
        return read_reply(reply, self.library, self.extra)


def read_reply(reply: Mapping[str, Any], library: str, extra: str) -> Any:
    """The value of a reply; `ConfigError` for what the user has to mend, `Unfinished` for anything else."""
    if "missing" in reply:
        raise ConfigError(f"{library} cannot be imported ({reply['missing']}): pip install 'ramet[{extra}]'")
    if "refused" in reply:
        raise ConfigError(reply["refused"])
    if "error" in reply:
        raise Unfinished(reply["error"])
    return reply["value"]


@runtime_checkable
class HasGrader(Protocol):
    """A taskset whose verdicts may take seconds, in the process of a grader."""

    @property
    def grader(self) -> Grader | None: ...  # None: they take no time


def is_cancelled() -> bool:
    """Whether the work of this thread, started by `Grader.run`, is not wanted any more."""
    thread = threading.current_thread()
    return isinstance(thread, _Thread) and thread.cancelled


class _Thread(threading.Thread):
    """Work that calls a grader and can be cancelled."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True, name="ramet-grader")
        self.work = work
        self.future: Future[Any] = Future()
        self.cancelled = False

    def run(self) -> None:
        try:
            self.future.set_result(self.work())
        except BaseException as error:  # noqa: BLE001 (top of the thread: raised where the result is awaited)
            self.future.set_exception(error)


def start_process(program: str, module: str, library: str) -> subprocess.Popen[str]:
    """Start `program`, a module of this package, for the functions of a module that needs a library."""
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", program, module, library],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"},
    )


# In the grader process.


def serve(module: str, library: str, requests: TextIO, reply: Callable[[dict[str, Any]], None]) -> None:
    """Answer calls until the input ends."""
    try:
        import_module(library)
        functions = import_module(module)
    except ImportError as error:
        reply({"missing": str(error)})
        return
    reply({"value": "ready"})
    for line in requests:
        name, arguments = json.loads(line)
        reply(_answer(functions, name, arguments))


def _answer(functions: ModuleType, name: str, arguments: list[Any]) -> dict[str, Any]:
    try:
        return {"value": getattr(functions, name)(*arguments)}
    except Exception as error:  # noqa: BLE001  scorers are other people's code
        return describe(error)


def describe(error: Exception) -> dict[str, Any]:
    """The reply for a call that raised."""
    if isinstance(error, ConfigError):
        return {"refused": str(error)}
    named = str(error) if isinstance(error, ModelFault) else f"{type(error).__name__}: {error}"
    return {"error": named[:500]}


def limit_memory() -> None:
    """Bound the address space of this process."""
    # Not every system has this limit.
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def open_replies() -> Callable[[dict[str, Any]], None]:
    """A function that writes replies to standard output, which from now on is closed to everything else."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discard what libraries print

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    return reply


def main() -> None:
    reply = open_replies()
    limit_memory()
    serve(sys.argv[1], sys.argv[2], sys.stdin, reply)


if __name__ == "__main__":
    main()
