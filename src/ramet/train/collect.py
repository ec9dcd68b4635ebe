"""The trees of one step: every task several times, all at once, each the same whenever it is played again.

What a tree is made of follows from the run's seed and its place (step, task, member) alone. So nothing random has to be
saved, and a run that was killed plays the very same trees again.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import anyio

from ramet.budget import Budget
from ramet.errors import RametError, TrainError
from ramet.interfaces import Dialect, Engine, Taskset
from ramet.tasks.play import play
from ramet.tasks.registry import check_split
from ramet.train.settings import Bounds, TrainConfig, bounds_of
from ramet.types import Task, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A tree to be played."""

    id: str  # of the tree
    task: Task
    budget: Budget
    seed: int


def attempts_of(taskset: Taskset, split: str, config: TrainConfig, *, step: int) -> list[Attempt]:
    """The trees of one step in their order: task by task, and of each task member by member."""
    attempts: list[Attempt] = []
    bounds = bounds_of(config.budget)
    for place, index in enumerate(indices(taskset, split, config, step=step)):
        task = taskset.task(split, index)
        for member in range(config.group_size):
            drawn = (step, place, member) if config.budget_per == "tree" else (step, place)
            attempts.append(
                Attempt(
                    id=f"{step:06d}-{place:03d}-{member:03d}",
                    task=task,
                    budget=drawn_budget(taskset.budget(task), bounds, seed=seed_of(config.seed, "budget", *drawn)),
                    seed=seed_of(config.seed, "sample", step, place, member),
                )
            )
    return attempts


def indices(taskset: Taskset, split: str, config: TrainConfig, *, step: int) -> list[int]:
    """Which tasks are due: a split without end goes on and on, another is shuffled anew each time it is through."""
    size = taskset.size(check_split(taskset, split))
    if size == 0:
        raise TrainError(f"{taskset.name}:{split} has no tasks")
    places = range(step * config.tasks_per_step, (step + 1) * config.tasks_per_step)
    if size is None:
        return list(places)
    orders = {epoch: _shuffled(size, config.seed, epoch) for epoch in {place // size for place in places}}
    return [orders[place // size][place % size] for place in places]


def _shuffled(size: int, seed: int, epoch: int) -> list[int]:
    order = list(range(size))
    random.Random(seed_of(seed, "order", epoch)).shuffle(order)
    return order


def drawn_budget(budget: Budget, bounds: Bounds, *, seed: int) -> Budget:
    """The task's own budget, with the limits that were set laid over it; those with two bounds are drawn."""
    dice = random.Random(seed)
    drawn = {name: low if low == high else dice.randint(low, high) for name, (low, high) in sorted(bounds.items())}
    return replace(budget, **drawn)


def seed_of(*parts: object) -> int:
    """A number that names a place.

    Example:
        seed_of(0, "sample", 3, 1, 4)
    """
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=7).digest(), "big")


async def collect(
    taskset: Taskset,
    attempts: Sequence[Attempt],
    *,
    engine: Engine,
    dialect: Dialect | str = "tools",
    temperature: float = 1.0,
    show_budget: bool = False,
) -> list[Tree]:
    """Play all attempts together and grade every node; trees come back in the order of the attempts."""
    trees: list[Tree | None] = [None] * len(attempts)
    failed: list[RametError] = []

    async def one(place: int) -> None:
        attempt = attempts[place]
        try:
            tree = await play(
                taskset,
                attempt.task,
                engine=engine,
                budget=attempt.budget,
                dialect=dialect,
                temperature=temperature,
                seed=attempt.seed,
                show_budget=show_budget,
            )
        except RametError as error:  # said once, as itself, and not inside a group of others
            failed.append(error)
            group.cancel_scope.cancel()
            return
        tree.id = attempt.id
        trees[place] = tree

    async with anyio.create_task_group() as group:
        for place in range(len(attempts)):
            group.start_soon(one, place)
    if failed:
        raise failed[0]
    return [tree for tree in trees if tree is not None]
