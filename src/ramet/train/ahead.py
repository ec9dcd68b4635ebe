"""Trees made ahead by worker processes, so that the learner does not wait for them.

What a step is made of follows from its number alone, so it does not matter which process makes it.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Self

import anyio.to_thread

from ramet.errors import TrainError
from ramet.types import Tree

MakeStep = Callable[[int], list[Tree]]  # the trees of a step; sent to worker processes, so it can be pickled
STEPS_PER_WORKER = 2  # steps that are made ahead, per worker
TRIES = 3  # of a step, if a worker dies meanwhile: no other worker of its pool goes on then


class Ahead:
    """Makes the trees of the next steps in `workers` processes, while it is open as a context.

    Call `collect` for one step after the other. The first step is made in this process: workers need longer to start.
    When a worker is killed, new ones make what was not finished.
    """

    def __init__(self, make: MakeStep, *, workers: int, steps: int) -> None:
        self._make = make
        self._workers = workers
        self._steps = steps
        self._pool: ProcessPoolExecutor | None = None
        self._made: dict[int, Future[list[Tree]]] = {}
        self._lost: set[int] = set()  # steps that were under way when a worker died

    async def __aenter__(self) -> Self:
        self._pool = self._new_pool()
        return self

    def _new_pool(self) -> ProcessPoolExecutor:
        # Neither a fork of a process with threads nor one of a process that uses a GPU is safe.
        context = multiprocessing.get_context("spawn")
        ignore = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches workers too; this process ends them
        return ProcessPoolExecutor(self._workers, mp_context=context, initializer=signal.signal, initargs=ignore)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool, self._made = None, {}

    async def collect(self, step: int) -> list[Tree]:
        for _ in range(TRIES):
            try:
                self._submit(step)
                return await self._trees(step)
            except BrokenProcessPool:
                self._replace_pool()
        raise TrainError(
            f"workers: a process that makes demonstrations was killed {TRIES} times before step {step + 1} was made; "
            "the machine may have run out of memory"
        )

    def _submit(self, step: int) -> None:
        """Have workers make the next steps, and those that were lost."""
        if self._pool is None:
            raise AssertionError("Ahead is used as a context")
        ahead = range(step + 1, min(step + 1 + STEPS_PER_WORKER * self._workers, self._steps))
        for number in [*sorted(self._lost), *ahead]:
            if number not in self._made:
                self._made[number] = self._pool.submit(self._make, number)
                self._lost.discard(number)

    async def _trees(self, step: int) -> list[Tree]:
        if step not in self._made:
            return await anyio.to_thread.run_sync(self._make, step)
        trees = await anyio.to_thread.run_sync(self._made[step].result, abandon_on_cancel=True)
        del self._made[step]
        return trees

    def _replace_pool(self) -> None:
        """New workers instead of those of a broken pool. Steps that were finished are kept."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._lost |= {number for number, future in self._made.items() if _is_lost(future)}
        self._made = {number: future for number, future in self._made.items() if number not in self._lost}
        self._pool = self._new_pool()


def _is_lost(future: Future[list[Tree]]) -> bool:
    return not future.done() or future.cancelled() or isinstance(future.exception(), BrokenProcessPool)
