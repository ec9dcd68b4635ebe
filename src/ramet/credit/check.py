"""Trees that cannot be credited are refused by name: a mistake in the data is never a silent zero."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ramet.credit.records import Group
from ramet.errors import TrainError
from ramet.types import Node, Tree


def check(groups: Sequence[Group], *, least: int) -> None:
    """Groups of at least `least` trees, all of one task; every tree there once, whole, with finite scores."""
    seen: set[str] = set()
    for group in groups:
        _check_group(group, least=least)
        for tree in group.trees:
            if tree.id in seen:
                raise TrainError(f"tree {tree.id} is there twice: give every tree its own id")
            seen.add(tree.id)
            _check_tree(tree)


def _check_group(group: Group, *, least: int) -> None:
    if len(group.trees) < least:
        raise TrainError(
            f"group {group.key}: {len(group.trees)} tree(s), where {least} or more are needed; "
            "a tree is compared with the others of its task"
        )
    tasks = {(tree.task.id, tree.task.question) for tree in group.trees}
    if len(tasks) > 1:
        ids = ", ".join(sorted({one for one, _ in tasks}))
        raise TrainError(f"group {group.key}: it mixes {len(tasks)} tasks ({ids}); a group is trees of one task")


def _check_tree(tree: Tree) -> None:
    by_index = {node.index: node for node in tree.nodes}
    if sorted(node.index for node in tree.nodes) != [*range(len(tree.nodes))]:
        raise TrainError(f"tree {tree.id}: its nodes are not numbered 0 to {len(tree.nodes) - 1}, each once")
    if [node.index for node in tree.nodes if node.parent is None] != [0]:
        raise TrainError(f"tree {tree.id}: node 0, and no other, is without a parent")
    for node in tree.nodes:
        _check_node(tree, node, None if node.parent is None else by_index.get(node.parent))
        for child in (child for turn in node.turns for child in turn.children):
            if child not in by_index or by_index[child].parent != node.index:
                raise TrainError(f"tree {tree.id}, node {node.index}: its child {child} is missing; trees come whole")


def _check_node(tree: Tree, node: Node, parent: Node | None) -> None:
    where = f"tree {tree.id}, node {node.index}"
    if node.parent is not None and (parent is None or parent.index >= node.index):
        raise TrainError(f"{where}: its parent {node.parent} is not a node that was there before it")
    if node.depth != (0 if parent is None else parent.depth + 1):
        raise TrainError(f"{where}: it is at depth {node.depth}, which is not one below its parent")
    if node.verdict is not None and not math.isfinite(node.verdict.score):
        raise TrainError(f"{where}: its score is {node.verdict.score}; a score is a number from 0 to 1")


def root_of(tree: Tree) -> Node:
    """The node without a parent, wherever it stands in the list."""
    return next(node for node in tree.nodes if node.parent is None)


def score(tree: Tree, node: Node, *, needed: str) -> float:
    """How well the node did. `needed` says who wants to know, for the message when nobody can tell."""
    if node.verdict is None:
        raise TrainError(f"tree {tree.id}, node {node.index}: no verdict, and {needed}")
    return float(node.verdict.score)
