"""Trees made ahead by worker processes, so that the learner does not wait for them.

What a step is made of follows from its number alone, so it does not matter which process makes it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from types import TracebackType
from typing import Self

import anyio.to_thread

from ramet.types import Tree

MakeStep = Callable[[int], list[Tree]]  # the trees of a step; sent to worker processes, so it can be pickled
STEPS_PER_WORKER = 2  # steps that are made ahead, per worker


class Ahead:
    """Makes the trees of the next steps in `workers` processes, while it is open as a context.

    Call `collect` for one step after the other. The first step is made in this process: workers need longer to start.
    """

    def __init__(self, make: MakeStep, *, workers: int, steps: int) -> None:
        self._make = make
        self._workers = workers
        self._steps = steps
        self._pool: ProcessPoolExecutor | None = None
        self._made: dict[int, Future[list[Tree]]] = {}

    async def __aenter__(self) -> Self:
        # Neither a fork of a process with threads nor one of a process that uses a GPU is safe.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(self._workers, mp_context=context)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool, self._made = None, {}

    async def collect(self, step: int) -> list[Tree]:
        if self._pool is None:
            raise AssertionError("Ahead is used as a context")
        for number in range(step + 1, min(step + 1 + STEPS_PER_WORKER * self._workers, self._steps)):
            if number not in self._made:
                self._made[number] = self._pool.submit(self._make, number)
        future = self._made.pop(step, None)
        if future is None:
            return await anyio.to_thread.run_sync(self._make, step)
        return await anyio.to_thread.run_sync(future.result, abandon_on_cancel=True)
