"""A credit rule, tried before a training starts: a mistake in one of your own is found now, not after hours."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import anyio

from ramet.budget import Budget
from ramet.credit import RULES, Group, compute_credits, group_trees
from ramet.errors import ConfigError, PluginError, TrainError
from ramet.interfaces import Rule, Taskset
from ramet.tasks.needs import ample
from ramet.tasks.play import demonstrate
from ramet.tasks.returned import budget_of
from ramet.train.collect import step_attempts
from ramet.train.settings import TrainConfig
from ramet.types import Node, Task, Tree, Verdict

TRIED = 8  # tasks, until one is demonstrated with clones: those of the first steps


def check_rule(rule: Rule, taskset: Taskset, split: str, config: TrainConfig) -> None:
    """Credit groups of demonstrations, if the rule is not a built-in one and there are any, until one has clones."""
    if config.rule in RULES:
        return
    for step in range(TRIED):
        group = step_attempts(taskset, split, replace(config, tasks_per_step=1), step=step)
        shown = anyio.run(_demonstrations, taskset, group[0].task)
        if not shown:
            return
        # A rule may need as many trees as a group will have.
        trees = [replace(tree, id=attempt.id) for attempt, tree in zip(group, cycle(shown), strict=False)]
        compute_credits(rule, group_trees(trees))
        if any(len(tree.nodes) > 1 for tree in trees):
            return


async def _demonstrations(taskset: Taskset, task: Task) -> list[Tree]:
    """A tree with clones and one without, in tokens of their own; none if the task has no oracle."""
    try:
        budget = ample(budget_of(taskset, task))
        return [await demonstrate(taskset, task, delegate=delegate, budget=budget) for delegate in (True, False)]
    except PluginError:
        raise
    except (ConfigError, NotImplementedError):  # no oracle
        return []


def check_group_of_one(rule: Rule, name: str) -> None:
    """Most rules compare the trees of one task and need two or more: find out before collecting for an hour."""
    tree = Tree(id="group-of-one", task=Task(question="?"), budget=Budget())
    node = Node(index=0, parent=None, depth=0, path=(), goal="?", grant=1, verdict=Verdict(score=1.0, how="exact"))
    tree.nodes.append(node)
    try:
        compute_credits(rule, [Group(key=tree.id, trees=(tree,))])
    except TrainError:
        raise ConfigError(f"group_size=1: {name} compares the trees of one task; give group_size=2 or more") from None
