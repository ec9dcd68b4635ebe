"""What the nodes of a step did: failures that success alone shows too late.

Tables by kind always have every kind, so that a metric has the same fields in every step.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ramet.agent.goals import same_words
from ramet.interfaces import KnowsImpossible, Taskset
from ramet.tasks.play import goal_comparison
from ramet.train.grants import grant_metrics
from ramet.types import Node, Stop, Task, Tree

REFUSALS = (
    *("malformed", "same_goal", "impossible", "closing"),
    *("depth", "children", "nodes", "path", "tokens", "money", "window"),
)
VERDICTS = ("exact", "judge", "root")
Levels = Sequence[Sequence[Node]]  # nodes by depth


@runtime_checkable
class HasActions(Protocol):
    """A world some of whose functions only look something up. Without it, every function counts as an action."""

    @property
    def actions(self) -> Collection[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalCounts:
    """How many clones got what kind of goal, and how many nodes were right without any work. None: not known."""

    clones: int = 0
    passed_on: int = 0
    impossible: int | None = None
    right: int = 0  # nodes of tasks whose world has functions
    unearned: int = 0  # of these, those in whose subtree none was called


def behaviour_metrics(trees: Sequence[Tree], taskset: Taskset | None = None) -> dict[str, Any]:
    """Numbers of one step. Without a taskset, goals are compared by their words and nothing is known of worlds."""
    nodes = [node for tree in trees for node in tree.nodes]
    levels = [[node for node in nodes if node.depth == depth] for depth in range(max(n.depth for n in nodes) + 1)]
    turns = [turn for node in nodes for turn in node.turns]
    refused = Counter(refusal.kind for turn in turns for refusal in turn.refusals)
    counted = [count_goals(tree, taskset) for tree in trees]
    return {
        **_goal_shares(counted),
        "refused": refused.total() / len(trees),
        "refusals": {kind: refused[kind] / len(trees) for kind in REFUSALS},
        "repairs": sum(turn.repairs for turn in turns) / len(trees),
        "faults": sum(turn.faults for turn in turns) / len(trees),
        "stops": _stop_shares(nodes),
        "root_stops": _stop_shares([tree.root for tree in trees]),
        "success_by_verdict": {how: [success(_graded(level, how)) for level in levels] for how in VERDICTS},
        "nodes_by_verdict": {how: [len(_graded(level, how)) for level in levels] for how in VERDICTS},
        "nodes_by_depth": [len(level) for level in levels],
        "granted_by_depth": [average([node.grant for node in level]) for level in levels],
        "used_by_depth": [average([node.usage.tokens for node in level]) for level in levels],
        **grant_metrics(trees),
    }


def count_goals(tree: Tree, taskset: Taskset | None) -> GoalCounts:
    """The clones of one tree by what became of their goals, and its right nodes by whether anything was done."""
    clones = [node for node in tree.nodes if node.parent is not None]
    same = None if taskset is None else goal_comparison(taskset, tree.task)
    passed = 0
    for node in clones:
        above = tree.nodes[node.parent or 0].goal
        passed += same_words(node.goal, above) or (same is not None and same(node.goal, above))
    right, unearned = _unearned(tree, _actions(taskset, tree.task))
    return GoalCounts(
        clones=len(clones),
        passed_on=passed,
        impossible=sum(taskset.impossible(tree.task, node.goal) for node in clones)
        if isinstance(taskset, KnowsImpossible)
        else None,
        right=right,
        unearned=unearned,
    )


def _actions(taskset: Taskset | None, task: Task) -> Collection[str]:
    """The functions that change the world of a task; none if answers are all that nodes do there."""
    if taskset is None:
        return ()
    world = taskset.world(task)
    return world.actions if isinstance(world, HasActions) else tuple(world.functions)


def _unearned(tree: Tree, actions: Collection[str]) -> tuple[int, int]:
    """Right nodes, and those of them in whose subtree no sampled text calls one of the actions.

    Calls are recognised by their form: `"name"`, `name(`, or `$ name` at the start of a line. Whether a call succeeded
    is not recorded: a try counts.
    """
    if not actions:
        return 0, 0
    names = "|".join(map(re.escape, actions))
    call = re.compile(rf"[\"'](?:{names})[\"']|\b(?:{names})\s*\(|^\$ ?(?:{names})\b", re.MULTILINE)
    worked: set[int] = set()
    for node in reversed(tree.nodes):  # a child comes after its parent
        if node.index in worked or any(piece.sampled and call.search(piece.text) for piece in node.pieces):
            worked |= {node.index} | (set() if node.parent is None else {node.parent})
    right = [node.index for node in tree.nodes if node.verdict is not None and node.verdict.is_right]
    return len(right), len([index for index in right if index not in worked])


def _goal_shares(counted: Sequence[GoalCounts]) -> dict[str, float | None]:
    clones, right = sum(one.clones for one in counted), sum(one.right for one in counted)
    known = [one.impossible for one in counted if one.impossible is not None]
    return {
        "passed_on": sum(one.passed_on for one in counted) / clones if clones else None,
        "impossible": sum(known) / clones if clones and known else None,
        "unearned": sum(one.unearned for one in counted) / right if right else None,
    }


def _stop_shares(nodes: Sequence[Node]) -> dict[str, float]:
    stops = Counter(node.stop for node in nodes)
    return {str(stop): stops[stop] / len(nodes) for stop in Stop}


def _graded(nodes: Iterable[Node], how: str) -> list[Node]:
    return [node for node in nodes if node.verdict is not None and node.verdict.how == how]


def success(nodes: Iterable[Node]) -> float | None:
    """The share of graded nodes that are right; None if none is graded."""
    return average([node.verdict.is_right for node in nodes if node.verdict is not None])


def average(values: Sequence[float]) -> float | None:
    """The mean; None if there is nothing to average."""
    return math.fsum(values) / len(values) if values else None
