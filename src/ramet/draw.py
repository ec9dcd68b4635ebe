"""A tree as text, for people and terminals."""

from __future__ import annotations

from ramet.types import Node, State, Stop, Tree, printable

GOAL_WIDTH = 46


def draw(tree: Tree) -> str:
    """The tree: one line per node, then a line of totals."""
    rows = walk(tree)
    labels = [prefix + one_line(node.goal, GOAL_WIDTH) for node, prefix in rows]
    width = max(len(label) for label in labels) if labels else 0
    lines = [f"{label:<{width}}  {figures(tree, node)}" for label, (node, _) in zip(labels, rows, strict=True)]
    return "\n".join([*lines, totals(tree)])


def walk(tree: Tree) -> list[tuple[Node, str]]:
    """Nodes in depth-first order, each with the branch lines to draw before it."""
    children: dict[int | None, list[Node]] = {}
    for node in tree.nodes:
        children.setdefault(node.parent, []).append(node)
    rows: list[tuple[Node, str]] = []
    stack: list[tuple[Node, str, str]] = [(node, "", "") for node in reversed(children.get(None, []))]
    while stack:
        node, own, below = stack.pop()
        rows.append((node, own))
        kids = children.get(node.index, [])
        for i, kid in reversed(list(enumerate(kids))):
            last = i == len(kids) - 1
            stack.append((kid, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  ")))
    return rows


def figures(tree: Tree, node: Node) -> str:
    """Tokens, seconds and state of one node, in columns."""
    tokens = node.usage.tokens + node.meter.tokens
    ended = tree.seconds if node.ended_s is None else node.ended_s
    refused = sum(len(turn.refusals) for turn in node.turns)
    extra = f", {refused} refused" if refused else ""
    return f"{tokens:>7,} tok {max(0.0, ended - node.started_s):>6.1f} s  {status(node)}{extra}"


def status(node: Node) -> str:
    """How the node ended, whether it answered, and its score."""
    if node.state is not State.ENDED or node.stop is None:
        return str(node.state)
    if node.stop is Stop.ANSWERED:
        ending = "answered"
    else:
        ending = f"{node.stop}: no answer" if node.answer is None else f"{node.stop}: partial answer"
    if node.verdict is None:
        return ending
    how = "" if node.verdict.how == "exact" else f" by {node.verdict.how}"
    return f"{ending}, scored {node.verdict.score:g}{how}"


def totals(tree: Tree) -> str:
    """What was used of the budget."""
    used, budget = tree.usage, tree.budget
    parts = [f"{used.tokens:,} of {budget.tokens:,} tokens"]
    if used.lost_tokens:
        parts.append(f"{used.lost_tokens:,} reserved, not used")
    parts.append(f"{used.critical_path_tokens:,} on the critical path")
    parts.append(f"{len(tree.nodes)} of {budget.nodes} nodes")
    if budget.money is not None:
        parts.append(f"${used.dollars:.4f} of ${budget.money:g}")
    limit = "" if budget.seconds is None else f" of {budget.seconds:g}"
    parts.append(f"{tree.seconds:.1f}{limit} s")
    return " · ".join(parts)


def one_line(text: str, width: int) -> str:
    """The text without line breaks and control characters, shortened to `width`."""
    text = printable(" ".join(text.split()))
    return text if len(text) <= width else text[: width - 1] + "…"
