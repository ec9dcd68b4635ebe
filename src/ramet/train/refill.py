"""Groups that teach nothing are replaced by fresh ones, in a bounded number of rounds.

Which tasks come next follows from the step alone, so a resumed run plays the same trees. All trees are stored and
counted in the metrics of trees; only those that were replaced are left out of learning.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from ramet.agent.options import TreeOptions
from ramet.credit import Group, group_trees
from ramet.interfaces import Rule, Taskset
from ramet.train.collect import collect, fresh_tasks, step_attempts, task_attempts
from ramet.train.settings import TrainConfig
from ramet.types import Tree


async def collect_with_signal(
    taskset: Taskset, split: str, config: TrainConfig, options: TreeOptions, *, rule: Rule, step: int
) -> list[Tree]:
    """The trees of a step. With `refill`, as many fresh groups follow as have no signal, at most so many times."""
    trees = await collect(taskset, step_attempts(taskset, split, config, step=step), options)
    if not config.refill:
        return trees
    fresh = fresh_tasks(taskset, split, config, step=step)
    for _ in range(config.refill):
        summary = rule.credit(group_trees(trees)).summary
        missing = config.tasks_per_step - (summary.groups - len(summary.flat))
        tasks = list(islice(fresh, max(0, missing)))
        if not tasks:
            break
        trees += await collect(taskset, task_attempts(taskset, split, config, step=step, tasks=tasks), options)
    return trees


def without_replaced(groups: Sequence[Group], flat: Sequence[str], *, num_groups: int) -> list[Group]:
    """The groups to learn from: of those without signal, the first ones go until `num_groups` are left.

    Example:
        Of groups a, b and c, where a and b are flat and two are wanted, b and c stay.
    """
    replaced = set(flat[: max(0, len(groups) - num_groups)])
    return [group for group in groups if group.key not in replaced]
