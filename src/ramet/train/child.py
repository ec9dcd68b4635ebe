"""Processes of a run beside the training process: how they are started and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType

IGNORED = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
PATIENCE_S = 10.0  # for a process to end by itself


def start_child(
    module: str, descriptor: int, *, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.Popen[bytes]:
    """Start `main` of a module in a new interpreter that has this end of a socket pair.

    `environment` are variables that it has unless they are set already.
    """
    # Ctrl-C, a closed terminal and the SIGTERM of a scheduler reach all processes, also while they start. The training
    # process ends this one, when it has saved what is done. Only SIGINT is ignored in processes that this one starts.
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    ignore += f"[signal.signal(getattr(signal, name), lambda *_: None) for name in {IGNORED}]"
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)  # "": the current folder
    return subprocess.Popen(
        [sys.executable, "-P", "-c", f"{ignore}; from {module} import main; main()", str(descriptor)],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        stdout=2,  # standard output of the run may be JSON
        env={**environment, **os.environ, "PYTHONPATH": paths},
    )


def end_child(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process whose connection is closed; kill it if it does not end. Returns its exit code."""
    try:
        return process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
