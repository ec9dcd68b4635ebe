"""Refuse trees that cannot be credited, naming the tree and the node: bad data never becomes a silent zero."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.credit.records import Group
from ramet.errors import TrainError
from ramet.types import Node, Tree, is_score


def check_groups(groups: Sequence[Group], *, min_trees: int) -> None:
    """Check that groups are large enough and of one task each, trees unique and complete, and scores from 0 to 1."""
    seen: set[str] = set()
    for group in groups:
        _check_group(group, min_trees=min_trees)
        for tree in group.trees:
            if tree.id in seen:
                raise TrainError(f"tree {tree.id} appears twice: give every tree its own id")
            seen.add(tree.id)
            _check_tree(tree)


def _check_group(group: Group, *, min_trees: int) -> None:
    if len(group.trees) < min_trees:
        raise TrainError(
            f"group {group.key} has {len(group.trees)} tree(s), where {min_trees} or more are needed: "
            "a tree is compared with the others of its task"
        )
    tasks = {(tree.task.id, tree.task.question) for tree in group.trees}
    if len(tasks) > 1:
        ids = ", ".join(sorted({task_id for task_id, _ in tasks}))
        shared = "" if ", " in ids else ", which share their id"
        raise TrainError(
            f"group {group.key} mixes {len(tasks)} tasks ({ids}){shared}; all trees of a group have one task"
        )


def _check_tree(tree: Tree) -> None:
    by_index = {node.index: node for node in tree.nodes}
    if sorted(node.index for node in tree.nodes) != [*range(len(tree.nodes))]:
        raise TrainError(f"tree {tree.id}: nodes are not numbered 0 to {len(tree.nodes) - 1}, each once")
    if [node.index for node in tree.nodes if node.parent is None] != [0]:
        raise TrainError(f"tree {tree.id}: exactly one node, node 0, must have no parent")
    for node in tree.nodes:
        _check_node(tree, node, None if node.parent is None else by_index.get(node.parent))
        for child in (child for turn in node.turns for child in turn.children):
            if child not in by_index or by_index[child].parent != node.index:
                raise TrainError(f"tree {tree.id}, node {node.index}: child {child} is missing; trees must be complete")


def _check_node(tree: Tree, node: Node, parent: Node | None) -> None:
    where = f"tree {tree.id}, node {node.index}"
    if node.parent is not None and (parent is None or parent.index >= node.index):
        raise TrainError(f"{where}: parent {node.parent} is not an earlier node")
    if node.depth != (0 if parent is None else parent.depth + 1):
        raise TrainError(f"{where}: depth {node.depth} is not one more than its parent's")
    if node.verdict is not None and not is_score(node.verdict.score):
        raise TrainError(f"{where}: score is {node.verdict.score}; a score is a number from 0 to 1")


def root_of(tree: Tree) -> Node:
    """The node without a parent, at any position in the list."""
    return next(node for node in tree.nodes if node.parent is None)


def required_score(tree: Tree, node: Node, *, needs: str) -> float:
    """The score of a node. `needs` ends the error when it has no verdict, such as "rao needs one at every node"."""
    if node.verdict is None:
        raise TrainError(f"tree {tree.id}, node {node.index}: no verdict, and {needs}")
    return float(node.verdict.score)
