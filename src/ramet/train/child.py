"""Processes of a run beside the training process: how they are started and ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType

PATIENCE_S = 10.0  # for a process to end by itself


def start_child(
    module: str, descriptor: int, *, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.Popen[bytes]:
    """Start `main` of a module in a new interpreter that has this end of a socket pair.

    `environment` are variables that it has unless they are set already.
    """
    # Ctrl-C reaches all processes, also while they start; the training process ends this one.
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
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
