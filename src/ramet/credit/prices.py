"""Prices: what a rule takes off a node's reward for the clones and tokens it caused.

A node pays for the clones below it at any depth, and for the tokens of itself and of those clones. So delegating does
not make work free, and the price of a subtree does not depend on how the work was divided inside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ramet.types import Node, Tree

Charge = Literal["all", "success"]  # whether every node pays, or only what succeeded
PER = 1000  # tokens that a token price is for


def node_prices(tree: Tree, *, clone_cost: float, token_cost: float, prompt_cost: float) -> dict[int, float]:
    """The price of each node, by index. `token_cost` and `prompt_cost` are per 1,000 tokens.

    Example:
        A root of 40 generated and 300 prompt tokens, with one clone of 60 and 100, at a clone_cost of 0.1, a token_cost
        of 1 and a prompt_cost of 0.5: {0: 0.1 + 0.1 + 0.2, 1: 0.06 + 0.05}.
    """
    if not (clone_cost or token_cost or prompt_cost):
        return {node.index: 0.0 for node in tree.nodes}
    parents = {node.index: node.parent for node in tree.nodes}
    clones = num_descendants(parents)
    generated = subtree_sums({node.index: node.usage.tokens for node in tree.nodes}, parents)
    read = subtree_sums({node.index: num_prompt_tokens(node) for node in tree.nodes}, parents)
    return {
        index: clone_cost * clones[index] + token_cost * generated[index] / PER + prompt_cost * read[index] / PER
        for index in parents
    }


def amount_due(price: float, success: float, charge: Charge) -> float:
    """What is taken off a reward: the price, or that share of the success, so that a failure pays nothing.

    A success never costs more than it is worth: it earns success * (1 - price), and 0 from a price of 1 on.

    Example:
        amount_due(0.3, 0.5, "all")  # 0.3
        amount_due(0.3, 0.5, "success")  # 0.15
    """
    return price if charge == "all" else success * min(price, 1.0)


def num_prompt_tokens(node: Node) -> int:
    """The tokens a node was given: system prompt, goal, texts, results. Each counts once, however many calls read it.

    Cached tokens count like others: what is in a cache depends on other trees. Without token ids (a server that takes
    text), it is the largest window minus what the node generated.
    """
    given = sum(len(piece.token_ids) for piece in node.pieces if not piece.sampled)
    return given or max(0, node.usage.peak_window - node.usage.tokens)


def num_descendants(parents: Mapping[int, int | None]) -> dict[int, int]:
    """The number of clones below each node, at any depth.

    Example:
        num_descendants({0: None, 1: 0, 2: 1})  # {0: 2, 1: 1, 2: 0}
    """
    return {index: nodes - 1 for index, nodes in subtree_sums(dict.fromkeys(parents, 1), parents).items()}


def subtree_sums(values: Mapping[int, int], parents: Mapping[int, int | None]) -> dict[int, int]:
    """For each node, the sum of its value and those of all nodes below it. A parent's index is below its children's.

    Example:
        subtree_sums({0: 5, 1: 3, 2: 2}, {0: None, 1: 0, 2: 1})  # {0: 10, 1: 5, 2: 2}
    """
    sums = dict(values)
    for index in sorted(parents, reverse=True):
        parent = parents[index]
        if parent is not None:
            sums[parent] += sums[index]
    return sums
