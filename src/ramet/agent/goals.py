"""The goals that a node may not give to a clone: its own, and those of its ancestors.

A clone can do no more with such a goal than the node itself: passing it on only spends budget and depth. A clone that
gets at most half of the node's texts works on a part, so it may have the same goal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ramet.agent.wording import as_text
from ramet.types import Node

if TYPE_CHECKING:
    from ramet.agent.node import NodeRun

OWN = "this is your own goal: {}"
ABOVE = "this is the whole task that your goal is a part of: {}"
SPLIT, HALVE = "ask for smaller parts of your goal", "give each clone at most half of your texts"
DO_IT, ASK_TEXTS = "do it yourself", "ask what single texts say"


def same_words(goal: str, other: str) -> bool:
    """Whether two goals are equal up to case, spaces and a final full stop.

    Example:
        same_words("Compute  1+2.", "compute 1+2")  # True
        same_words("Compute 1+2", "Compute 2+1")    # False
    """
    return _plain(goal) == _plain(other)


def _plain(goal: str) -> str:
    return " ".join(goal.casefold().split()).rstrip(" .")


def repeated_goal(parent: NodeRun, goal: str, *, context: Mapping[str, str], text: object) -> str | None:
    """Why a clone with this goal and these texts is refused; None if its goal is a new one."""
    if parent.tree_run.options.allow_same_goal or _is_part(parent, context, text):
        return None
    owner = _owner(parent, goal)
    if owner is None:
        return None
    form = OWN if owner is parent.node else ABOVE
    return form.format(_what_to_do(parent))


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


def _is_part(parent: NodeRun, context: Mapping[str, str], text: object) -> bool:
    """Whether a clone gets texts, and at most half of those that the node has, in characters."""
    return 0 < 2 * _size(context, text) <= _size(parent.context, parent.text)


def _size(context: Mapping[str, str], text: object) -> int:
    return sum(map(len, context.values())) + (0 if text is None else len(as_text(text)))


def _what_to_do(parent: NodeRun) -> str:
    """What the node can do instead, as text for the model. A root with texts cannot read them itself."""
    if not _size(parent.context, parent.text):
        return f"{SPLIT}, or {DO_IT}"
    return f"{SPLIT}, {HALVE}, or {DO_IT if parent.reads_texts else ASK_TEXTS}"
