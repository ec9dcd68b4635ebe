"""Finished trees made of numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hypothesis import strategies as st

from ramet.budget import Budget
from ramet.credit import Credits, Group
from ramet.types import Node, Piece, Stop, Task, Tree, Turn, Usage, Verdict


def plant(
    name: str,
    scores: Sequence[float | None],
    parents: Sequence[int | None] = (None,),
    *,
    task: str = "sums/1",
    tokens: Sequence[int] | None = None,
    words: Sequence[str] | None = None,
    goals: Sequence[str] | None = None,
    prompts: Sequence[int] | None = None,
    inherited: Collection[int] = (),
    repairs: int = 0,
    dialect: str = "tools",
) -> Tree:
    """A tree with these scores and parents.

    `words` is the text of each node, `prompts` how many tokens it was given, `inherited` the nodes that have the root's
    verdict, `repairs` the number of the root's repaired calls.
    """
    tree = Tree(id=name, task=Task(question="1+1", id=task), budget=Budget(), dialect=dialect)
    for index, (score, parent) in enumerate(zip(scores, parents, strict=True)):
        above = None if parent is None else tree.nodes[parent]
        ordinal = sum(node.parent == parent for node in tree.nodes)
        node = Node(
            index=index,
            parent=parent,
            depth=0 if above is None else above.depth + 1,
            path=() if above is None else (*above.path, ordinal),
            goal=goals[index] if goals else "the same goal for all",
            grant=100,
            stop=Stop.ANSWERED,
            verdict=None if score is None else Verdict(score=score, how="root" if index in inherited else "exact"),
            usage=Usage(tokens=tokens[index] if tokens else 10),
        )
        text = words[index] if words else "Answer: 2"
        given = (7,) * (prompts[index] if prompts else 0)
        node.pieces = [
            Piece(sampled=False, text="a prompt", token_ids=given),
            Piece(sampled=True, text=text, token_ids=(1, 2)),
        ]
        if parent is None:
            node.turns = [Turn(tokens=2, finish="stop", started_s=0.0, sampled_s=0.0, repairs=repairs)]
        tree.nodes.append(node)
    return tree


def group(*trees: Tree) -> Group:
    return Group(key=trees[0].task.id, trees=trees)


def singles(*scores: float, task: str = "sums/1") -> Group:
    """A group of trees that have only a root: s0, s1, ..."""
    return group(*(plant(f"{task}:s{i}", [score], task=task) for i, score in enumerate(scores)))


def column(credits: Credits, name: str) -> list[float]:
    """One number of every node, in the order of the batch."""
    return [getattr(credit, name) for credit in credits.by_node.values()]


a_node = st.tuples(
    st.integers(0, 7),
    st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.7, 1.0]),
    st.sampled_from([0, 100, 500, 700, 3000]),
    st.sampled_from(["Answer: 2", "hm", ""]),
)
a_tree = st.tuples(st.lists(a_node, min_size=1, max_size=8), st.integers(0, 3))


def _grow(name: str, task: str, drawn: Sequence[tuple[int, float, int, str]], repairs: int) -> Tree:
    parents = [None if i == 0 else above % i for i, (above, _, _, _) in enumerate(drawn)]
    _, scores, tokens, words = zip(*drawn, strict=True)
    return plant(name, scores, parents, task=task, tokens=tokens, words=words, repairs=repairs)


def _batch(drawn: Sequence[Sequence[tuple[list[tuple[int, float, int, str]], int]]]) -> list[Group]:
    return [
        group(*(_grow(f"g{g}t{i}", f"sums/{g}", nodes, repairs) for i, (nodes, repairs) in enumerate(members)))
        for g, members in enumerate(drawn)
    ]


# One to three groups of two to four trees of any shape, scores and lengths.
batches = st.lists(st.lists(a_tree, min_size=2, max_size=4), min_size=1, max_size=3).map(_batch)
