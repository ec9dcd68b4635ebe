"""Two trees side by side: which nodes they share, and the first turn with another text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ramet.agent.difference import first_difference, turn_texts
from ramet.errors import StoreError
from ramet.store.tree_files import read_file
from ramet.types import Tree
from ramet.view.index import Index
from ramet.view.payloads import tree_page


def whole_tree(index: Index, tree: str) -> Tree:
    """A tree with its texts and tokens."""
    found = next(iter(read_file(Path(index.file_of(tree)), [tree])), None)
    if found is None:
        raise StoreError(f"this run has no tree {tree!r}")
    return found


def compared(names: tuple[str, str], trees: tuple[Tree, Tree]) -> dict[str, Any]:
    """Both trees as pages, how each node relates to the node at its place in the other, and where they part."""
    texts = [turn_texts(tree) for tree in trees]
    place = first_difference(*trees)
    first = None
    if place is not None:
        first = {
            "path": place[0],
            "turn": place[1],
            "nodes": [_index_of(tree, place[0]) for tree in trees],
            "texts": [text.get(place) for text in texts],
        }
    return {
        "trees": [tree_page(name, tree) for name, tree in zip(names, trees, strict=True)],
        "marks": [_marks(trees[0], trees[1], texts), _marks(trees[1], trees[0], texts)],
        "first": first,
    }


def _index_of(tree: Tree, path: tuple[int, ...]) -> int | None:
    return next((node.index for node in tree.nodes if node.path == path), None)


def _marks(tree: Tree, other: Tree, texts: list[dict[Any, str]]) -> list[str]:
    """For each node: `same` turns as the node at its place in the other tree, `changed`, or there is none: `only`."""
    beside = {node.path: node for node in other.nodes}
    marks: list[str] = []
    for node in tree.nodes:
        if node.path not in beside:
            marks.append("only")
            continue
        turns = range(max(len(node.turns), len(beside[node.path].turns)))
        equal = all(texts[0].get((node.path, turn)) == texts[1].get((node.path, turn)) for turn in turns)
        marks.append("same" if equal and node.goal == beside[node.path].goal else "changed")
    return marks
