"""Play a task: run the tree, then a verdict on every node."""

from __future__ import annotations

from ramet.agent.tree import TreeRun
from ramet.budget import Budget
from ramet.engine.scripted import ScriptedEngine
from ramet.errors import ConfigError
from ramet.interfaces import Dialect, Engine, Taskset, World
from ramet.tasks.judge import Judge
from ramet.tasks.oracle import script
from ramet.tokens.render import TokenRenderer
from ramet.types import Node, Task, Tree, Verdict


async def play(
    taskset: Taskset,
    task: Task,
    *,
    engine: Engine,
    budget: Budget | None = None,
    dialect: Dialect | str = "tools",
    judge: Judge | None = None,
    temperature: float = 1.0,
    seed: int | None = None,
    show_budget: bool = False,
) -> Tree:
    """Run one tree on a task and grade it."""
    world = taskset.world(task)
    run = TreeRun(
        task,
        engine=engine,
        budget=budget or taskset.budget(task),
        dialect=dialect,
        world=world,
        temperature=temperature,
        seed=seed,
        show_budget=show_budget,
    )
    tree = await run.run()
    await grade(tree, taskset, world, judge=judge)
    return tree


async def grade(tree: Tree, taskset: Taskset, world: World, *, judge: Judge | None = None) -> None:
    """A verdict for every node: exact where the taskset knows, else a judge's, else the root's, and each says which."""
    for node in tree.nodes:
        node.verdict = taskset.verdict(tree.task, world, node)
        if node.verdict is None and judge is not None:
            node.verdict = await judge.verdict(node, tree)
        if node.verdict is None:
            node.verdict = _from_root(tree, node, asked=judge is not None)


def _from_root(tree: Tree, node: Node, *, asked: bool) -> Verdict:
    root = tree.root.verdict
    if node.parent is None or root is None:
        how = "the judge's replies could not be read" if asked else "its answers are checked by a judge: name one"
        raise ConfigError(f"no verdict on {tree.task.id}: {how}")
    why = "the judge gave no verdict" if asked else "nobody can tell for this goal"
    return Verdict(score=root.score, how="root", reason=why)


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
    """The oracle's own tree, played by the real runtime within the budget the taskset declares, unless one is given.

    With the `renderer` of a model, in that model's tokens.
    """
    budget = budget or taskset.budget(task)
    oracle, alone = (taskset.oracle(task, delegate=wanted, seed=seed) for wanted in (delegate, False))
    engine = ScriptedEngine(script(oracle, dialect, alone=alone, levels=budget.depth), renderer=renderer)
    return await play(taskset, task, engine=engine, budget=budget, dialect=dialect, show_budget=show_budget)
