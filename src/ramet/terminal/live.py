"""A tree in the terminal: while it runs, and when it has ended."""

from __future__ import annotations

import anyio
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ramet.agent.tree import TreeRun
from ramet.draw import one_line, status, totals, walk
from ramet.types import Node, State, Stop, Tree

FRAMES_PER_SECOND = 8
COLOURS = {Stop.ANSWERED: "green", Stop.ERROR: "red", Stop.CANCELLED: "red"}


def colour(node: Node) -> str:
    if node.state is not State.ENDED or node.stop is None:
        return "cyan"
    return COLOURS.get(node.stop, "yellow")


def table(tree: Tree, *, width: int, rows: int | None = None, now: float | None = None) -> Table:
    """One line per node. If there are more than `rows`, ended nodes are hidden."""
    shown, hidden = _fit(walk(tree), rows)
    facts = [_facts(tree, node, now) for node, _ in shown]
    taken = sum(max(map(len, column)) + 2 for column in zip(*facts, strict=True))  # the goals get the rest
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    for _ in range(2):
        grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    for (node, prefix), (tokens, seconds, state) in zip(shown, facts, strict=True):
        goal = one_line(node.goal, max(10, min(72, width - taken - 1) - len(prefix)))
        grid.add_row(Text(prefix, style="dim") + Text(goal), tokens, seconds, Text(state, style=colour(node)))
    if hidden:
        grid.add_row(Text(f"… and {hidden:,} more nodes", style="dim"), "", "", "")
    return grid


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
    refused = sum(len(turn.refusals) for turn in node.turns)
    return (
        f"{node.usage.tokens + node.meter.tokens:,} tok",
        f"{max(0.0, ended - node.started_s):.1f} s",
        status(node) + (f", {refused} refused" if refused else ""),
    )


def remaining(run: TreeRun) -> str:
    """The unspent budget of a running tree."""
    used, budget = run.tree.usage, run.budget
    in_flight = sum(node.meter.tokens for node in run.tree.nodes)
    spent = used.tokens + used.lost_tokens + in_flight
    parts = [f"{budget.tokens - spent:,} tokens", f"{budget.nodes - len(run.tree.nodes):,} nodes"]
    if budget.seconds is not None:
        parts.append(f"{max(0.0, budget.seconds - run.now()):.0f} s")
    if budget.money is not None:
        parts.append(f"${budget.money - used.dollars:.4f}")
    return "left: " + " · ".join(parts)


async def watch_tree(run: TreeRun, console: Console) -> None:
    """Run the tree and redraw it until it ends."""

    def frame() -> Group:
        rows = max(3, console.size.height - 4)
        return Group(
            table(run.tree, width=console.size.width, rows=rows, now=run.now()), Text(remaining(run), style="dim")
        )

    with Live(console=console, auto_refresh=False, transient=True) as screen:

        async def redraw() -> None:
            while True:
                screen.update(frame(), refresh=True)
                await anyio.sleep(1 / FRAMES_PER_SECOND)

        async with anyio.create_task_group() as group:
            group.start_soon(redraw)
            try:
                await run.run()
            finally:
                group.cancel_scope.cancel()


def summary(tree: Tree, *, width: int) -> Group:
    """A finished tree, its answer and its totals."""
    answer = Text("no answer", style="red") if tree.answer is None else Text(tree.answer, style="bold")
    notes = [Text(line, style="dim") for line in problems(tree)]
    return Group(table(tree, width=width), *notes, Text(), answer, Text(), Text(totals(tree), style="dim"))


def problems(tree: Tree, *, limit: int = 5) -> list[str]:
    """Refused grants and failed nodes, each with its reason."""
    lines = [
        f"refused: {one_line(refusal.goal, 40)}: {refusal.reason}"
        for node in tree.nodes
        for turn in node.turns
        for refusal in turn.refusals
    ]
    lines += [f"failed: {one_line(node.goal, 40)}: {node.error}" for node in tree.nodes if node.error]
    hidden = len(lines) - limit
    return lines if hidden <= 0 else [*lines[:limit], f"… and {hidden:,} more"]
