"""A credit rule, tried before a training starts: a mistake in one of your own is found now, not after hours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import anyio

from ramet.budget import Budget
from ramet.credit import RULES, Group, compute_credits, group_trees
from ramet.errors import ConfigError, PluginError, TrainError
from ramet.interfaces import Rule, Taskset
from ramet.tasks.needs import ample
from ramet.tasks.play import demonstrate
from ramet.tasks.returned import budget_of
from ramet.train.collect import Attempt, step_attempts
from ramet.train.settings import TrainConfig
from ramet.types import Node, Task, Tree, Verdict

TRIED = 8  # tasks, until one is demonstrated with clones: those of the first steps


def check_rule(rule: Rule, taskset: Taskset, split: str, config: TrainConfig) -> None:
    """Credit groups of demonstrations, if the rule is not a built-in one and there are any, until one has clones."""
    if config.rule in RULES:
        return
    for step in range(TRIED):
        attempts = step_attempts(taskset, split, _smallest_step(config), step=step)
        trees = anyio.run(_demonstrations, taskset, attempts)
        if not trees:
            return
        compute_credits(rule, group_trees(trees))
        if any(len(tree.nodes) > 1 for tree in trees):
            return


def _smallest_step(config: TrainConfig) -> TrainConfig:
    return replace(config, tasks_per_step=1, group_size=min(config.group_size, 2))


async def _demonstrations(taskset: Taskset, attempts: Sequence[Attempt]) -> list[Tree]:
    """A tree with clones and one without, in tokens of their own; none if the task has no oracle."""
    trees: list[Tree] = []
    for attempt, delegate in zip(attempts, (True, False), strict=False):
        budget = ample(budget_of(taskset, attempt.task))
        try:
            tree = await demonstrate(taskset, attempt.task, delegate=delegate, budget=budget)
        except PluginError:
            raise
        except (ConfigError, NotImplementedError):  # no oracle, or verdicts that only a judge can give
            return []
        tree.id = attempt.id
        trees.append(tree)
    return trees


def check_group_of_one(rule: Rule, name: str) -> None:
    """Most rules compare the trees of one task and need two or more: find out before collecting for an hour."""
    tree = Tree(id="group-of-one", task=Task(question="?"), budget=Budget())
    node = Node(index=0, parent=None, depth=0, path=(), goal="?", grant=1, verdict=Verdict(score=1.0, how="exact"))
    tree.nodes.append(node)
    try:
        compute_credits(rule, [Group(key=tree.id, trees=(tree,))])
    except TrainError:
        raise ConfigError(f"group_size=1: {name} compares the trees of one task; give group_size=2 or more") from None
