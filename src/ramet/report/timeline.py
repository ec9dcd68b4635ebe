"""A tree over time: which nodes ran in parallel, and which are on the critical path."""

# matplotlib's types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramet.draw import cut_apart, walk
from ramet.evaluate.costs import critical_path
from ramet.report.figures import Picture, make_picture
from ramet.report.style import WIDTH, canvas, light, to_svg
from ramet.types import Node, Tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_NODES = 40  # rows of one plot
LABEL, NARROW_LABEL = 38, 20  # characters of a label, including branches: on a page, on a phone
NO_BREAK = "\N{NO-BREAK SPACE}"  # matplotlib strips other spaces at the start of a label


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The time of one node, from start to end, and the spans in which it generated tokens."""

    node: int
    start: float
    end: float
    generating: tuple[tuple[float, float], ...]
    critical: bool  # on the critical path


def node_bars(tree: Tree) -> tuple[list[Bar], str]:
    """The bar of every node, and its unit: seconds, or tokens if no time passed, as with a scripted engine."""
    critical = critical_path(tree).nodes
    if any(node.ended_s is not None and node.ended_s > node.started_s for node in tree.nodes):
        return [_bar_in_seconds(tree, node, node.index in critical) for node in tree.nodes], "seconds"
    bars: dict[int, Bar] = {}
    if tree.nodes:
        _add_token_bars(tree, tree.root, 0.0, critical, bars)
    return [bars[node.index] for node in tree.nodes if node.index in bars], "tokens"


def _bar_in_seconds(tree: Tree, node: Node, critical: bool) -> Bar:
    end = tree.seconds if node.ended_s is None else node.ended_s
    generating = tuple((turn.started_s, turn.sampled_s) for turn in node.turns)
    return Bar(node=node.index, start=node.started_s, end=end, generating=generating, critical=critical)


def _add_token_bars(tree: Tree, node: Node, start: float, critical: frozenset[int], bars: dict[int, Bar]) -> float:
    """Lay out a node and its subtree from this token on; return the token at which it ends."""
    at = start
    generating: list[tuple[float, float]] = []
    for turn in node.turns:
        generating.append((at, at + turn.tokens))
        at += turn.tokens
        ends = [_add_token_bars(tree, tree.nodes[child], at, critical, bars) for child in turn.children]
        at = max(ends, default=at)
    on_path = node.index in critical
    bars[node.index] = Bar(node=node.index, start=start, end=at, generating=tuple(generating), critical=on_path)
    return at


def timeline(tree: Tree, *, name: str) -> Picture:
    """A row per node, clones below the node that spawned them."""
    total = len(tree.nodes)
    omitted = f" Only the first {MAX_NODES} of {total} nodes are shown." if total > MAX_NODES else ""
    title = f"Timeline of tree {tree.id}"
    caption = (
        "A row is a node: blocks where it generated tokens, lines where it waited. Solid blocks are on the critical "
        f"path ({tree.usage.critical_path_tokens:,} of {tree.usage.tokens:,} tokens), hatched ones ran in parallel to "
        f"it.{omitted}"
    )
    figure = _draw(tree, width=2 * WIDTH, label=LABEL, text=9.0)
    small = _draw(tree, width=4.0, label=NARROW_LABEL, text=7.5)
    narrow = to_svg(small, name=f"{name}-narrow", label=f"{title}. {caption}")
    return make_picture(figure, name=name, title=title, caption=caption, wide=True, narrow=narrow)


def _draw(tree: Tree, *, width: float, label: int, text: float) -> Figure:
    lines = walk(tree)[:MAX_NODES]
    bars, unit = node_bars(tree)
    by_node = {bar.node: bar for bar in bars}
    figure, axes = canvas(width=width, height=0.9 + 0.03 * text * len(lines))
    for place, (node, _) in enumerate(lines):
        if node.index in by_node:
            _draw_bar(axes, place, by_node[node.index])
    labels = _labels(lines, label)
    axes.set_yticks(range(len(lines)), labels, ha="left")
    axes.tick_params(axis="y", length=0, pad=0.633 * text * max(map(len, labels), default=0) + 6)  # left-aligned labels
    axes.tick_params(labelsize=text)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("seconds" if unit == "seconds" else "tokens along the critical path", fontsize=text)
    axes.set_xlim(left=0)
    return figure


def _labels(lines: Sequence[tuple[Node, str]], most: int) -> list[str]:
    """Number, branch lines and goal of each node, as `ramet show` has them. Goals that begin alike are cut apart."""
    digits = len(str(max((node.index for node, _ in lines), default=0)))
    goals = cut_apart([node.goal for node, _ in lines], [max(8, most - len(before)) for _, before in lines])
    starts = [f"{node.index:>{digits}}  {before}".replace(" ", NO_BREAK) for node, before in lines]
    return [start + goal for start, goal in zip(starts, goals, strict=True)]


def _draw_bar(axes: Axes, place: int, bar: Bar) -> None:
    colour = light("vermillion" if bar.critical else "blue")
    axes.plot([bar.start, bar.end], [place, place], color=colour, linewidth=1.1 if bar.critical else 0.8, zorder=2)
    for start, end in bar.generating:
        axes.barh(
            place, end - start, left=start, height=0.62, color=colour if bar.critical else light("paper"),
            edgecolor=colour, linewidth=1.0, hatch=None if bar.critical else "////", zorder=3,
        )  # fmt: skip
