"""A tree in the terminal: while it runs, and when it has ended."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ramet.agent.task_groups import task_group
from ramet.agent.tree import TreeRun
from ramet.draw import counted, cut_apart, mishaps, one_line, status, totals, walk
from ramet.types import Node, State, Stop, Tree

FRAMES_PER_SECOND = 8
WORDS = 400  # characters of what a node writes that are looked at in every frame
WIDEST = 100  # columns for goals, however wide the terminal is
GOAL_WIDTH = 40  # characters of a goal that was refused or failed
COLOURS = {Stop.ANSWERED: "green", Stop.ERROR: "red", Stop.CANCELLED: "red"}


def colour(node: Node) -> str:
    if node.state is not State.ENDED or node.stop is None:
        return "cyan"
    return COLOURS.get(node.stop, "yellow")


def table(tree: Tree, *, width: int, rows: int | None = None, now: float | None = None, words: bool = False) -> Table:
    """One line per node, with the number that `--node` takes. If there are more than `rows`, ended nodes are hidden.

    With `words`, the last words of each node that is sampling are below it, as far as there is room.
    """
    shown, hidden = _fit(walk(tree), rows)
    said = _last_words([node for node, _ in shown], None if rows is None else rows - len(shown)) if words else {}
    facts = [_facts(tree, node, now) for node, _ in shown]
    digits = len(str(max((node.index for node, _ in shown), default=0)))
    taken = digits + 2 + sum(max(map(len, column)) + 2 for column in zip(*facts, strict=True))  # the goals get the rest
    room = min(WIDEST, width - taken - 1)
    goals = cut_apart([node.goal for node, _ in shown], [max(10, room - len(prefix)) for _, prefix in shown])
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", no_wrap=True, style="dim")
    grid.add_column(no_wrap=True)
    for _ in range(2):
        grid.add_column(justify="right", no_wrap=True)
    grid.add_column()  # the only column that a narrow terminal cuts
    for (node, prefix), goal, (tokens, seconds, state) in zip(shown, goals, facts, strict=True):
        label = Text(prefix, style="dim") + Text(goal)
        ended = Text(state, style=colour(node), no_wrap=True, overflow="ellipsis")
        grid.add_row(str(node.index), label, tokens, seconds, ended)
        if node.index in said:
            text = tail(said[node.index], max(20, room - len(prefix)))
            grid.add_row("", Text(below(prefix), style="dim") + Text(text, style="italic cyan"), "", "", "")
    if hidden:
        grid.add_row("", Text(f"… and {counted(hidden, 'more node')}", style="dim"), "", "", "")
    return grid


def below(prefix: str) -> str:
    """The branch lines of a line below a node.

    Example:
        below("│  ├─ ")  # "│  │  "
    """
    return prefix.replace("├─ ", "│  ").replace("└─ ", "   ")


def _last_words(nodes: Sequence[Node], most: int | None) -> dict[int, str]:
    """What the nodes that are sampling have written so far, of at most `most` of them."""
    working = [node for node in nodes if node.state is State.SAMPLING and node.meter.partial is not None]
    said = {node.index: _received(node) for node in working[: None if most is None else max(0, most)]}
    return {index: text for index, text in said.items() if text}


def _received(node: Node) -> str:
    return "" if node.meter.partial is None else node.meter.partial().text[-WORDS:]


def tail(text: str, width: int) -> str:
    """The end of a text, on one line.

    Example:
        tail("one two three", 8)  # "…o three"
    """
    line = one_line(text, len(text) or 1)
    return line if len(line) <= width else "…" + line[len(line) - width + 1 :]


def _fit(nodes: list[tuple[Node, str]], rows: int | None) -> tuple[list[tuple[Node, str]], int]:
    """At most `rows` of the nodes, the root and running ones first, and how many are hidden."""
    if rows is None or len(nodes) <= rows:
        return nodes, 0
    running = [row for row in nodes if row[0].state is not State.ENDED or row[0].parent is None]
    kept = {row[0].index for row in (running[:rows] or nodes[:rows])}
    return [row for row in nodes if row[0].index in kept], len(nodes) - len(kept)


def _facts(tree: Tree, node: Node, now: float | None) -> tuple[str, str, str]:
    """Tokens, seconds and state of a node."""
    ended = (tree.seconds if now is None else now) if node.ended_s is None else node.ended_s
    return (
        f"{node.usage.tokens + node.meter.tokens:,} tok",
        f"{max(0.0, ended - node.started_s):.1f} s",
        status(node) + mishaps(node),
    )


def remaining(run: TreeRun) -> str:
    """The unspent budget of a running tree."""
    used, budget = run.tree.usage, run.budget
    in_flight = sum(node.meter.tokens for node in run.tree.nodes)
    spent = used.tokens + used.lost_tokens + in_flight
    parts = [f"{budget.tokens - spent:,} tokens", counted(budget.nodes - len(run.tree.nodes), "node")]
    if budget.seconds is not None:
        parts.append(f"{max(0.0, budget.seconds - run.now()):.0f} s")
    if budget.money is not None:
        parts.append(f"${budget.money - used.dollars:.4f}")
    return "left: " + " · ".join(parts)


async def watch_tree(run: TreeRun, console: Console) -> None:
    """Run the tree and redraw it until it ends."""

    def frame() -> Group:
        rows = max(3, console.size.height - 4)
        grown = table(run.tree, width=console.size.width, rows=rows, now=run.now(), words=True)
        return Group(grown, Text(remaining(run), style="dim"))

    with Live(console=console, auto_refresh=False, transient=True) as screen:

        async def redraw() -> None:
            while True:
                screen.update(frame(), refresh=True)
                await anyio.sleep(1 / FRAMES_PER_SECOND)

        async with task_group() as group:
            group.start_soon(redraw)
            try:
                await run.run()
            finally:
                group.cancel_scope.cancel()


def summary(tree: Tree, *, width: int) -> Group:
    """A finished tree, its answer and its totals."""
    answer = [Text(no_answer(tree), style="red")] if tree.answer is None else [Text(tree.answer, style="bold")]
    begun = unfinished(tree)
    if begun:
        answer += [Text("its root had written so far:", style="dim"), Text(begun)]
    notes = [Text(line, style="dim") for line in problems(tree)]
    return Group(table(tree, width=width), *notes, Text(), *answer, Text(), Text(totals(tree), style="dim"))


def no_answer(tree: Tree) -> str:
    silent = tree.root.stop is Stop.DEADLINE and not tree.usage.tokens
    return "no answer: no token had arrived when the time was up; give it more --seconds" if silent else "no answer"


def unfinished(tree: Tree) -> str:
    """What the root of a tree without an answer had written when its last call was cancelled."""
    root = tree.root
    if tree.answer is not None or not root.turns or root.turns[-1].finish != "cut":
        return ""
    written = [piece.text for piece in root.pieces if piece.sampled]
    return written[-1].strip() if written else ""


def problems(tree: Tree, *, limit: int = 5) -> list[str]:
    """Refused grants and failed nodes, each with its reason. Goals that begin alike are cut where they differ."""
    refused = [refusal for node in tree.nodes for turn in node.turns for refusal in turn.refusals]
    found = [("refused", refusal.goal, refusal.reason) for refusal in refused]
    found += [(f"node {node.index} failed", node.goal, node.error) for node in tree.nodes if node.error]
    shown, hidden = found[:limit], len(found) - limit
    goals = cut_apart([goal for _, goal, _ in shown], [GOAL_WIDTH] * len(shown))
    lines = [f"{what}: {goal}: {why}" for (what, _, why), goal in zip(shown, goals, strict=True)]
    return lines if hidden <= 0 else [*lines, f"… and {hidden:,} more"]
