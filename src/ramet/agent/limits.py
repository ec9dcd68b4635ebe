"""How much fits: what a budget leaves for a node's next message and its next completion.

A node that is not closing always leaves itself enough for one more call, its answer: tokens, window and money.
"""

from __future__ import annotations

from ramet.budget import Budget, Ledger
from ramet.types import Node, Stop


class Limits:
    """The arithmetic of one node. Sizes are tokens of its window."""

    def __init__(self, budget: Budget, ledger: Ledger, node: Node, *, closing_size: int) -> None:
        self.budget = budget
        self.ledger = ledger
        self.node = node
        self.tail = closing_size  # the call for a final answer
        self.reserve = min(budget.answer_tokens, max(1, node.grant // 2))

    def cap(self, size: int, *, closing: bool) -> tuple[int, Stop]:
        """The most tokens the next completion may have, after a prompt of `size`, and the limit that says so."""
        budget = self.budget
        kept = tail = 0
        if not closing:
            kept, tail = self.reserve, self.tail
        cap, why = self.ledger.tokens - kept, Stop.BUDGET
        if budget.window - size - tail - kept < cap:
            cap, why = budget.window - size - tail - kept, Stop.WINDOW
        if budget.node_tokens is not None:
            cap = min(cap, budget.node_tokens - self.node.usage.tokens - kept)
        if self.ledger.money is not None:
            cap = min(cap, self._affordable(size, closing=closing))
        return cap, why

    def _affordable(self, size: int, *, closing: bool) -> int:
        """Tokens that money buys: for this call, and after it one more, whose prompt holds this one's output."""
        worst = self.budget.prices.worst
        left = (self.ledger.money or 0) - worst(prompt=size, generated=0)
        if not closing:
            left -= worst(prompt=size + self.tail, generated=self.reserve)
        each = worst(prompt=0 if closing else 1, generated=1)
        if each:
            return left // each
        return self.ledger.tokens if left >= 0 else 0

    def room(self, size: int, *, closing: bool) -> int:
        """Tokens the next message may have, so that the turn after it still has its reserve."""
        budget, worst = self.budget, self.budget.prices.worst
        kept = self.reserve if closing else 2 * self.reserve + self.tail
        room = budget.window - size - kept
        each = worst(prompt=1, generated=0)
        if self.ledger.money is not None and each:
            left = self.ledger.money - worst(prompt=size, generated=self.reserve)
            room = min(room, left // each)
        return room

    def smallest_window(self, size: int) -> int:
        """Context needed to think one turn and then answer."""
        return size + self.tail + 2 * self.reserve

    def smallest_money(self, size: int) -> int:
        """What that costs at most."""
        worst = self.budget.prices.worst
        return worst(prompt=size, generated=self.reserve) + worst(
            prompt=size + self.reserve + self.tail, generated=self.reserve
        )
