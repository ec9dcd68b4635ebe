"""A tree over time: which nodes worked side by side, and the chain of work that made it take so long."""

# matplotlib's types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramet.draw import one_line, walk
from ramet.report.plots import Picture, picture
from ramet.report.style import WIDTH, canvas, light
from ramet.types import Node, Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_NODES = 40  # rows of one picture
GOAL = 38  # characters of a label, branches included
NO_BREAK = "\N{NO-BREAK SPACE}"  # other spaces at the beginning of a label are lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A node on a clock: from its first token to its last, and when it was writing itself."""

    node: int
    start: float
    end: float
    writing: tuple[tuple[float, float], ...]
    critical: bool  # the tree would have been done sooner without it


def bars(tree: Tree) -> tuple[list[Bar], str]:
    """Every node's bar, in seconds where time passed, else in tokens of the longest chain; and which of the two."""
    critical = critical_nodes(tree)
    if any(node.ended_s is not None and node.ended_s > node.started_s for node in tree.nodes):
        return [_on_the_clock(tree, node, node.index in critical) for node in tree.nodes], "seconds"
    spans: dict[int, Bar] = {}
    if tree.nodes:
        _in_tokens(tree, tree.root, 0.0, critical, spans)
    return [spans[node.index] for node in tree.nodes if node.index in spans], "tokens"


def _on_the_clock(tree: Tree, node: Node, critical: bool) -> Bar:
    end = tree.seconds if node.ended_s is None else node.ended_s
    writing = tuple((turn.started_s, turn.sampled_s) for turn in node.turns)
    return Bar(node=node.index, start=node.started_s, end=end, writing=writing, critical=critical)


def _in_tokens(tree: Tree, node: Node, start: float, critical: frozenset[int], spans: dict[int, Bar]) -> float:
    """Lay out a node and all below it from this token on; returns the token at which it is done."""
    at = start
    writing: list[tuple[float, float]] = []
    for turn in node.turns:
        writing.append((at, at + turn.tokens))
        at += turn.tokens
        ends = [_in_tokens(tree, tree.nodes[child], at, critical, spans) for child in turn.children]
        at = max(ends, default=at)
    spans[node.index] = Bar(
        node=node.index, start=start, end=at, writing=tuple(writing), critical=node.index in critical
    )
    return at


def critical_nodes(tree: Tree) -> frozenset[int]:
    """The nodes on the longest chain of dependent tokens, from the root down."""
    found: set[int] = set()
    waiting = [tree.root] if tree.nodes else []
    while waiting:
        node = waiting.pop()
        found.add(node.index)
        for turn in node.turns:
            waiting += heaviest_chain([tree.nodes[index] for index in turn.children])
    return frozenset(found)


def heaviest_chain(children: Sequence[Node]) -> list[Node]:
    """Of the children of one turn, those that followed one another and took longest together, in tokens."""
    chains: list[tuple[int, list[Node]]] = []
    for child in sorted(children, key=lambda one: one.started_s):
        before = max(
            (chain for chain in chains if _follows(child, chain[1][-1])), key=lambda chain: chain[0], default=(0, [])
        )
        chains.append((before[0] + child.usage.critical_path_tokens, [*before[1], child]))
    return max(chains, key=lambda chain: chain[0], default=(0, []))[1]


def _follows(later: Node, earlier: Node) -> bool:
    """It began after the other had ended. Where no time passed at all, they were started together."""
    ended = earlier.ended_s
    return ended is not None and later.started_s >= ended and later.started_s > earlier.started_s


def timeline(tree: Tree, *, name: str) -> Picture:
    """Rows are nodes in reading order, clones below who asked for them."""
    lines = walk(tree)[:MOST_NODES]
    rows = [node for node, _ in lines]
    found, clock = bars(tree)
    by_node = {bar.node: bar for bar in found}
    figure, axes = canvas(width=2 * WIDTH, height=0.9 + 0.27 * len(rows))
    for place, node in enumerate(rows):
        bar = by_node.get(node.index)
        if bar is None:
            continue
        colour = light("vermillion" if bar.critical else "blue")
        axes.plot([bar.start, bar.end], [place, place], color=colour, linewidth=1.1 if bar.critical else 0.8, zorder=2)
        for start, end in bar.writing:
            axes.barh(
                place, end - start, left=start, height=0.62, color=colour if bar.critical else light("paper"),
                edgecolor=colour, linewidth=1.0, hatch=None if bar.critical else "////", zorder=3,
            )  # fmt: skip
    labels = [
        before.replace(" ", NO_BREAK) + one_line(node.goal, max(12, GOAL - len(before))) for node, before in lines
    ]
    axes.set_yticks(range(len(rows)), labels, ha="left")
    _align(axes, labels)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("seconds" if clock == "seconds" else "tokens along the chain of dependent work")
    axes.set_xlim(left=0)
    left_out = (
        f" Only the first {MOST_NODES} of {len(tree.nodes)} nodes are shown." if len(tree.nodes) > MOST_NODES else ""
    )
    return picture(
        figure,
        name=name,
        title=f"Timeline of tree {tree.id}",
        caption="A row is a node; blocks are when it wrote, thin lines when it waited; full ones are on the critical "
        f"path, {tree.usage.critical_path_tokens:,} of {tree.usage.tokens:,} tokens; hatched ones beside it.{left_out}",
        wide=True,
    )


def _align(axes: Axes, labels: Sequence[str]) -> None:
    """Room for goals that begin at the left edge."""
    longest = max(map(len, labels), default=0)
    axes.tick_params(axis="y", pad=5.7 * longest + 6)
