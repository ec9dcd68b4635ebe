"""The `ramet` command in processes that are killed, or whose disk is full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import ramet
from tests.soak.rounds import Report

SOURCE = str(Path(ramet.__file__).parents[1])
LIMITED = (
    "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size})); "
    "runpy.run_module('ramet', run_name='__main__')"
)
LONGEST_S = 300.0  # a command that takes longer hangs
TRIES = 5  # of a command whose server, in this process, did not answer in time


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int  # negative: killed by this signal
    errors: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A `ramet` command. `file_bytes` limits the size of every file that it writes."""

    words: Sequence[str]
    folder: Path
    file_bytes: int | None = None

    def start(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        return subprocess.Popen(
            [sys.executable, *self._program(), *self.words],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self) -> Ended:
        return finish(self.start())

    def run_and_kill(self, after_s: float) -> Ended:
        """Kill it with -9 after some seconds, unless it has ended by then."""
        process = self.start()
        try:
            process.wait(after_s)
        except subprocess.TimeoutExpired:
            process.kill()
        return finish(process)

    def _program(self) -> list[str]:
        return ["-m", "ramet"] if self.file_bytes is None else ["-c", LIMITED.format(size=self.file_bytes)]


def finish(process: subprocess.Popen[str]) -> Ended:
    try:
        _, errors = process.communicate(timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Ended(code=process.returncode, errors=f"it did not end within {LONGEST_S:.0f} s")
    return Ended(code=process.returncode, errors=errors)


def check_complaint(report: Report, ended: Ended) -> None:
    """A command that fails says why in one line; an evaluation in which items failed (exit code 1) has one for each."""
    lines = [line for line in ended.errors.splitlines() if line.strip()]
    items = [line for line in lines if " has no result: " in line]
    expected = len(items) if ended.code == 1 and items else 1
    report.check(
        len(lines) == expected and all(line.startswith("ramet: ") for line in lines),
        f"failed with {ended.code} and {ended.errors[-300:]!r}",
    )


def kill_at_random(command: Command, report: Report, moments: Iterable[float]) -> None:
    """Start the command again and again, and kill it after these seconds, unless it ends before."""
    for after_s in moments:
        if command.run_and_kill(after_s).code == -signal.SIGKILL:
            report.done["kill -9"] += 1
        else:
            report.done["ended before the kill"] += 1


def run_until_done(command: Command, report: Report) -> None:
    """Nothing disturbs it any more: it ends well. A busy machine may keep the server waiting, so it is tried again."""
    ended = command.run()
    for _ in range(TRIES):
        if ended.code == 0 or not ended.errors.rstrip().endswith("timed out"):
            break
        report.done["server timed out"] += 1
        ended = command.run()
    report.check(ended.code == 0, f"did not resume: {ended.errors[-300:]!r}")


@contextmanager
def small_disk(folder: Path, kilobytes: int, report: Report) -> Generator[Callable[[Command], Command]]:
    """A disk of this size at `folder`, or a limit on file sizes where nothing can be mounted.

    It yields what makes of a command one that runs on this disk. After the block the disk is large.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mounted = _mount(folder, kilobytes)
    report.done["full disk" if mounted else "file size limit"] += 1
    yield (lambda command: command) if mounted else (lambda command: replace(command, file_bytes=kilobytes << 10))
    if mounted:
        subprocess.run(["mount", "-o", "remount,size=512m", str(folder)], check=True)


@contextmanager
def unmounted_at_end(folder: Path) -> Generator[None]:
    try:
        yield
    finally:
        if os.path.ismount(folder):
            subprocess.run(["umount", "--lazy", str(folder)], check=False)


def _mount(folder: Path, kilobytes: int) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
