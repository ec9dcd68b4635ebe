"""What a tree cost, counted from its nodes: nothing is estimated, and nothing beyond a stored tree is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ramet.budget import PICO, Prices
from ramet.types import Node, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What one tree, or several side by side, used."""

    generated: int
    prompt: int
    cached: int  # of the prompt tokens: not computed again
    critical_path: int  # generated tokens on the longest chain of dependent work
    critical_path_prompts: int  # the same with the prompt tokens that had to be computed on the way
    peak_window: int
    nodes: int
    depth: int
    children: int  # nodes that have a parent
    beside: int  # of these, ran at the same time as a sibling
    seconds: float
    dollars: float | None

    @property
    def delegated(self) -> bool:
        return self.children > 0

    @property
    def concurrent(self) -> float | None:
        """Share of children that ran beside a sibling; None without children."""
        return self.beside / self.children if self.children else None


def costs_of(tree: Tree, *, prices: Prices | None = None) -> Costs:
    """Everything a tree used. Without prices, those of its budget count; when that has none either, no money."""
    used = tree.usage
    prices = prices or tree.budget.prices
    cost = prices.cost(prompt=used.prompt_tokens, cached=used.cached_tokens, generated=used.tokens)
    return Costs(
        generated=used.tokens,
        prompt=used.prompt_tokens,
        cached=used.cached_tokens,
        critical_path=critical_path(tree),
        critical_path_prompts=critical_path(tree, prompts=True),
        peak_window=used.peak_window,
        nodes=len(tree.nodes),
        depth=tree.depth,
        children=sum(node.parent is not None for node in tree.nodes),
        beside=concurrent_children(tree),
        seconds=tree.seconds,
        dollars=None if prices.free else cost / PICO,
    )


def side_by_side(costs: Sequence[Costs]) -> Costs:
    """Independent trees for one item, started together: amounts add up, what is waited for is the longest."""
    dollars = [one.dollars for one in costs if one.dollars is not None]
    return Costs(
        generated=sum(one.generated for one in costs),
        prompt=sum(one.prompt for one in costs),
        cached=sum(one.cached for one in costs),
        critical_path=max(one.critical_path for one in costs),
        critical_path_prompts=max(one.critical_path_prompts for one in costs),
        peak_window=max(one.peak_window for one in costs),
        nodes=sum(one.nodes for one in costs),
        depth=max(one.depth for one in costs),
        children=sum(one.children for one in costs),
        beside=sum(one.beside for one in costs),
        seconds=max(one.seconds for one in costs),
        dollars=sum(dollars) if len(dollars) == len(costs) else None,
    )


def critical_path(tree: Tree, *, prompts: bool = False) -> int:
    """Tokens on the longest chain of work that had to wait for each other.

    A node's own turns follow one another, so all its tokens count. In each turn it waits for its children: the longest
    chain of those counts, where one that began after another had ended comes after it. With `prompts`, prompt tokens
    that no cache held count too: they are read before the first token comes.
    """
    own = {node.index: _own(node, prompts=prompts) for node in tree.nodes}
    longest: dict[int, int] = {}
    for node in reversed(tree.nodes):  # children stand after their parents
        rounds = [[tree.nodes[index] for index in turn.children] for turn in node.turns]
        longest[node.index] = own[node.index] + sum(_chain(tree, children, longest) for children in rounds)
    return longest[0] if tree.nodes else 0


def _own(node: Node, *, prompts: bool) -> int:
    used = node.usage
    return used.tokens + (used.prompt_tokens - used.cached_tokens if prompts else 0)


def _chain(tree: Tree, children: Sequence[Node], longest: dict[int, int]) -> int:
    """The heaviest sequence of children, each begun after the one before had ended."""
    ends: list[tuple[Node, int]] = []
    for child in sorted(children, key=lambda one: one.started_s):
        before = [reached for other, reached in ends if _follows(tree, child, other)]
        ends.append((child, longest[child.index] + max(before, default=0)))
    return max((reached for _, reached in ends), default=0)


def _follows(tree: Tree, later: Node, earlier: Node) -> bool:
    # Where no time passed at all, as with a script, children of one turn count as started together.
    return later.started_s >= _ended(tree, earlier) and later.started_s > earlier.started_s


def _ended(tree: Tree, node: Node) -> float:
    return tree.seconds if node.ended_s is None else node.ended_s


def concurrent_children(tree: Tree) -> int:
    """Children whose time overlaps with that of a sibling."""
    families: dict[int, list[Node]] = {}
    for node in tree.nodes:
        if node.parent is not None:
            families.setdefault(node.parent, []).append(node)
    return sum(
        any(_overlap(tree, child, other) for other in family if other is not child)
        for family in families.values()
        for child in family
    )


def _overlap(tree: Tree, one: Node, other: Node) -> bool:
    return max(one.started_s, other.started_s) < min(_ended(tree, one), _ended(tree, other))
