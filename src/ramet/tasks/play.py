"""Play a task: run its tree, then grade every node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

from ramet.agent.fork import ForkRun
from ramet.agent.goals import SizesGoals
from ramet.agent.options import TreeOptions
from ramet.agent.recording import ForkPoint
from ramet.agent.tree import TreeRun
from ramet.budget import Budget
from ramet.engine.scripted import ScriptedEngine
from ramet.errors import ConfigError
from ramet.interfaces import ComparesGoals, ExplainsImpossible, KnowsImpossible, NodeJudge, Oracle, Taskset, World
from ramet.tasks.erring import COULD_NOT
from ramet.tasks.grader import HasGrader
from ramet.tasks.manner import HasManner
from ramet.tasks.needs import Asking, ample, needs_of
from ramet.tasks.oracle import script
from ramet.tasks.returned import budget_of, checked_verdict, oracle_of, world_of
from ramet.tokens.render import TokenRenderer
from ramet.types import Judging, Node, Stop, Task, Tree, Verdict

CANNOT_BE_MET = "this goal cannot be met by any clone: ask for something else, or do without it"
AS_DEMONSTRATED = "the answer of the oracle"  # reason of the verdict on a root that only a judge could grade
T = TypeVar("T")


async def play(taskset: Taskset, task: Task, options: TreeOptions) -> Tree:
    """Run one tree on a task and grade it.

    The budget, the world and what is known about goals are the taskset's unless the options have their own.
    """
    tree = await play_unjudged(taskset, task, options)
    await judge_rest(tree, options.judge)
    return tree


async def play_unjudged(taskset: Taskset, task: Task, options: TreeOptions) -> Tree:
    """Run one tree and give its nodes the taskset's own verdicts. `judge_rest` completes them."""
    options = replace(options_for_task(taskset, task, options), budget=options.budget or budget_of(taskset, task))
    run = TreeRun(task, options)
    tree = await run.run()
    await _grade_exactly(tree, taskset, run.world)
    return tree


async def play_fork(taskset: Taskset, tree: Tree, point: ForkPoint, options: TreeOptions) -> ForkRun:
    """Fork a tree of this taskset and grade the forked tree. World and comparison of goals are the taskset's."""
    run = ForkRun(tree, point, options_for_task(taskset, tree.task, options))
    await run.run()
    await grade(run.tree, taskset, run.tree_run.world, judge=options.judge)
    return run


def options_for_task(taskset: Taskset, task: Task, options: TreeOptions) -> TreeOptions:
    """The options with the world and what the taskset knows about goals, unless they have their own."""
    return replace(
        options,
        world=world_of(taskset, task) if options.world is None else options.world,
        same_goal=options.same_goal or goal_comparison(taskset, task),
        goal_size=options.goal_size or goal_measure(taskset, task),
        impossible=options.impossible or goal_problem(taskset, task),
    )


def goal_comparison(taskset: Taskset, task: Task) -> Callable[[str, str], bool] | None:
    """The taskset's own comparison of goals, for `TreeOptions.same_goal`; None if it has none."""
    return partial(taskset.same_goal, task) if isinstance(taskset, ComparesGoals) else None


def goal_measure(taskset: Taskset, task: Task) -> Callable[[str], float | None] | None:
    """The taskset's own sizes of goals, for `TreeOptions.goal_size`; None if it has none."""
    return partial(taskset.goal_size, task) if isinstance(taskset, SizesGoals) else None


def goal_problem(taskset: Taskset, task: Task) -> Callable[[str], str | None] | None:
    """Why goals of this task cannot be met, for `TreeOptions.impossible`; None if the taskset does not know."""
    if isinstance(taskset, ExplainsImpossible):
        return partial(taskset.why_impossible, task)
    if not isinstance(taskset, KnowsImpossible):
        return None
    return lambda goal: CANNOT_BE_MET if taskset.impossible(task, goal) else None


@runtime_checkable
class TreeJudge(Protocol):
    """A judge that grades several nodes of a tree at once."""

    async def verdicts(self, nodes: Sequence[Node], tree: Tree) -> list[Verdict | None]: ...


async def grade(tree: Tree, taskset: Taskset, world: World, *, judge: NodeJudge | None = None) -> None:
    """Give every node a verdict: the taskset's exact one, else the judge's, else a copy of the root's."""
    await _grade_exactly(tree, taskset, world)
    await judge_rest(tree, judge)


async def _grade_exactly(tree: Tree, taskset: Taskset, world: World) -> None:
    grader = taskset.grader if isinstance(taskset, HasGrader) else None
    for node in tree.nodes:
        ask = partial(taskset.verdict, tree.task, world, node)
        try:
            verdict = ask() if grader is None else await grader.run(ask)
        except Exception as error:
            error.add_note(f"grading {_place(node, tree)}")
            raise
        node.verdict = checked_verdict(verdict, taskset, where=_place(node, tree), by=taskset.name)


def _place(node: Node, tree: Tree) -> str:
    return f"node {node.index} of {tree.task.id}"


async def judge_rest(tree: Tree, judge: NodeJudge | None) -> None:
    """Grade the nodes that have no exact verdict: by the judge, else as the root."""
    ungraded = [node for node in tree.nodes if node.verdict is None]
    tree.judging = None if judge is None else Judging()
    if judge is not None and ungraded:
        verdicts = (
            await judge.verdicts(ungraded, tree)
            if isinstance(judge, TreeJudge)
            else [await judge.verdict(node, tree) for node in ungraded]
        )
        for node, verdict in zip(ungraded, verdicts, strict=True):
            by = f"the judge {type(judge).__name__}"
            node.verdict = checked_verdict(verdict, judge, where=_place(node, tree), by=by)
    for node in tree.nodes:
        if node.verdict is None:
            node.verdict = _from_root(tree, node, judged=judge is not None)


async def ask_grader(taskset: Taskset, work: Callable[[], T]) -> T:
    """The result of `work`, which asks for verdicts. Those that come from another process do not block the loop."""
    grader = taskset.grader if isinstance(taskset, HasGrader) else None
    return work() if grader is None else await grader.run(work)


def _from_root(tree: Tree, node: Node, *, judged: bool) -> Verdict:
    root = tree.root.verdict
    if node.parent is None or root is None:
        reason = "the judge gave no verdict on its root" if judged else "this taskset needs a judge, and none is given"
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
    allow_impossible: bool = True,
    instructions: str = "",
    delegate_instructions: str = "",
) -> Tree:
    """The oracle's tree, run by the real runtime within the taskset's budget or the given one.

    Where only a judge could grade the root, it is right if it answered, unless it reports that it could not.
    With the `renderer` of a model, pieces are in that model's tokens. If the oracle asks for tokens for its clones, the
    tree is first played with ample tokens to measure what each clone needs.
    """
    budget = budget or budget_of(taskset, task)
    oracle, solo = (oracle_of(taskset, task, delegate=choice, seed=seed) for choice in (delegate, False))

    async def run(oracle: Oracle, budget: Budget) -> Tree:
        engine = ScriptedEngine(script(oracle, dialect, solo=solo, levels=budget.depth), renderer=renderer)
        options = TreeOptions(
            engine=engine,
            budget=budget,
            dialect=dialect,
            show_budget=show_budget,
            allow_impossible=allow_impossible,
            instructions=instructions,
            delegate_instructions=delegate_instructions,
        )
        tree = await play_unjudged(taskset, task, options)
        if tree.root.verdict is None:  # only a judge could grade it
            tree.root.verdict = _as_demonstrated(tree.root)
        await judge_rest(tree, None)
        return tree

    if isinstance(taskset, HasManner) and taskset.manner.ask_tokens and delegate:
        needs = needs_of(await run(oracle, ample(budget)), budget)
        oracle = Asking(oracle, needs, budget=budget)
    return await run(oracle, budget)


def _as_demonstrated(root: Node) -> Verdict:
    answered = root.stop is Stop.ANSWERED and not (root.answer or COULD_NOT).startswith(COULD_NOT)
    return Verdict(score=float(answered), how="exact", reason=AS_DEMONSTRATED)
