"""What a tree cost, counted from its stored nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ramet.budget import PICO, Prices
from ramet.types import Node, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What one tree used, or several trees that ran in parallel."""

    generated: int
    prompt: int
    cached: int  # of the prompt tokens: served from a cache
    critical_path: int  # generated tokens on the longest chain of dependent work
    critical_path_prompts: int  # the same, plus uncached prompt tokens on the way
    peak_window: int
    nodes: int
    depth: int
    children: int  # nodes that have a parent
    parallel: int  # children whose time overlaps with that of a sibling
    seconds: float
    dollars: float | None

    @property
    def delegated(self) -> bool:
        return self.children > 0

    @property
    def concurrent(self) -> float | None:
        """Share of children that ran in parallel with a sibling; None without children."""
        return self.parallel / self.children if self.children else None


def tree_costs(tree: Tree, *, prices: Prices | None = None) -> Costs:
    """Everything a tree used. `prices` default to those of its budget; without any, `dollars` is None."""
    used = tree.usage
    priced = [(node.usage, prices or tree.budget.prices_of(root=node.parent is None)) for node in tree.nodes]
    cost = sum(
        price.cost(prompt=usage.prompt_tokens, cached=usage.cached_tokens, generated=usage.tokens)
        for usage, price in priced
    )
    return Costs(
        generated=used.tokens,
        prompt=used.prompt_tokens,
        cached=used.cached_tokens,
        critical_path=critical_path(tree).tokens,
        critical_path_prompts=critical_path(tree, prompts=True).tokens,
        peak_window=used.peak_window,
        nodes=len(tree.nodes),
        depth=tree.depth,
        children=sum(node.parent is not None for node in tree.nodes),
        parallel=count_parallel_children(tree),
        seconds=tree.seconds,
        dollars=None if all(price.free for _, price in priced) else cost / PICO,
    )


def add_costs(costs: Sequence[Costs]) -> Costs:
    """The cost of independent trees that run in parallel: amounts add up, waiting times are the longest."""
    dollars = [cost.dollars for cost in costs if cost.dollars is not None]
    return Costs(
        generated=sum(cost.generated for cost in costs),
        prompt=sum(cost.prompt for cost in costs),
        cached=sum(cost.cached for cost in costs),
        critical_path=max(cost.critical_path for cost in costs),
        critical_path_prompts=max(cost.critical_path_prompts for cost in costs),
        peak_window=max(cost.peak_window for cost in costs),
        nodes=sum(cost.nodes for cost in costs),
        depth=max(cost.depth for cost in costs),
        children=sum(cost.children for cost in costs),
        parallel=sum(cost.parallel for cost in costs),
        seconds=max(cost.seconds for cost in costs),
        dollars=sum(dollars) if len(dollars) == len(costs) else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The longest chain of dependent work in a tree."""

    tokens: int
    nodes: frozenset[int]  # indices of the nodes on it


def critical_path(tree: Tree, *, prompts: bool = False) -> CriticalPath:
    """The longest chain of work in which each part waits for the one before.

    The turns of a node are sequential, so all its tokens count. In each turn the node waits for its children: their
    heaviest chain counts, where a child that started after another had ended comes after it. With `prompts`, uncached
    prompt tokens count too: they are read before the first token is generated.
    """
    longest: dict[int, int] = {}
    chains: dict[int, list[Node]] = {}
    for node in reversed(tree.nodes):  # children stand after their parents
        rounds = [[tree.nodes[index] for index in turn.children] for turn in node.turns]
        heaviest = [_heaviest_chain(tree, children, longest) for children in rounds]
        longest[node.index] = _own_tokens(node, prompts=prompts) + sum(weight for weight, _ in heaviest)
        chains[node.index] = [child for _, chain in heaviest for child in chain]
    on_path: set[int] = set()
    waiting = [tree.root] if tree.nodes else []
    while waiting:
        node = waiting.pop()
        on_path.add(node.index)
        waiting += chains[node.index]
    return CriticalPath(tokens=longest[0] if tree.nodes else 0, nodes=frozenset(on_path))


def _own_tokens(node: Node, *, prompts: bool) -> int:
    used = node.usage
    return used.tokens + (used.prompt_tokens - used.cached_tokens if prompts else 0)


def _heaviest_chain(tree: Tree, children: Sequence[Node], longest: dict[int, int]) -> tuple[int, list[Node]]:
    """The heaviest sequence of children in which each started after the one before had ended, and its weight."""
    none: tuple[int, list[Node]] = (0, [])
    chains: list[tuple[int, list[Node]]] = []
    for child in sorted(children, key=lambda node: node.started_s):
        before = [chain for chain in chains if _follows(tree, child, chain[1][-1])]
        weight, nodes = max(before, key=lambda chain: chain[0], default=none)
        chains.append((weight + longest[child.index], [*nodes, child]))
    return max(chains, key=lambda chain: chain[0], default=none)


def _follows(tree: Tree, later: Node, earlier: Node) -> bool:
    # With a scripted engine no time passes: then children of one turn count as started together.
    return later.started_s >= _ended(tree, earlier) and later.started_s > earlier.started_s


def _ended(tree: Tree, node: Node) -> float:
    return tree.seconds if node.ended_s is None else node.ended_s


def count_parallel_children(tree: Tree) -> int:
    """The number of children whose time overlaps with that of a sibling."""
    families: dict[int, list[Node]] = {}
    for node in tree.nodes:
        if node.parent is not None:
            families.setdefault(node.parent, []).append(node)
    return sum(
        any(_overlap(tree, child, other) for other in family if other is not child)
        for family in families.values()
        for child in family
    )


def _overlap(tree: Tree, first: Node, second: Node) -> bool:
    return max(first.started_s, second.started_s) < min(_ended(tree, first), _ended(tree, second))
