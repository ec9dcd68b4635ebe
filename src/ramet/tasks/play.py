"""Play a task: run its tree, then grade every node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.budget import Budget
from ramet.engine.scripted import ScriptedEngine
from ramet.errors import ConfigError
from ramet.interfaces import ComparesGoals, NodeJudge, Taskset, World
from ramet.tasks.oracle import script
from ramet.tokens.render import TokenRenderer
from ramet.types import Node, Task, Tree, Verdict


async def play(taskset: Taskset, task: Task, options: TreeOptions) -> Tree:
    """Run one tree on a task and grade it.

    Budget, world and comparison of goals are the taskset's unless the options name their own.
    """
    world = taskset.world(task) if options.world is None else options.world
    options = replace(
        options,
        budget=options.budget or taskset.budget(task),
        world=world,
        same_goal=options.same_goal or goal_comparison(taskset, task),
    )
    tree = await TreeRun(task, options).run()
    await grade(tree, taskset, world, judge=options.judge)
    return tree


def goal_comparison(taskset: Taskset, task: Task) -> Callable[[str, str], bool] | None:
    """The taskset's own comparison of goals, for `TreeOptions.same_goal`; None if it has none."""
    return partial(taskset.same_goal, task) if isinstance(taskset, ComparesGoals) else None


async def grade(tree: Tree, taskset: Taskset, world: World, *, judge: NodeJudge | None = None) -> None:
    """Give every node a verdict: the taskset's exact one, else the judge's, else a copy of the root's."""
    for node in tree.nodes:
        node.verdict = taskset.verdict(tree.task, world, node)
        if node.verdict is None and judge is not None:
            node.verdict = await judge.verdict(node, tree)
        if node.verdict is None:
            node.verdict = _from_root(tree, node, judged=judge is not None)


def _from_root(tree: Tree, node: Node, *, judged: bool) -> Verdict:
    root = tree.root.verdict
    if node.parent is None or root is None:
        reason = "the judge's replies could not be read" if judged else "this taskset needs a judge, and none is given"
        raise ConfigError(f"no verdict on {tree.task.id}: {reason}")
    reason = "the judge gave no verdict" if judged else "this goal has no exact check"
    return Verdict(score=root.score, how="root", reason=reason)


async def demonstrate(
    taskset: Taskset,
    task: Task,
    *,
    dialect: str = "tools",
    delegate: bool = True,
    seed: int = 0,
    budget: Budget | None = None,
    renderer: TokenRenderer | None = None,
    show_budget: bool = False,
) -> Tree:
    """The oracle's tree, run by the real runtime within the taskset's budget or the given one.

    With the `renderer` of a model, pieces are in that model's tokens.
    """
    budget = budget or taskset.budget(task)
    oracle, solo = (taskset.oracle(task, delegate=choice, seed=seed) for choice in (delegate, False))
    engine = ScriptedEngine(script(oracle, dialect, solo=solo, levels=budget.depth), renderer=renderer)
    options = TreeOptions(engine=engine, budget=budget, dialect=dialect, show_budget=show_budget)
    return await play(taskset, task, options)
