"""Oracles that ask for the tokens their clones need: `taskset.ask_tokens`.

A demonstration is played twice. The first time nodes have ample tokens and ask for none, which shows what every clone
and its own clones cost. The second time every request names that number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ramet.budget import LARGEST, Budget
from ramet.interfaces import Ask, Move, Oracle, View
from ramet.types import Node, Tree

Place = tuple[int, str]  # depth and goal of a clone
AMPLE = 64  # times the tokens of the budget, for the first time
MARGIN = 1.5  # a model does not write exactly what its oracle writes
A_REQUEST = 12  # tokens that a request takes more when it names a number
STEPS = ((1000, 10), (10_000, 100))  # numbers below the first are rounded up to the second; larger ones to 1,000


def ample(budget: Budget) -> Budget:
    """The same limits, but with tokens that no node uses up."""
    return replace(budget, tokens=min(LARGEST - 1, AMPLE * budget.tokens), reserve=budget.answer_tokens, money=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Tokens that a node needs: for its own turns, and with all its clones and their reserves."""

    own: int
    total: int


def needs_of(tree: Tree, budget: Budget) -> dict[Place, Need]:
    """What every node of a played tree needs; of several with the same goal and depth, the largest need.

    That is what it and its clones used, with their reserves and a margin; and before its last turn a node must still
    have the smallest grant, as before every turn.
    """
    own = [node.usage.tokens + budget.answer_tokens + A_REQUEST * _requests(node) for node in tree.nodes]
    totals = _with_clones(tree, own)
    used = _with_clones(tree, [node.usage.tokens for node in tree.nodes])
    needs: dict[Place, Need] = {}
    for node in sorted(tree.nodes, key=lambda node: totals[node.index]):
        before_last = used[node.index] - (node.turns[-1].tokens if node.turns else 0)
        total = max(before_last + budget.smallest_grant, int(MARGIN * totals[node.index]))
        needs[node.depth, node.goal] = Need(own=own[node.index], total=round_up(total))
    return needs


def _with_clones(tree: Tree, values: Sequence[int]) -> list[int]:
    """For each node, the sum of its value and those of all clones below it."""
    sums = list(values)
    for node in reversed(tree.nodes):  # clones come after their parents
        if node.parent is not None:
            sums[node.parent] += sums[node.index]
    return sums


def _requests(node: Node) -> int:
    return sum(len(turn.children) + len(turn.refusals) for turn in node.turns)


def round_up(tokens: int) -> int:
    """To tens, hundreds or thousands: numbers that a model can learn.

    Example:
        round_up(612)   # 620
        round_up(6120)  # 6200
    """
    step = next((step for limit, step in STEPS if tokens < limit), 1000)
    return -(-tokens // step) * step


class Asking:
    """An oracle whose requests name the tokens that the clones need, at most what the node has left."""

    def __init__(self, oracle: Oracle, needs: Mapping[Place, Need], *, budget: Budget) -> None:
        self.oracle = oracle
        self.needs = needs
        self.budget = budget

    def move(self, view: View) -> Move:
        move = self.oracle.move(view)
        if not move.asks or all(ask.tokens is not None for ask in move.asks):  # some oracles estimate needs themselves
            return move
        wanted = [self._need(ask.goal, view.depth + 1).total for ask in move.asks]
        left = None if view.tokens is None else view.tokens - self._need(view.goal, view.depth).own
        return replace(move, asks=tuple(map(_asking, move.asks, bounded(wanted, left))))

    def _need(self, goal: str, depth: int) -> Need:
        """As measured; a goal that was refused or never played needs the smallest grant."""
        smallest = self.budget.smallest_grant
        return self.needs.get((depth, goal)) or Need(own=smallest, total=round_up(smallest))


def bounded(wanted: Sequence[int], left: int | None) -> list[int]:
    """The numbers, scaled down together if only `left` tokens can be lent. None: that is not known.

    Example:
        bounded([300, 100], 200)  # [150, 50]
    """
    total = sum(wanted)
    if left is None or total <= left:
        return list(wanted)
    return [max(1, tokens * max(0, left) // total) for tokens in wanted]


def _asking(ask: Ask, tokens: int) -> Ask:
    return replace(ask, tokens=tokens)
