"""Answers that score 0 because their check failed: they are counted, and the first of each kind is logged."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from ramet.types import Node, Tree

LOG = logging.getLogger(__name__)
FAILED = ("cannot be checked: ", "cannot be scored: ")  # how the reason of such a verdict begins


def unchecked_nodes(trees: Sequence[Tree]) -> list[tuple[Tree, Node]]:
    """The nodes whose check raised, took too long or ended its process."""
    return [
        (tree, node)
        for tree in trees
        for node in tree.nodes
        if node.verdict is not None and node.verdict.reason.startswith(FAILED)
    ]


class Unchecked:
    """Counts the nodes of many trees by what failed, and logs one line for each kind of failure.

    Two failures are of one kind if they were raised in the same place: messages may contain the answer.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, trees: Sequence[Tree]) -> None:
        for tree, node in unchecked_nodes(trees):
            reason = "" if node.verdict is None else node.verdict.reason
            kind = reason.split(": ")[1]
            if kind not in self.counts:
                LOG.warning("%s %s; this scores 0, further ones of this kind are only counted", tree.task.id, reason)
            self.counts[kind] += 1

    def log_total(self) -> None:
        """One line with the number of failures, if there are any."""
        if self.counts:
            kinds = ", ".join(f"{number:,} by {kind}" for kind, number in self.counts.most_common())
            LOG.warning("%s answers could not be checked and score 0 (%s)", f"{self.counts.total():,}", kinds)
