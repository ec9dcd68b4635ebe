"""How the tokens granted to clones follow the sizes of their goals.

Only clones with siblings of another size say anything about it. Sizes are those that the runtime measured: in the unit
of the taskset, or in characters of the goal and the texts that came with it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ramet.types import Node, Tree

CLASSES = ("smaller", "larger")


def grant_metrics(trees: Sequence[Tree]) -> dict[str, Any]:
    """`grant_by_size`: Spearman's correlation of grant and size; `granted_by_size`: mean grants of both classes.

    A clone is `smaller` or `larger` than the mean size of all clones of its parent. None: there is nothing to compare.
    """
    families = [family for tree in trees for family in _families(tree)]
    clones = [clone for family in families for clone in family]
    granted: dict[str, list[int]] = {name: [] for name in CLASSES}
    for family in families:
        middle = math.fsum(_size(clone) for clone in family) / len(family)
        for clone in family:
            if _size(clone) != middle:
                granted["smaller" if _size(clone) < middle else "larger"].append(clone.grant)
    return {
        "grant_by_size": spearman([_size(clone) for clone in clones], [clone.grant for clone in clones]),
        "granted_by_size": {name: sum(grants) / len(grants) if grants else None for name, grants in granted.items()},
    }


def _families(tree: Tree) -> list[list[Node]]:
    """The clones of each parent, where their sizes are known and not all equal."""
    clones: defaultdict[int, list[Node]] = defaultdict(list)
    for node in tree.nodes:
        if node.parent is not None and node.size is not None:
            clones[node.parent].append(node)
    return [family for family in clones.values() if len({clone.size for clone in family}) > 1]


def _size(clone: Node) -> float:
    return clone.size or 0.0


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """The correlation of ranks; None if there are fewer than two pairs or one side is constant.

    Example:
        spearman([1, 2, 3], [10, 30, 20])  # 0.5
    """
    ranks = [_ranks(values) for values in (first, second)]
    middle = (len(first) + 1) / 2
    a, b = ([rank - middle for rank in side] for side in ranks)
    spread = math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / spread if spread else None


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1 up; equal values share the mean of their ranks."""
    places: defaultdict[float, list[int]] = defaultdict(list)
    for place, value in enumerate(sorted(values), start=1):
        places[value].append(place)
    return [(places[value][0] + places[value][-1]) / 2 for value in values]
