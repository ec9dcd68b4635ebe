"""Validate a taskset: right answers score 1, wrong ones less, and its oracle solves tasks in every dialect."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ramet import plugins
from ramet.agent.dialects import DIALECTS
from ramet.agent.dialects.terse_calls import fits_line
from ramet.errors import PluginError, RametError
from ramet.interfaces import Taskset
from ramet.plugins import first_error
from ramet.tasks.grader import Unfinished
from ramet.tasks.play import demonstrate
from ramet.tasks.registry import check_index, check_split
from ramet.tasks.returned import self_check_of, split_size, task_at, world_of
from ramet.types import Node, Stop, Task, Tree, is_right

SHOWN = 200  # characters of what a node read after a fault


@dataclass(slots=True, kw_only=True)
class Report:
    """What was checked, and every fault."""

    tasks: int = 0
    trees: int = 0
    delegating: int = 0  # trees with more than one node
    faults: list[str] = field(default_factory=list[str])


async def validate(taskset: Taskset, split: str, *, num_tasks: int = 5, seed: int = 0) -> Report:
    """Let the oracle play the first tasks of a split, alone and delegating, in every dialect, and check verdicts."""
    report, tasks = Report(), dict[str, Task]()
    try:
        size = split_size(taskset, check_split(taskset, split))
        if size == 0:
            report.faults.append(f"{taskset.name}:{split} has no tasks")
        for index in range(num_tasks if size is None else min(size, num_tasks)):
            with _reporting(report, f"{taskset.name}:{split}/{index}"):
                task = task_at(taskset, split, check_index(taskset, split, index))
                report.tasks += 1
                if tasks.setdefault(task.id, task) != task:  # trees of tasks with one id would be one group
                    report.faults.append(f"{taskset.name}:{split}/{index} has the id {task.id!r} of another task")
                await _validate_task(taskset, task, report, seed=seed)
    except PluginError as error:  # other tasks would show the same
        report.faults.append(str(error))
    return report


async def _validate_task(taskset: Taskset, task: Task, report: Report, *, seed: int) -> None:
    right, wrong = self_check_of(taskset, task)
    if not is_right(right) or is_right(wrong):
        report.faults.append(f"{task.id}: the right answer scores {right}, a wrong one {wrong}")
    for dialect in dialects_for(taskset, task):
        for delegate in (False, True):
            how = f"{task.id} ({dialect}, {'delegating' if delegate else 'alone'})"
            with _reporting(report, how):
                tree = await demonstrate(taskset, task, dialect=dialect, delegate=delegate, seed=seed)
                report.trees += 1
                report.delegating += len(tree.nodes) > 1
                report.faults += [f"{how}: {fault}" for fault in tree_faults(tree, delegate=delegate)]


@contextmanager
def _reporting(report: Report, what: str) -> Generator[None]:
    """What the taskset raises within the block is a fault of it, in one line."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  the user's code may raise anything
        cause = first_error(error)
        if isinstance(cause, RametError) and not isinstance(cause, Unfinished):
            raise cause from None
        report.faults.append(
            f"{what}: {cause if isinstance(cause, Unfinished) else plugins.mistake(error) or plugins.describe(cause)}"
        )


def dialects_for(taskset: Taskset, task: Task) -> list[str]:
    """The dialects a task can be played in: terse calls only functions whose arguments fit a line."""
    left_out = {"tools-returns", "native"}  # demonstrations in the first are those in tools; the second has no ids
    if not all(fits_line(function) for function in world_of(taskset, task).functions.values()):
        left_out.add("terse")
    return [name for name in DIALECTS if name not in left_out]


def tree_faults(tree: Tree, *, delegate: bool) -> list[str]:
    """What is wrong with a demonstration: what happened to its nodes, then what came of it."""
    faults = [fault for node in tree.nodes for fault in _node_faults(node)]
    faults += [
        f"node {node.index} scores {node.verdict and node.verdict.score}"
        for node in tree.nodes
        if node.verdict is None or not node.verdict.is_right
    ]
    if not delegate and len(tree.nodes) > 1:
        faults.append("it delegated when it was to work alone")
    return faults


def _node_faults(node: Node) -> list[str]:
    """How a node was stopped, what it was refused, and which of its turns failed, with what it read about it."""
    faults = [] if node.stop is Stop.ANSWERED else [f"node {node.index} stopped by {node.stop}"]
    replies = _replies(node)
    for number, turn in enumerate(node.turns):
        faults += [
            f"node {node.index} was refused a child, {refusal.goal!r}: {refusal.reason}" for refusal in turn.refusals
        ]
        if turn.faults and not turn.refusals:
            faults.append(f"node {node.index} had a fault in turn {number}: {_shortened(replies[number])}")
    return faults


def _replies(node: Node) -> list[str]:
    """What the node read after each of its turns; empty after the last one."""
    places = [place for place, piece in enumerate(node.pieces) if piece.sampled]
    return ["".join(piece.text for piece in node.pieces[place + 1 : place + 2]) for place in places]


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[:SHOWN]} …"
