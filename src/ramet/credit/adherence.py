"""How closely a node followed its dialect, in numbers: SELFCEST charges for calls and repairs.

This is the only module of credit that reads text.
"""

from __future__ import annotations

import re

from ramet.types import Node, Stop, Tree

DELEGATE = re.compile(r"""<tool_call>(?:(?!</tool_call>).)*?["']delegate["']""", re.DOTALL)
CALL = "<tool_call>"
MARK = "answer:"


def num_calls(tree: Tree, node: Node) -> int:
    """The number of requests for clones: `delegate` calls in `tools`, turns with a request in other dialects."""
    if tree.dialect.startswith("tools"):
        return sum(len(DELEGATE.findall(piece.text)) for piece in node.pieces if piece.sampled)
    return sum(bool(turn.children or turn.refusals) for turn in node.turns)


def num_published_calls(tree: Tree, node: Node) -> int:
    """The number of calls as the authors of SELFCEST count them: every `<tool_call>` in the text that the node sampled.

    So calls of other functions count, malformed ones too. Dialects without this tag have no such count: there it is
    `num_calls`.
    """
    if tree.dialect.startswith("tools"):
        return sum(piece.text.count(CALL) for piece in node.pieces if piece.sampled)
    return num_calls(tree, node)


def num_repairs(node: Node) -> int:
    """The number of calls that were repaired before they could run."""
    return sum(turn.repairs for turn in node.turns)


def marks_answer(tree: Tree, node: Node) -> bool:
    """Whether the node marked its answer: `Answer:` anywhere in `tools`, ending with an answer in other dialects."""
    if tree.dialect.startswith("tools"):
        return any(MARK in piece.text.lower() for piece in node.pieces if piece.sampled)
    return node.stop is Stop.ANSWERED
