"""The goals that a node may not give to a clone: its own, those of its ancestors, and impossible ones; their sizes.

A clone can do no more with the goal of an ancestor than the node itself: passing it on only spends budget and depth. A
clone that gets at most half of the node's texts works on a part, so it may have the same goal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ramet.agent.wording import as_text, cut
from ramet.types import Node, Task

if TYPE_CHECKING:
    from ramet.agent.node import NodeRun
    from ramet.agent.spawn import Plan

OWN = "this is your own goal: {}"
ABOVE = "this is the whole task that your goal is a part of: {}"
SPLIT, HALVE = "ask for smaller parts of your goal", "give each clone at most half of your texts"
DO_IT, ASK_TEXTS = "do it yourself", "ask what single texts say"
LONGEST_REASON = 200  # bytes; a taskset's reason may quote the goal


@runtime_checkable
class SizesGoals(Protocol):
    """A taskset that can tell how much work a goal is. Without it, the length of a goal and its texts is used."""

    def goal_size(self, task: Task, goal: str) -> float | None:
        """The size, 0 or more, in the unit of the taskset; None, or no finite number, if the goal does not say."""
        ...


def same_words(goal: str, other: str) -> bool:
    """Whether two goals are equal up to case, spaces and a final full stop.

    Example:
        same_words("Compute  1+2.", "compute 1+2")  # True
        same_words("Compute 1+2", "Compute 2+1")    # False
    """
    return _plain(goal) == _plain(other)


def _plain(goal: str) -> str:
    return " ".join(goal.casefold().split()).rstrip(" .")


def repeated_goal(parent: NodeRun, goal: str, *, texts: int) -> str | None:
    """Why a clone with this goal and `texts` characters of texts is refused; None if its goal is a new one."""
    if parent.tree_run.options.allow_same_goal or _is_part(parent, texts):
        return None
    owner = _owner(parent, goal)
    if owner is None:
        return None
    form = OWN if owner is parent.node else ABOVE
    return form.format(_what_to_do(parent))


def impossible_goal(parent: NodeRun, goal: str) -> str | None:
    """Why a clone with this goal is refused: no node can meet it; None if it may be started."""
    options = parent.tree_run.options
    reason = None if options.allow_impossible or options.impossible is None else options.impossible(goal)
    return None if reason is None else cut(reason, LONGEST_REASON)


def _owner(parent: NodeRun, goal: str) -> Node | None:
    """The nearest node, from the parent up to the root, whose goal it is."""
    same, nodes = parent.tree_run.options.same_goal, parent.tree_run.tree.nodes
    node = parent.node
    while True:
        if same_words(goal, node.goal) or (same is not None and same(goal, node.goal)):
            return node
        if node.parent is None:
            return None
        node = nodes[node.parent]


def goal_sizes(parent: NodeRun, plans: Sequence[Plan]) -> list[float]:
    """The sizes of the goals of one admission: the taskset's if it knows all of them, else characters."""
    measure = parent.tree_run.options.goal_size
    sizes = [] if measure is None else [measure(plan.goal) for plan in plans]
    known = [size for size in sizes if size is not None and 0 <= size < math.inf]
    if plans and len(known) == len(plans):
        return known
    return [float(len(plan.goal) + plan.texts) for plan in plans]


def _is_part(parent: NodeRun, texts: int) -> bool:
    """Whether a clone gets texts, and at most half of those that the node has, in characters."""
    return 0 < 2 * texts <= parent.text_size


def text_size(context: Mapping[str, str], text: object) -> int:
    """Characters of the texts of a node and of the value that it was passed."""
    own = sum(map(len, context.values()))
    if text is None:
        return own
    return own + (len(text) if isinstance(text, str) else len(as_text(text)))


def _what_to_do(parent: NodeRun) -> str:
    """What the node can do instead, as text for the model. A root with texts cannot read them itself."""
    if not parent.text_size:
        return f"{SPLIT}, or {DO_IT}"
    return f"{SPLIT}, {HALVE}, or {DO_IT if parent.reads_texts else ASK_TEXTS}"
