"""The trees of one step: every task several times, all at once, each the same whenever it is played again.

What a tree is made of follows from the run's seed and its place (step, task, member) alone. So nothing random has to be
saved, and a run that was killed plays the very same trees again.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ramet.agent.options import TreeOptions
from ramet.agent.task_groups import task_group
from ramet.budget import Budget
from ramet.errors import TrainError
from ramet.interfaces import Taskset
from ramet.tasks.dice import seed_of
from ramet.tasks.play import play
from ramet.tasks.registry import check_split
from ramet.tasks.returned import budget_of, split_size, task_at
from ramet.train.bounds import draw_budget, parse_bounds
from ramet.train.settings import TrainConfig
from ramet.types import Task, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A tree to be run."""

    id: str  # of the tree
    task: Task
    budget: Budget
    seed: int


def step_attempts(taskset: Taskset, split: str, config: TrainConfig, *, step: int) -> list[Attempt]:
    """The trees of one step, in order: task by task, and the members of each group."""
    return task_attempts(taskset, split, config, step=step, tasks=enumerate(indices(taskset, split, config, step=step)))


def task_attempts(
    taskset: Taskset, split: str, config: TrainConfig, *, step: int, tasks: Iterable[tuple[int, int]]
) -> list[Attempt]:
    """The trees of these tasks, given by their place in the step and their index in the split."""
    attempts: list[Attempt] = []
    bounds = parse_bounds(config.budget)
    for place, index in tasks:
        task = task_at(taskset, split, index)
        for member in range(config.group_size):
            drawn = (step, place, member) if config.budget_per == "tree" else (step, place)
            attempts.append(
                Attempt(
                    id=f"{step:06d}-{place:03d}-{member:03d}",
                    task=task,
                    budget=draw_budget(budget_of(taskset, task), bounds, seed=seed_of(config.seed, "budget", *drawn)),
                    seed=seed_of(config.seed, "sample", step, place, member),
                )
            )
    return attempts


def indices(taskset: Taskset, split: str, config: TrainConfig, *, step: int) -> list[int]:
    """The tasks of a step: the next ones of an endless split, or of a finite one that is reshuffled every epoch."""
    places = range(step * config.tasks_per_step, (step + 1) * config.tasks_per_step)
    return _indices_at(taskset, split, config, places)


def fresh_tasks(taskset: Taskset, split: str, config: TrainConfig, *, step: int) -> Iterator[tuple[int, int]]:
    """Tasks that may replace those of a step, by place and index. None of them is in the step already.

    They follow those of the last step, so the first round of every step is the same with and without `refill`.
    """
    wanted = config.tasks_per_step * config.refill
    start = config.tasks_per_step * config.steps + step * wanted
    played = set(indices(taskset, split, config, step=step))
    place = config.tasks_per_step
    for index in _indices_at(taskset, split, config, range(start, start + wanted)):
        if index not in played:
            played.add(index)
            yield place, index
            place += 1


def _indices_at(taskset: Taskset, split: str, config: TrainConfig, places: range) -> list[int]:
    size = split_size(taskset, check_split(taskset, split))
    if size == 0:
        raise TrainError(f"{taskset.name}:{split} has no tasks")
    if size is None:
        return list(places)
    orders = {epoch: _shuffled(size, config.seed, epoch) for epoch in {place // size for place in places}}
    return [orders[place // size][place % size] for place in places]


def _shuffled(size: int, seed: int, epoch: int) -> list[int]:
    order = list(range(size))
    random.Random(seed_of(seed, "order", epoch)).shuffle(order)
    return order


def options_of(attempt: Attempt, options: TreeOptions) -> TreeOptions:
    """How the tree of an attempt is run; `options` has what all trees share."""
    return replace(options, budget=attempt.budget, seed=attempt.seed, name=attempt.id)


Play = Callable[[Taskset, Attempt, TreeOptions], Awaitable[Tree]]  # runs a tree and grades every node


async def play_here(taskset: Taskset, attempt: Attempt, options: TreeOptions) -> Tree:
    """Play a tree in this process."""
    return await play(taskset, attempt.task, options_of(attempt, options))


async def collect(
    taskset: Taskset, attempts: Sequence[Attempt], options: TreeOptions, *, play: Play = play_here
) -> list[Tree]:
    """Run all attempts in parallel and grade every node; trees come back in the order of the attempts."""
    trees: list[Tree | None] = [None] * len(attempts)

    async def run_one(place: int) -> None:
        attempt = attempts[place]
        tree = await play(taskset, attempt, options)
        tree.id = attempt.id
        trees[place] = tree

    async with task_group() as group:
        for place in range(len(attempts)):
            group.start_soon(run_one, place)
    return [tree for tree in trees if tree is not None]
