"""Validate a taskset: right answers score 1, wrong ones less, and its oracle solves tasks in every dialect."""

from __future__ import annotations

from dataclasses import dataclass, field

from ramet.agent.dialects import DIALECTS
from ramet.interfaces import Taskset
from ramet.tasks.play import demonstrate
from ramet.tasks.registry import check_index, check_split
from ramet.types import Stop, Task, Tree, is_right


@dataclass(slots=True, kw_only=True)
class Report:
    """What was checked, and every fault."""

    tasks: int = 0
    trees: int = 0
    delegating: int = 0  # trees with more than one node
    faults: list[str] = field(default_factory=list[str])


async def validate(taskset: Taskset, split: str, *, num_tasks: int = 5, seed: int = 0) -> Report:
    """Let the oracle play the first tasks of a split, alone and delegating, in every dialect, and check verdicts."""
    report = Report()
    size = taskset.size(check_split(taskset, split))
    for index in range(num_tasks if size is None else min(size, num_tasks)):
        task = taskset.task(split, check_index(taskset, split, index))
        report.tasks += 1
        right, wrong = taskset.self_check(task)
        if not is_right(right) or is_right(wrong):
            report.faults.append(f"{task.id}: the right answer scores {right}, a wrong one {wrong}")
        for dialect in dialects_for(taskset, task):
            for delegate in (False, True):
                tree = await demonstrate(taskset, task, dialect=dialect, delegate=delegate, seed=seed)
                report.trees += 1
                report.delegating += len(tree.nodes) > 1
                how = f"{task.id} ({dialect}, {'delegating' if delegate else 'alone'})"
                report.faults += [f"{how}: {fault}" for fault in tree_faults(tree, delegate=delegate)]
    return report


def dialects_for(taskset: Taskset, task: Task) -> list[str]:
    """The dialects a task can be played in: terse has no functions."""
    left_out = {"tools-returns", "native"}  # demonstrations in the first are those in tools; the second has no ids
    if taskset.world(task).functions:
        left_out.add("terse")
    return [name for name in DIALECTS if name not in left_out]


def tree_faults(tree: Tree, *, delegate: bool) -> list[str]:
    """What is wrong with a demonstration."""
    faults = [
        f"node {node.index} scores {node.verdict and node.verdict.score}"
        for node in tree.nodes
        if node.verdict is None or not node.verdict.is_right
    ]
    faults += [f"node {node.index} stopped by {node.stop}" for node in tree.nodes if node.stop is not Stop.ANSWERED]
    faults += [f"node {node.index} was refused a child" for node in tree.nodes for turn in node.turns if turn.refusals]
    faults += [f"node {node.index} had a fault" for node in tree.nodes for turn in node.turns if turn.faults]
    if not delegate and len(tree.nodes) > 1:
        faults.append("it delegated when it was to work alone")
    return faults
