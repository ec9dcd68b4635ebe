"""A tree as text, for people and terminals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from ramet.types import Node, State, Stop, Tree, printable

GOAL_WIDTH = 46
HEAD = 3  # a text that is cut in the middle keeps one part in three of its beginning


def draw(tree: Tree) -> str:
    """The tree: one line per node, then a line of totals."""
    rows = walk(tree)
    labels = numbered(tree, width=GOAL_WIDTH)
    width = max(len(label) for label in labels) if labels else 0
    lines = [f"{label:<{width}}  {figures(tree, node)}" for label, (node, _) in zip(labels, rows, strict=True)]
    return "\n".join([*lines, totals(tree)])


def numbered(tree: Tree, *, width: int) -> list[str]:
    """For each node of `walk`: its number, as `--node` takes it, its branch lines, and its goal."""
    rows = walk(tree)
    digits = len(str(len(rows) - 1))
    goals = cut_apart([node.goal for node, _ in rows], [width] * len(rows))
    return [f"{node.index:>{digits}}  {prefix}{goal}" for (node, prefix), goal in zip(rows, goals, strict=True)]


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
    return f"{tokens:>7,} tok {max(0.0, ended - node.started_s):>6.1f} s  {status(node)}{mishaps(node)}"


def mishaps(node: Node) -> str:
    """How many clones the node was refused, turns were cut off and calls failed; empty if all went well."""
    refused = sum(len(turn.refusals) for turn in node.turns)
    faulty = [turn for turn in node.turns if turn.faults > len(turn.refusals)]  # a refused clone is a fault too
    cut_off = sum(turn.finish == "length" for turn in faulty)  # that it was cut off is one of its faults
    failed = sum(turn.faults - len(turn.refusals) for turn in faulty) - cut_off
    return (
        (f", {refused} refused" if refused else "")
        + (f", {counted(cut_off, 'turn')} cut off" if cut_off else "")
        + (f", {counted(failed, 'failed call')}" if failed else "")
    )


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
        parts.append(f"{used.lost_tokens:,} lost to cancelled calls")
    parts.append(f"{used.critical_path_tokens:,} on the critical path")
    parts.append(f"{len(tree.nodes)} of {counted(budget.nodes, 'node')}")
    if budget.money is not None:
        parts.append(f"${used.dollars:.4f} of ${budget.money:g}")
    limit = "" if budget.seconds is None else f" of {budget.seconds:g}"
    parts.append(f"{tree.seconds:.1f}{limit} s")
    return " · ".join(parts)


def counted(number: int, noun: str) -> str:
    """A number and what is counted.

    Example:
        counted(1, "node"), counted(2000, "node")  # "1 node", "2,000 nodes"
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def one_line(text: str, width: int) -> str:
    """The text without line breaks and control characters, shortened to `width`."""
    text = printable(" ".join(text.split()))
    return text if len(text) <= width else text[: width - 1] + "…"


def cut_apart(texts: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Each text on one line, shortened to its width. Texts that begin alike are cut where they differ.

    Example:
        cut_apart(["Count the ships in Oslo", "Count the ships in Rome"], [14, 14])  # ["Coun…in Oslo", "Coun…in Rome"]
    """
    lines = [one_line(text, len(text)) for text in texts]
    shown = [one_line(line, width) for line, width in zip(lines, widths, strict=True)]
    _part(lines, widths, shown)
    return shown


def _part(lines: Sequence[str], widths: Sequence[int], shown: list[str]) -> None:
    """Cut those lines that look alike, and are not, after the words that they have in common."""
    left = [list(range(len(lines)))]
    while left:
        alike: dict[str, list[int]] = {}
        for place in left.pop():
            alike.setdefault(shown[place], []).append(place)
        for same in alike.values():
            whole = {lines[place] for place in same}
            if len(whole) < 2:
                continue
            first_last = zip(min(whole), max(whole), strict=False)  # of sorted texts, these have least in common
            common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], first_last))
            for place in same:
                shown[place] = _cut_before(lines[place], common, widths[place])
            if len({shown[place] for place in same}) > 1:  # some may still look alike: they have more in common
                left.append(same)


def _cut_before(line: str, differs: int, width: int) -> str:
    """The beginning of the line, and as much as fits of it from the word on in which the character `differs` is."""
    head = line[: max(1, width // HEAD)]
    room = width - len(head) - 1
    start = max(line.rfind(" ", 0, differs) + 1, differs - room // 2, len(head))
    spare = room - (len(line) - start)
    if spare > 0:  # show more of what comes before, from the beginning of a word
        start = min(start, line.find(" ", max(len(head), start - spare - 1), start) + 1 or start)
    return one_line(f"{head}…{line[start : start + width]}", width)
