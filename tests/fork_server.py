"""Start `ramet` as a copy of a process that has imported everything: in hundredths of a second, not in seconds.

    subprocess.run(fork_server.command("run", "q"), ...)

What a test starts is a small process, fork_client. It hands its arguments, environment, folder, standard input and
outputs to the server, forwards signals to the copy, and ends with its exit code. Tests that kill use `installed`,
because a kill can not be forwarded, and so does one test of each verb, because a copy does not notice a missing import.

There is one server for all workers of a test run. It imports nothing before the first command, and ends, with all its
copies, when the test run does.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import time
import typing
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

PLACE = "RAMET_FORK_SERVER"  # the environment variable with the name of its socket
INSTALLED = str(Path(sys.executable).with_name("ramet"))
SOURCE = str(Path(__file__).parents[1] / "src")
CLIENT = str(Path(__file__).with_name("fork_client.py"))
HEAVY = ("ramet.models", "ramet.engine.local", "ramet.train.local")  # they import torch and transformers
NEVER = ("ramet.__main__", "ramet.bench", "ramet.tasks.peers", "ramet.train.tinker", "ramet.engine.tinker")
LIBRARIES = (
    "anyio._backends._asyncio",
    "duckdb",
    "httpx",
    "pyarrow.parquet",
    "pydantic_monty",
    "typer.rich_utils",
    "matplotlib.figure",
)
USE_TORCH = ("train", "warmstart", "fork")  # verbs whose first call makes the server import what is heavy
LOCAL = "engine.device=cpu"  # a setting with which any verb does


# In the test.


def command(*words: str | bytes) -> list[str | bytes]:
    """The command line that starts a copy; where there can be none, the installed command."""
    place = os.environ.get(PLACE)
    return installed(*words) if place is None else [sys.executable, "-I", "-S", CLIENT, place, *words]


def installed(*words: str | bytes) -> list[str | bytes]:
    """The command line that starts `ramet` as users do."""
    return [INSTALLED, *words]


def start() -> Callable[[], object]:
    """Start the server, once per test run; what is returned ends it."""
    if not hasattr(os, "pidfd_open"):  # not on Linux
        return lambda: None
    os.environ[PLACE] = f"ramet-fork-server-{os.getpid()}-{time.time_ns()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{os.environ[PLACE]}")  # the zero byte: a name that is no file
        listener.listen(64)
        process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[listener.fileno()],
            env=environment(RAMET_LISTENER=str(listener.fileno())),
        )
    return process.communicate  # it ends when its standard input does


def environment(**more: str) -> dict[str, str]:
    """No API keys, proxies or narrow terminal of the developer; the source that is tested; one thread for torch."""
    plain = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "COLUMNS": "160", "OMP_NUM_THREADS": "1"}
    return {**plain, "PYTHONPATH": SOURCE, **more}


# In the server.


def serve(listener: socket.socket) -> None:
    """Make a copy for every request until standard input ends; then end all copies."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no copy waits for its end to be noticed
    while True:
        readable, _, _ = select.select([listener, 0], [], [])
        if 0 in readable:
            os.killpg(0, signal.SIGKILL)
        connection, _ = listener.accept()
        files, request = _read(connection)
        if request:
            _preload(request["words"])
            if os.fork() == 0:
                listener.close()
                _carry_out(connection, files, request)
        connection.close()
        for file in files:
            os.close(file)


def _read(connection: socket.socket) -> tuple[list[int], dict[str, Any]]:
    """Files and words of a command; no words if its test was killed meanwhile."""
    size, files, _, _ = socket.recv_fds(connection, 4, 3)
    try:
        return files, marshal.loads(_receive(connection, int.from_bytes(size) or 1))
    except ConnectionError:
        return files, {}


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the test was killed")
        data += more
    return data


def _preload(words: list[str]) -> None:
    """Import what any command needs; torch, which takes seconds, when the first command comes that uses it."""
    import gc
    from importlib import import_module

    heavy = LOCAL in words or (words[:1] and words[0] in USE_TORCH)
    if "torch" in sys.modules or ("ramet.cli.main" in sys.modules and not heavy):
        return
    gc.disable()  # there is next to nothing to collect while modules are imported, and much to go through
    files = [file.relative_to(SOURCE).with_suffix("") for file in sorted(Path(SOURCE).rglob("*.py"))]
    for name in (*LIBRARIES, *(".".join(file.parts).removesuffix(".__init__") for file in files)):
        if not name.startswith(NEVER if heavy else NEVER + HEAVY):
            with suppress(ImportError):  # of an optional package
                import_module(name)
    _prepare_commands()
    for finalizer in tuple(weakref.finalize._registry):
        finalizer.atexit = False  # of what is imported here; torch has hundreds, and each copy would call them
    gc.collect()
    gc.enable()
    gc.freeze()  # a copy shares this memory until it is written to


def _prepare_commands() -> None:
    """Evaluate the annotations of all commands, which are text: typer would do so in every copy, for every command."""
    from ramet.cli.main import app

    groups = [app, *(group.typer_instance for group in app.registered_groups)]
    for command in (command.callback for group in groups if group for command in group.registered_commands):
        if command:
            command.__annotations__ = typing.get_type_hints(command, include_extras=True)


def _carry_out(connection: socket.socket, files: list[int], request: dict[str, Any]) -> None:
    """In the copy: become the command, and never return."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for place, file in enumerate(files):
        os.dup2(file, place)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv[:] = [INSTALLED, *request["words"]]
    connection.sendall(os.getpid().to_bytes(4))
    _receive(connection, 1)
    code = _exit_code()
    connection.sendall(code.to_bytes(4))
    os._exit(code)


def _exit_code() -> int:
    """Run the command, then what an interpreter does when it ends."""
    import atexit
    import threading

    from ramet.cli.main import main

    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    sys.path[0] = str(Path(INSTALLED).parent)  # as in the installed command
    serve(socket.socket(fileno=int(os.environ.pop("RAMET_LISTENER"))))
