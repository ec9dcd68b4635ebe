"""A lane times one engine: in this process, or in its own, where it cannot disturb the others."""

# pyright: standard

from __future__ import annotations

import contextlib
import gc
import math
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from ramet.bench.engine_peers import CallResult, ContinuousPeer, GeneratePeer, Peer, RametPeer, Setting
from ramet.bench.engine_vllm import VllmPeer
from ramet.bench.workload import Workload
from ramet.errors import EngineError, RametError

PEERS: dict[str, Callable[[Setting], Peer]] = {
    "ramet": RametPeer,
    "generate": GeneratePeer,
    "continuous": ContinuousPeer,
    "vllm": VllmPeer,
}
ERROR_LINE = re.compile(r"\w*(?:Error|Exception|Exit|Interrupt)\b.*")
LOG_CHARACTERS = 20_000  # the last characters an engine printed before its process ended
ABOVE_ZERO = 1e-4  # allowance for rounding: a log-prob is at most 0
SHUTDOWN_S = 20.0  # an engine process that takes longer is killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The work done for one call. `logprobs`: the number of tokens with a valid log-prob; None if there were none."""

    prompt_tokens: int
    new_tokens: int
    logprobs: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One pass over a workload."""

    seconds: float
    counts: tuple[Count, ...]
    peak_bytes: int | None = None  # of GPU memory
    facts: dict[str, Any] = field(default_factory=dict[str, Any])


class EngineEnded(EngineError):
    """The process of an engine ended; `log` is the end of its output."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


class Lane(Protocol):
    @property
    def name(self) -> str: ...

    def time(self, workload: Workload, *, logprobs: bool) -> Timing: ...
    def close(self) -> None: ...


def check(workload: Workload, timing: Timing, *, logprobs: bool) -> None:
    """Raise unless a pass did exactly the recorded work: other times are not comparable."""
    if len(timing.counts) != len(workload.calls):
        raise EngineError(f"unequal work: {len(timing.counts)} calls were answered, {len(workload.calls)} recorded")
    wanted = zip(workload.prompt_tokens(), workload.calls, timing.counts, strict=True)
    for index, (prompt, call, count) in enumerate(wanted):
        if count.prompt_tokens != prompt:
            raise EngineError(f"unequal work: call {index} read {count.prompt_tokens} tokens, {prompt} recorded")
        if count.new_tokens != call.new_tokens:
            raise EngineError(
                f"unequal work: call {index} sampled {count.new_tokens} tokens, {call.new_tokens} recorded"
            )
        if logprobs and count.logprobs != call.new_tokens:
            raise EngineError(f"unequal work: call {index} has {count.logprobs or 0} of {call.new_tokens} log-probs")


class InProcess:
    """An engine in this process."""

    def __init__(self, name: str, peer: Peer) -> None:
        self.name, self.peer = name, peer

    def time(self, workload: Workload, *, logprobs: bool) -> Timing:
        self.peer.prepare(logprobs=logprobs)
        gc.collect()
        _reset_peak()
        started = time.perf_counter()
        results = self.peer.run(workload, logprobs=logprobs)
        seconds = time.perf_counter() - started
        facts = dict(self.peer.facts)
        peak = facts.pop("device_bytes", None) or _peak_bytes()
        return Timing(seconds=seconds, counts=tuple(map(_count, results)), peak_bytes=peak, facts=facts)

    def close(self) -> None:
        self.peer.close()


class FailedLane:
    """An engine that could not start. Every call raises the reason."""

    def __init__(self, name: str, reason: EngineError) -> None:
        self.name, self.reason = name, reason

    def time(self, workload: Workload, *, logprobs: bool) -> Timing:
        raise self.reason

    def close(self) -> None:
        """Nothing to close."""


class Subprocess:
    """An engine in its own process. Its output goes to a log file, which has the reason if it ends."""

    def __init__(self, name: str, setting: Setting, *, limit_s: float) -> None:
        self.name, self.limit_s = name, limit_s
        self._failure: EngineError | None = None
        self._folder = tempfile.TemporaryDirectory(prefix=f"ramet-bench-{name}-")
        self._log = Path(self._folder.name) / "log"
        self._calls, remote = multiprocessing.Pipe()
        start = multiprocessing.get_context("spawn").Process
        self._process = start(target=_serve, args=(remote, name, setting, self._log), name=f"ramet-bench-{name}")
        self._process.start()
        remote.close()
        try:
            self._ask(None)  # returns when the model is loaded
        except EngineError:
            self.close()
            raise

    def time(self, workload: Workload, *, logprobs: bool) -> Timing:
        return self._ask((workload, logprobs))

    def _ask(self, question: tuple[Workload, bool] | None) -> Any:
        if self._failure is not None:
            raise self._failure
        try:
            if question is not None:
                self._calls.send(question)
            if not self._calls.poll(self.limit_s):
                self.close(timeout_s=0)
                self._failure = EngineError(f"{self.name} took more than {self.limit_s:g} s")
                raise self._failure
            answer = self._calls.recv()
        except (EOFError, OSError):
            self._failure = self._ended()
            raise self._failure from None
        if isinstance(answer, str):
            raise EngineError(answer)
        return answer

    def _ended(self) -> EngineEnded:
        self._process.join(SHUTDOWN_S)
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        self.close()
        reasons = ERROR_LINE.findall(text) or text.strip().splitlines() or ["without output"]
        return EngineEnded(f"{self.name} ended: {reasons[-1][:300]}", text[-LOG_CHARACTERS:])

    def close(self, *, timeout_s: float = SHUTDOWN_S) -> None:
        self._calls.close()
        if self._process.pid is not None:
            self._process.join(timeout_s)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
        self._folder.cleanup()


def _serve(calls: Connection, name: str, setting: Setting, log: Path) -> None:
    """The main function of the engine process: load the engine, then time workloads until the pipe is closed."""
    with log.open("ab", buffering=0) as sink:
        os.dup2(sink.fileno(), sys.stdout.fileno())
        os.dup2(sink.fileno(), sys.stderr.fileno())
    if setting.threads is not None:
        # read when torch is imported, here and in child processes
        os.environ["OMP_NUM_THREADS"] = str(setting.threads)
    try:
        lane = InProcess(name, PEERS[name](setting))
    except RametError as error:
        return calls.send(str(error))
    calls.send(None)
    with contextlib.closing(lane):
        while (question := _next(calls)) is not None:
            workload, logprobs = question
            try:
                answer = lane.time(workload, logprobs=logprobs)
            except RametError as error:
                answer = str(error)
            calls.send(answer)


def _next(calls: Connection) -> tuple[Workload, bool] | None:
    try:
        return calls.recv()
    except (EOFError, OSError):  # the benchmark has closed the pipe
        return None


def _count(result: CallResult) -> Count:
    valid = None
    if result.logprobs is not None:
        valid = sum(math.isfinite(value) and value <= ABOVE_ZERO for value in result.logprobs)
    return Count(prompt_tokens=result.prompt_tokens, new_tokens=len(result.token_ids), logprobs=valid)


def _reset_peak() -> None:
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def _peak_bytes() -> int | None:
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None
