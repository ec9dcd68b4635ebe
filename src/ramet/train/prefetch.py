"""Collect the trees of the next steps while the current one is learnt from.

At most `ahead` steps are in flight beside the current one, so a tree began at most that many versions of the weights
ago. Starting later is the only limit on age: nothing is discarded for being too old, which would favour short trees.
Groups are never split: a step is learnt from when all of its trees are there. (`groups` has the other way: a step is
learnt from when enough groups are complete.)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import anyio
from anyio.abc import TaskGroup

from ramet.agent.task_groups import task_group
from ramet.errors import RametError
from ramet.types import Tree

Collect = Callable[[int], Awaitable[list[Tree]]]  # the trees of a step


@asynccontextmanager
async def background_tasks() -> AsyncGenerator[TaskGroup]:
    """Tasks that end with the block. A `RametError` is raised as itself, not inside an exception group."""
    async with task_group() as group:
        yield group
        group.cancel_scope.cancel()


@asynccontextmanager
async def prefetching(collect: Collect, steps: range, *, ahead: int) -> AsyncGenerator[Collect]:
    """A `collect` that starts the next steps too. Call it for one step after the other."""
    if not ahead:
        yield collect
        return
    started = 0
    done: dict[int, anyio.Event] = {}
    collected: dict[int, list[Tree]] = {}
    failed: list[RametError] = []

    async def collect_one(step: int) -> None:
        try:
            collected[step] = await collect(step)
        except RametError as error:  # raised where this step is awaited, not inside an exception group
            failed.append(error)
        done[step].set()

    async def collect_next(step: int) -> list[Tree]:
        nonlocal started
        for number in range(steps.start + started, min(step + ahead + 1, steps.stop)):
            done[number] = anyio.Event()
            group.start_soon(partial(collect_one, number))
            started += 1
        await done[step].wait()
        if step not in collected:
            raise failed[0]
        return collected.pop(step)

    async with background_tasks() as group:
        yield collect_next
