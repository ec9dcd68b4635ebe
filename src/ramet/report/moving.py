"""A tree as a moving picture: an SVG file that replays how it grew.

A row is a node, below the node that spawned it. A block grows while the node samples, a thin line while it waits for
its clones. The animation is CSS without scripts, so the file moves wherever an image can be shown. Where the reader
prefers no motion, the complete tree is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from ramet.draw import one_line, walk
from ramet.report.markup import Markup, tag
from ramet.report.style import COLOURS
from ramet.report.timeline import Bar, node_bars
from ramet.types import Node, Tree

MAX_ROWS = 40
PLAYS, HOLDS = 9.0, 3.0  # seconds in which the tree grows, and in which the complete one is shown
STEPS = 45  # changes of the counter below the tree
WIDTH, ROW, TOP, LETTER = 860, 23, 8, 7.25  # pixels
LABEL = 40  # characters of a label, including branches
MARGIN = "10"  # pixels to the left of all texts
NOTE = 100  # pixels for the text after a bar
NO_BREAK = "\N{NO-BREAK SPACE}"


class Scene:
    """Maps the time of a tree to the animation and to the horizontal axis, and collects the key frames."""

    def __init__(self, total: float, *, left: float) -> None:
        self.total, self.left = total, left
        self.rules: list[str] = []

    def x(self, at: float) -> float:
        return self.left + (WIDTH - self.left - NOTE) * at / self.total

    def percent(self, at: float) -> float:
        """The point of the cycle at which the tree has reached this time."""
        return 100 * PLAYS / (PLAYS + HOLDS) * at / self.total

    def change(self, what: str, begin: float, end: float) -> str:
        """Animate a property from 0 to 1 between two times; the style that an element needs for that."""
        start = self.percent(begin)
        done = max(self.percent(end), start + 0.01)
        name = f"k{len(self.rules)}"
        before, after = (f"{{transform:scaleX({to})}}" if what == "grow" else f"{{opacity:{to}}}" for to in (0, 1))
        self.rules.append(f"@keyframes {name}{{0%,{start:.2f}%{before}{done:.2f}%,100%{after}}}")
        return f"animation-name:{name}"

    def flash(self, begin: float, end: float) -> str:
        """Show an element between two times only."""
        start, done = self.percent(begin), self.percent(end)
        name = f"k{len(self.rules)}"
        shown = f"{start:.2f}%,{done - 0.01:.2f}%{{opacity:1}}"
        self.rules.append(f"@keyframes {name}{{0%,{start - 0.01:.2f}%{{opacity:0}}{shown}{done:.2f}%{{opacity:0}}}}")
        return f"animation-name:{name}"


def moving_tree(tree: Tree) -> str:
    """The SVG text of a tree that grows, in a loop of twelve seconds."""
    rows = walk(tree)[:MAX_ROWS]
    bars = {bar.node: bar for bar in node_bars(tree)[0]}
    labels = _labels(rows)
    scene = Scene(max((bar.end for bar in bars.values()), default=0.0) or 1.0, left=LETTER * max(map(len, labels)) + 24)
    height = TOP + ROW * len(rows) + 34
    paper = tag("rect", class_="paper", x="0", y="0", width=str(WIDTH), height=str(height), rx="6")
    drawn = [
        _row(node, label, TOP + ROW * place, bars[node.index], scene)
        for place, ((node, _), label) in enumerate(zip(rows, labels, strict=True))
    ]
    drawn += _counters(tree, list(bars.values()), scene, y=height - 12)
    head = [tag("title", one_line(tree.task.question, 120)), tag("style", Markup(_styles(scene.rules))), paper]
    return tag(
        "svg", *head, *drawn,
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {height}", width=str(WIDTH), height=str(height),
        role="img",
    )  # fmt: skip


def _labels(rows: Sequence[tuple[Node, str]]) -> list[str]:
    """Number, branches and goal of each row. The words with which the goals of all clones begin are left out."""
    clones = [node.goal for node, _ in rows if node.parent is not None]
    common = "".join(
        letters[0] for letters in takewhile(lambda letters: len(set(letters)) == 1, zip(*clones, strict=False))
    )
    skipped = common.rfind(" ") + 1 if len(clones) > 1 else 0
    digits = len(str(max(node.index for node, _ in rows)))
    return [
        f"{node.index:>{digits}}  {before}".replace(" ", NO_BREAK)
        + one_line(node.goal if node.parent is None else node.goal[skipped:], LABEL - len(before))
        for node, before in rows
    ]


def _row(node: Node, label: str, y: float, bar: Bar, scene: Scene) -> Markup:
    kind = "path" if bar.critical else "side"
    spans = [(start, end, 13.0) for start, end in bar.generating if end > start]
    rectangles = [
        tag(
            "rect", class_=f"grow {kind}", x=f"{scene.x(start):.1f}", y=f"{y + (ROW - high) / 2:g}",
            width=f"{max(1.0, scene.x(end) - scene.x(start)):.1f}", height=f"{high:g}",
            style=scene.change("grow", start, end),
        )
        for start, end, high in [(bar.start, bar.end, 1.5), *spans]
    ]  # fmt: skip
    base = f"{y + ROW / 2 + 4.5:g}"
    name = tag("text", label, x=MARGIN, y=base, class_="show", style=scene.change("show", bar.start, bar.start))
    note = tag(
        "text", f"{node.usage.tokens:,} tok{_mark(node)}", x=f"{scene.x(bar.end) + 6:.1f}", y=base, class_="show note",
        style=scene.change("show", bar.end, bar.end),
    )  # fmt: skip
    return tag("g", name, *rectangles, note)


def _mark(node: Node) -> str:
    """How the node was graded; nothing if it was not."""
    if node.verdict is None:
        return ""
    return " ✓" if node.verdict.is_right else " ✗"


def _counters(tree: Tree, bars: Sequence[Bar], scene: Scene, *, y: float) -> Iterator[Markup]:
    """Tokens and working nodes at each step of the animation, one text after the other in the same place."""
    for step in range(STEPS):
        begin, end = (scene.total * at / STEPS for at in (step, step + 1))
        working = sum(1 for bar in bars if any(start < end and begin < stop for start, stop in bar.generating))
        spawned = sum(bar.start < end for bar in bars)
        text = f"{tokens_at(tree, bars, begin):,} tokens · {working} of {spawned} nodes sampling"
        yield tag("text", text, x=MARGIN, y=f"{y:g}", class_="flash note", style=scene.flash(begin, end))
    total = tree.usage
    text = (
        f"{total.tokens:,} of {tree.budget.tokens:,} tokens · {total.critical_path_tokens:,} on the critical path "
        f"(orange) · {len(tree.nodes)} of {tree.budget.nodes} nodes · {tree.seconds:.1f} s"
    )
    yield tag(
        "text", text, x=MARGIN, y=f"{y:g}", class_="show note", style=scene.change("show", scene.total, scene.total)
    )


def tokens_at(tree: Tree, bars: Sequence[Bar], at: float) -> int:
    """The tokens that the tree had generated at a time, if each turn sampled at an even speed.

    Example:
        a turn of 10 tokens from second 0 to 2 has 5 at second 1
    """
    count = 0.0
    for bar in bars:
        for turn, (start, end) in zip(tree.nodes[bar.node].turns, bar.generating, strict=True):
            done = 1.0 if at >= end else max(0.0, (at - start) / (end - start))
            count += turn.tokens * done
    return int(count)


def _styles(rules: Sequence[str]) -> str:
    light, dark = (
        "".join(f"--{name}:{COLOURS[name][shade]};" for name in ("blue", "vermillion", "ink", "muted", "paper"))
        for shade in (0, 1)
    )
    return (
        f"svg{{{light}font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}}"
        f"@media(prefers-color-scheme:dark){{svg{{{dark}}}}}"
        "text{fill:var(--ink);white-space:pre}.note{fill:var(--muted)}"
        ".paper{fill:var(--paper)}.path{fill:var(--vermillion)}.side{fill:var(--blue);opacity:.55}"
        ".grow{transform-box:fill-box;transform-origin:left}.flash{opacity:0}"
        f".grow,.show,.flash{{animation:{PLAYS + HOLDS:g}s linear infinite}}"
        "@media(prefers-reduced-motion:reduce){.grow,.show,.flash{animation:none!important}}" + "".join(rules)
    )
