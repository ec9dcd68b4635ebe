"""Groups that teach nothing are replaced by fresh ones, in a bounded number of rounds.

Which tasks come next follows from the step alone, so a resumed run plays the same trees. All trees are stored and
counted in the metrics of trees; only those that were replaced are left out of learning.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol

from ramet.agent.options import TreeOptions
from ramet.credit import Group, compute_credits, group_trees
from ramet.interfaces import Rule, Taskset
from ramet.train.collect import Attempt, Play, collect, fresh_tasks, play_here, step_attempts, task_attempts
from ramet.train.settings import TrainConfig
from ramet.types import Tree


class Source(Protocol):
    """Where the tasks of a step come from."""

    def attempts(self, step: int) -> list[Attempt]:
        """The trees of a step."""
        ...

    def fresh(self, step: int) -> Iterator[list[Attempt]]:
        """Trees of tasks that may replace those of a step, task by task."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSplit:
    """The tasks of one split, step after step."""

    taskset: Taskset
    split: str
    config: TrainConfig

    def attempts(self, step: int) -> list[Attempt]:
        return step_attempts(self.taskset, self.split, self.config, step=step)

    def fresh(self, step: int) -> Iterator[list[Attempt]]:
        for task in fresh_tasks(self.taskset, self.split, self.config, step=step):
            yield task_attempts(self.taskset, self.split, self.config, step=step, tasks=[task])


async def collect_with_signal(
    source: Source,
    taskset: Taskset,
    config: TrainConfig,
    options: TreeOptions,
    *,
    rule: Rule,
    step: int,
    play: Play = play_here,
) -> list[Tree]:
    """The trees of a step. With `refill`, as many fresh groups follow as have no signal, at most so many times."""
    trees = await collect(taskset, source.attempts(step), options, play=play)
    fresh = source.fresh(step)
    for _ in range(config.refill):
        summary = compute_credits(rule, group_trees(trees)).summary
        missing = config.tasks_per_step - (summary.groups - len(summary.flat))
        more = [attempt for task in islice(fresh, max(0, missing)) for attempt in task]
        if not more:
            break
        trees += await collect(taskset, more, options, play=play)
    return trees


def step_groups(
    source: Source,
    taskset: Taskset,
    config: TrainConfig,
    options: TreeOptions,
    *,
    rule: Rule,
    step: int,
    play: Play = play_here,
) -> list[Callable[[], Awaitable[list[Tree]]]]:
    """The groups of a step, each to be collected by itself. With `refill`, others follow a group without signal.

    Which ones may follow depends on its place alone: of 12 groups, the fresh groups 0, 12, 24 follow the first.
    """
    attempts, fresh = source.attempts(step), FreshGroups(source.fresh(step))

    async def collect_group(place: int) -> list[Tree]:
        size = config.group_size
        trees = await collect(taskset, attempts[place * size : (place + 1) * size], options, play=play)
        for number in range(config.refill):
            more = fresh.at(number * config.tasks_per_step + place)
            if not more or not compute_credits(rule, group_trees(trees)).summary.without_signal:
                break
            trees += await collect(taskset, more, options, play=play)
        return trees

    return [partial(collect_group, place) for place in range(config.tasks_per_step)]


class FreshGroups:
    """Fresh groups of a step by their number, made when they are asked for."""

    def __init__(self, groups: Iterator[list[Attempt]]) -> None:
        self._groups = groups
        self._made: list[list[Attempt]] = []

    def at(self, number: int) -> list[Attempt]:
        """The trees of a group; none if there are fewer groups."""
        self._made += islice(self._groups, max(0, number + 1 - len(self._made)))
        return self._made[number] if number < len(self._made) else []


def without_replaced(groups: Sequence[Group], flat: Sequence[str], *, num_groups: int) -> list[Group]:
    """The groups to learn from: of those without signal, the first ones go until `num_groups` are left.

    Example:
        Of groups a, b and c, where a and b are flat and two are wanted, b and c stay.
    """
    replaced = set(flat[: max(0, len(groups) - num_groups)])
    return [group for group in groups if group.key not in replaced]
