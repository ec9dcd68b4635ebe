"""A lane times one engine: here, or in a process of its own, where its memory and its habits disturb nobody else."""

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

from ramet.bench.engine_peers import ContinuousPeer, Done, GeneratePeer, Peer, RametPeer, Setting
from ramet.bench.engine_vllm import VllmPeer
from ramet.bench.workload import Workload
from ramet.errors import EngineError, RametError

PEERS: dict[str, Callable[[Setting], Peer]] = {
    "ramet": RametPeer,
    "generate": GeneratePeer,
    "continuous": ContinuousPeer,
    "vllm": VllmPeer,
}
COMPLAINT = re.compile(r"\w*(?:Error|Exception|Exit|Interrupt)\b.*")
LOG_CHARACTERS = 20_000  # of what an engine printed before it ended
ABOVE_ZERO = 1e-4  # what rounding may add to the logarithm of a probability
LEAVE_S = 20.0  # for an engine to put its things away before its process is ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What was done for one call. `logprobs`: how many tokens came with a sound log-prob; None if none were given."""

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
    """Its process is gone; `log` is the end of what it printed."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


class Lane(Protocol):
    @property
    def name(self) -> str: ...

    def time(self, workload: Workload, *, logprobs: bool) -> Timing: ...
    def close(self) -> None: ...


def check(workload: Workload, timing: Timing, *, logprobs: bool) -> None:
    """Refuse a pass that did not do exactly the recorded work: its time may not be compared."""
    if len(timing.counts) != len(workload.calls):
        raise EngineError(f"unequal work: {len(timing.counts)} calls were answered, {len(workload.calls)} recorded")
    wanted = zip(workload.prompt_tokens(), workload.calls, timing.counts, strict=True)
    for index, (prompt, call, count) in enumerate(wanted):
        if count.prompt_tokens != prompt:
            raise EngineError(f"unequal work: call {index} read {count.prompt_tokens} tokens, {prompt} recorded")
        if count.new_tokens != call.new_tokens:
            raise EngineError(f"unequal work: call {index} said {count.new_tokens} tokens, {call.new_tokens} recorded")
        if logprobs and count.logprobs != call.new_tokens:
            raise EngineError(
                f"unequal work: call {index} came with {count.logprobs or 0} log-probs of {call.new_tokens}"
            )


class Inside:
    """An engine in this process."""

    def __init__(self, name: str, peer: Peer) -> None:
        self.name, self.peer = name, peer

    def time(self, workload: Workload, *, logprobs: bool) -> Timing:
        self.peer.prepare(logprobs=logprobs)
        gc.collect()
        _reset_peak()
        began = time.perf_counter()
        done = self.peer.run(workload, logprobs=logprobs)
        seconds = time.perf_counter() - began
        facts = dict(self.peer.facts)
        peak = facts.pop("device_bytes", None) or _peak_bytes()
        return Timing(seconds=seconds, counts=tuple(map(_count, done)), peak_bytes=peak, facts=facts)

    def close(self) -> None:
        self.peer.close()


class Broken:
    """An engine that could not be started: it says why, whatever it is asked."""

    def __init__(self, name: str, why: EngineError) -> None:
        self.name, self.why = name, why

    def time(self, workload: Workload, *, logprobs: bool) -> Timing:
        raise self.why

    def close(self) -> None:
        """There is nothing to put away."""


class Outside:
    """An engine in a process of its own. What it prints goes to a file, which tells why it ended if it did."""

    def __init__(self, name: str, setting: Setting, *, limit_s: float) -> None:
        self.name, self.limit_s = name, limit_s
        self._gone: EngineError | None = None
        self._folder = tempfile.TemporaryDirectory(prefix=f"ramet-bench-{name}-")
        self._log = Path(self._folder.name) / "log"
        self._calls, theirs = multiprocessing.Pipe()
        start = multiprocessing.get_context("spawn").Process
        self._process = start(target=_serve, args=(theirs, name, setting, self._log), name=f"ramet-bench-{name}")
        self._process.start()
        theirs.close()
        try:
            self._ask(None)  # it has loaded its model
        except EngineError:
            self.close()
            raise

    def time(self, workload: Workload, *, logprobs: bool) -> Timing:
        return self._ask((workload, logprobs))

    def _ask(self, question: tuple[Workload, bool] | None) -> Any:
        if self._gone is not None:
            raise self._gone
        try:
            if question is not None:
                self._calls.send(question)
            if not self._calls.poll(self.limit_s):
                self.close(leave_s=0)
                self._gone = EngineError(f"{self.name} took more than {self.limit_s:g} s")
                raise self._gone
            answer = self._calls.recv()
        except (EOFError, OSError):
            self._gone = self._ended()
            raise self._gone from None
        if isinstance(answer, str):
            raise EngineError(answer)
        return answer

    def _ended(self) -> EngineEnded:
        self._process.join(LEAVE_S)
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        self.close()
        why = COMPLAINT.findall(text) or text.strip().splitlines() or ["without a word"]
        return EngineEnded(f"{self.name} ended: {why[-1][:300]}", text[-LOG_CHARACTERS:])

    def close(self, *, leave_s: float = LEAVE_S) -> None:
        self._calls.close()
        if self._process.pid is not None:
            self._process.join(leave_s)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
        self._folder.cleanup()


def _serve(calls: Connection, name: str, setting: Setting, log: Path) -> None:
    """The other side of `Outside`: load the engine, time what is asked for, until nobody asks any more."""
    with log.open("ab", buffering=0) as sink:
        os.dup2(sink.fileno(), sys.stdout.fileno())
        os.dup2(sink.fileno(), sys.stderr.fileno())
    if setting.threads is not None:
        # read when torch is loaded, here and in what is started here
        os.environ["OMP_NUM_THREADS"] = str(setting.threads)
    try:
        lane = Inside(name, PEERS[name](setting))
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
    except (EOFError, OSError):  # whoever asked has gone
        return None


def _count(done: Done) -> Count:
    sound = None
    if done.logprobs is not None:
        sound = sum(math.isfinite(value) and value <= ABOVE_ZERO for value in done.logprobs)
    return Count(prompt_tokens=done.prompt_tokens, new_tokens=len(done.token_ids), logprobs=sound)


def _reset_peak() -> None:
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def _peak_bytes() -> int | None:
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None
