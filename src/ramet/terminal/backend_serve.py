"""`ramet backend serve`: a SkyRL server until Ctrl-C."""

from __future__ import annotations

import signal
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ramet.errors import EngineError
from ramet.models.folders import cache_folder
from ramet.terminal.console import command, out
from ramet.train.tinker.skyrl import Server, ServerSettings, check_model, jax_settings, started, wait_until_ready
from ramet.train.tinker.skyrl_environment import find_python, has_accelerator

SEQUENCES, CPU_SEQUENCES = 32, 8  # in a batch of the server; on a CPU a batch of 32 takes about four times as long
STOPPED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """The user or the system asked this command to stop."""


def serve(
    model: str,
    *,
    port: int,
    folder: Path,
    python: Path | None,
    install: bool,
    rank: int,
    adapters: int,
    session_timeout_s: int,
    ready_s: float,
    words: Sequence[str],
) -> None:
    """Start a server and keep it until Ctrl-C or SIGTERM."""
    jax_settings(words, rank=rank, adapters=adapters)  # a wrong word is reported before anything is installed
    source = check_model(model)
    python = find_python(python, install=install, say=out.print)
    sequences = SEQUENCES if has_accelerator(python) else CPU_SEQUENCES
    settings = ServerSettings(
        model=source,
        folder=folder,
        python=python,
        port=port,
        session_timeout_s=session_timeout_s,
        backend=jax_settings(words, rank=rank, adapters=adapters, sequences=sequences),
        compile_cache=cache_folder() / "jax",
    )
    try:
        with _until_stopped(), started(settings) as server:
            out.print(f"starting SkyRL with {source} at {server.url} (log: {folder / 'server.log'})")
            out.print("loading the model and compiling: about 20 s if it was served before, else up to minutes")
            _announce(server, _wait(server, ready_s))
            code = server.process.wait()
            raise EngineError(f"the server ended by itself with exit code {code} (log: {server.log})")
    except Stopped:
        out.print("stopped")


@contextmanager
def _until_stopped() -> Generator[None]:
    """Raise `Stopped` inside the block at the first signal; later ones are ignored, so that stopping is complete."""

    def stopped(number: int, _frame: FrameType | None) -> None:
        for each in STOPPED:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(signal.Signals(number).name)

    before = {each: signal.signal(each, stopped) for each in STOPPED}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _wait(server: Server, ready_s: float) -> float:
    """Wait until the server answers, with the seconds counted on a terminal. Returns how many it were."""
    began = time.monotonic()
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as progress:
        progress.add_task("waiting for the first token", total=None)
        wait_until_ready(server, ready_s)
    return time.monotonic() - began


def _announce(server: Server, seconds: float) -> None:
    out.print(f"ready: {server.url} after {seconds:.0f} s")
    out.print(f"  {command()} backend check {server.url}")
    out.print(f"  {command()} train RECIPE model={server.base_model} backend.kind=tinker backend.base_url={server.url}")
    out.print(f"Ctrl-C stops it; checkpoints and database stay in {server.log.parent}")
