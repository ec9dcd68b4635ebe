"""How well a node kept to the way it was asked to write, in numbers: SELFCEST's rule charges for it.

The one place in credit that looks at words.
"""

from __future__ import annotations

import re

from ramet.types import Node, Stop, Tree

DELEGATE = re.compile(r"""<tool_call>(?:(?!</tool_call>).)*?["']delegate["']""", re.DOTALL)
MARK = "answer:"


def num_calls(tree: Tree, node: Node) -> int:
    """How often it called for clones: its `delegate` calls, or in another dialect the turns that asked for some."""
    if tree.dialect == "tools":
        return sum(len(DELEGATE.findall(piece.text)) for piece in node.pieces if piece.sampled)
    return sum(bool(turn.children or turn.refusals) for turn in node.turns)


def num_repairs(node: Node) -> int:
    """How many of its calls had to be mended before they could run."""
    return sum(turn.repairs for turn in node.turns)


def marks_answer(tree: Tree, node: Node) -> bool:
    """Did it say where its answer is? Tools: with `Answer:`, anywhere. Elsewhere: by ending with one by itself."""
    if tree.dialect == "tools":
        return any(MARK in piece.text.lower() for piece in node.pieces if piece.sampled)
    return node.stop is Stop.ANSWERED
