"""How many tokens a node's next message and next completion may have.

An ordinary turn always leaves enough tokens, window and money for one more call: the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ramet.budget import Budget, Ledger
from ramet.interfaces import Result
from ramet.types import Node, Stop


class Limits:
    """The limits of one node. Sizes are tokens in its window."""

    def __init__(
        self,
        budget: Budget,
        ledger: Ledger,
        node: Node,
        *,
        window: int,
        closing_size: int,
        path_left: Callable[[], int | None],
    ) -> None:
        self.window = window
        self.ledger = ledger
        self.node = node
        self.closing_size = closing_size  # of the message that asks for the final answer
        self.path_left = path_left  # tokens by which the chain of work up to the node may still grow; None: no limit
        self.reserve = min(budget.answer_tokens, max(1, node.grant // 2))
        self.prices = budget.prices_of(root=node.parent is None)
        self.own_tokens = budget.own_tokens(root=node.parent is None)  # that the node itself may generate

    def cap(self, size: int, *, closing: bool) -> tuple[int, Stop]:
        """The most tokens the next completion may have after a prompt of `size`, and the limit that decides it."""
        kept = closing_size = 0
        if not closing:
            kept, closing_size = self.reserve, self.closing_size
        left = self.path_left()
        spendable = [
            self.ledger.tokens - kept,
            None if self.own_tokens is None else self.own_tokens - self.node.usage.tokens - kept,
            None if self.ledger.money is None else self._affordable(size, closing=closing),
            None if left is None else left - kept,
        ]
        most = min(tokens for tokens in spendable if tokens is not None)
        room = self.window - size - closing_size - kept
        return (room, Stop.WINDOW) if room < most else (most, Stop.BUDGET)

    def child_path(self) -> int | None:
        """The most tokens that a chain of work in a child may have, so that the node can answer; None: no limit."""
        left = self.path_left()
        return None if left is None else left - self.reserve

    def _affordable(self, size: int, *, closing: bool) -> int:
        """Tokens that money buys: for this call, then one more whose prompt contains this completion."""
        worst = self.prices.worst
        left = (self.ledger.money or 0) - worst(prompt=size, generated=0)
        if not closing:
            left -= worst(prompt=size + self.closing_size, generated=self.reserve)
        each = worst(prompt=0 if closing else 1, generated=1)
        if each:
            return left // each
        return self.ledger.tokens if left >= 0 else 0

    def room(self, size: int, *, closing: bool) -> int:
        """Tokens the next message may have so that the turn after it keeps its reserve."""
        worst = self.prices.worst
        kept = self.reserve if closing else 2 * self.reserve + self.closing_size
        room = self.window - size - kept
        each = worst(prompt=1, generated=0)
        if self.ledger.money is not None and each:
            left = self.ledger.money - worst(prompt=size, generated=self.reserve)
            room = min(room, left // each)
        return room

    def smallest_window(self, size: int) -> int:
        """The window needed for one ordinary turn and then the answer."""
        return size + self.closing_size + 2 * self.reserve

    def smallest_money(self, size: int) -> int:
        """The most that one ordinary turn and then the answer can cost."""
        worst = self.prices.worst
        return worst(prompt=size, generated=self.reserve) + worst(
            prompt=size + self.reserve + self.closing_size, generated=self.reserve
        )


@dataclass(slots=True)
class Speed:
    """Tokens that engine calls brought, and the seconds they took, waiting for the first token included."""

    tokens: int = 0
    seconds: float = 0.0

    @property
    def is_known(self) -> bool:
        return self.tokens > 0 and self.seconds > 0

    def add(self, tokens: int, seconds: float) -> None:
        self.tokens += tokens
        self.seconds += seconds


class Repeats:
    """How often in a row a node has repeated its turn: the same action with the same results."""

    def __init__(self) -> None:
        self.count = 0
        self._last: tuple[object, list[str]] | None = None

    def add(self, action: object, results: Sequence[Result]) -> None:
        """Count a turn. Labels are left out of the comparison: some have the number of the turn."""
        turn = action, [result.text for result in results]
        self.count = self.count + 1 if turn == self._last else 0
        self._last = turn
