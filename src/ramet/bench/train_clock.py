"""Where the time of a training goes: what each thread computes, and how long each part takes.

Threads of one process share Python's interpreter lock. Their processor times add up to what is computed in Python,
while a thread that waits, for the lock or for the device, takes none.
"""

# pyright: standard

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from ramet.engine.local.cpu import Results
from ramet.engine.local.scheduler import Step
from ramet.store import RunDir
from ramet.train.backend import Backend
from ramet.types import Tree

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Seconds:
    """Sums since the beginning of a run. Times of threads and processes are processor time."""

    wall: float = 0.0
    loop: float = 0.0  # the event loop: playing trees, or the calls of players
    engine: float = 0.0  # the engine's thread, without waiting for the device
    device: float = 0.0  # the engine's thread waits for the device, or computes as it
    storing: float = 0.0
    credit: float = 0.0
    learning: float = 0.0  # forward and backward passes, optimiser
    process: float = 0.0  # all threads of this process
    players: float = 0.0  # other processes: those that play trees, and one that learns
    decoding: float = 0.0  # a GPU computes steps that only decode, other work on it in between included
    reading: float = 0.0  # the same for steps that read prompts too
    tokens: int = 0  # generated
    prompts: int = 0  # tokens of prompts that were computed
    steps: int = 0  # of the engine
    decoding_steps: int = 0
    reading_steps: int = 0

    def __sub__(self, other: Seconds) -> Seconds:
        return Seconds(**{each.name: getattr(self, each.name) - getattr(other, each.name) for each in fields(self)})


@dataclass(slots=True)
class Clock:
    """Collects seconds from the parts of one training."""

    sums: Seconds = field(default_factory=Seconds)
    waited: float = 0.0  # processor time of the engine's thread within `device`: some drivers wait in a loop
    threads: dict[int, float] = field(default_factory=dict[int, float])  # processor time of the engine's threads

    def now(self, counts: Any) -> Seconds:
        """All sums, read in the thread of the event loop; `counts` are the counters of the engine."""
        sums = self.sums
        return Seconds(
            wall=time.perf_counter(),
            loop=time.thread_time(),
            engine=sum(self.threads.values()) - self.waited,
            device=sums.device,
            storing=sums.storing,
            credit=sums.credit,
            learning=sums.learning,
            decoding=sums.decoding,
            reading=sums.reading,
            decoding_steps=sums.decoding_steps,
            reading_steps=sums.reading_steps,
            process=time.process_time(),
            players=children_seconds(),
            tokens=counts.generated_tokens,
            prompts=counts.prefill_tokens,
            steps=counts.steps,
        )

    @contextmanager
    def computing(self, part: str) -> Iterator[None]:
        began = time.thread_time()
        try:
            yield
        finally:
            setattr(self.sums, part, getattr(self.sums, part) + time.thread_time() - began)

    async def learning(self, work: Awaitable[T]) -> T:
        began = time.perf_counter()
        try:
            return await work
        finally:
            self.sums.learning += time.perf_counter() - began


class ClockedRunner:
    """The device of an engine, with the times of the engine's thread. A CPU computes a step when it is launched."""

    def __init__(self, inner: Any, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def launch(self, step: Step) -> Results:
        begun = self._mark()
        results = self._on_device(lambda: self._inner.launch(step), counted=self._inner.lag == 0)
        ended = self._mark()

        def collected() -> Any:
            found = self._on_device(results)
            if begun is not None:
                self._count(step, begun, ended)
            return found

        return collected

    def _mark(self) -> Any:
        """An event on the engine's stream; None on a CPU."""
        if not hasattr(self._inner, "stream"):
            return None
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(self._inner.stream)
        return event

    def _count(self, step: Step, begun: Any, ended: Any) -> None:
        ended.synchronize()
        sums, seconds = self._clock.sums, begun.elapsed_time(ended) / 1e3
        if step.chunks:
            sums.reading, sums.reading_steps = sums.reading + seconds, sums.reading_steps + 1
        else:
            sums.decoding, sums.decoding_steps = sums.decoding + seconds, sums.decoding_steps + 1

    def _on_device(self, work: Callable[[], T], *, counted: bool = True) -> T:
        """Count the time of `work` as that of the device, and what the engine's thread has computed so far."""
        clock, began, cpu = self._clock, time.perf_counter(), time.thread_time()
        result = work()
        after = time.thread_time()
        if counted:
            clock.sums.device += time.perf_counter() - began
            clock.waited += after - cpu
        clock.threads[threading.get_ident()] = after
        return result


class ClockedBackend:
    """A backend with another engine in front, and the times of its updates. It stays open when a run ends."""

    def __init__(self, inner: Backend, engine: Any, clock: Clock) -> None:
        self.supports_overlap = inner.supports_overlap
        self.engine = engine
        self._inner = inner
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def renderer(self) -> Any:
        return self._inner.renderer

    @property
    def version(self) -> int:
        return self._inner.version

    def close(self) -> None:
        pass

    async def forward_backward(self, rows: Any, **given: Any) -> Any:
        return await self._clock.learning(self._inner.forward_backward(rows, **given))

    async def logprobs(self, rows: Any, **given: Any) -> Any:
        return await self._clock.learning(self._inner.logprobs(rows, **given))

    async def optim_step(self, **given: Any) -> Any:
        return await self._clock.learning(self._inner.optim_step(**given))


class ClockedRun(RunDir):
    """A run directory that counts how long trees take to be written."""

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(path)
        self._clock = clock

    def write(self, trees: Sequence[Tree], *, name: str | None = None) -> Path:
        with self._clock.computing("storing"):
            return super().write(trees, name=name)


def clocked(work: Callable[..., T], clock: Clock, part: str) -> Callable[..., T]:
    def timed(*args: Any, **given: Any) -> T:
        with clock.computing(part):
            return work(*args, **given)

    return timed


def children_seconds() -> float:
    """Processor time of the processes that this one has started and that still run; 0 where it is not known."""
    total, tick = 0.0, os.sysconf("SC_CLK_TCK")
    for listed in Path("/proc/self/task").glob("*/children"):
        for child in listed.read_text().split():
            with suppress(OSError, IndexError):
                user, system = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:13]
                total += (int(user) + int(system)) / tick
    return total
