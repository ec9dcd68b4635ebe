"""What a node of the uniform oracle leaves to clones, in how many groups, and how many tokens that takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ramet.interfaces import Ask
from ramet.tasks.craft.plan import Ways, work_out
from ramet.tasks.craft.world import goal_for, list_targets
from ramet.tasks.split import Split, chunks

OWN_TIER = 1  # items of this tier are crafted by the node that needs them, items above it by clones
# About a third more than nodes generate with the tokenizer of SmolLM2, and a reserve: what is not used flows back.
TOKENS_A_NODE, TOKENS_A_CRAFT, TOKENS_A_PART = 250, 130, 40

Items = tuple[tuple[str, int], ...]  # targets with their numbers


def parts_of(ways: Ways, tiers: Mapping[str, int], targets: Mapping[str, int]) -> dict[str, int]:
    """The ingredients of the targets that clones make, with their numbers.

    Example:
        With ways {"c": 2x b, "b": 1x a, "a": 3x ore} and tiers ore 0, a 1, b 2, c 3, the parts of 2x c are {"b": 4},
        and 4x b has none: the node crafts a itself.
    """
    takes = dict.fromkeys(ingredient for item in targets for ingredient in ways[item].takes)
    parts = [item for item in takes if tiers[item] > OWN_TIER and item not in targets]
    needs = work_out(ways, targets, parts).needs
    return {item: needs[item] for item in parts}


def deal(parts: Sequence[str], *, per_clone: int, tiers: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Groups of at most `per_clone` items, of nearly equal size, with items of similar tiers together.

    Items of one tier share ingredients, which a clone that makes them together makes once.

    Example:
        deal(["a", "b", "c"], per_clone=1, tiers={"a": 2, "b": 4, "c": 3})  # [("a",), ("b",), ("c",)]
        deal(["a", "b", "c"], per_clone=2, tiers={"a": 2, "b": 4, "c": 3})  # [("b",), ("c", "a")]
    """
    if per_clone == 1:
        return [(item,) for item in parts]
    ordered = sorted(parts, key=lambda item: -tiers[item])
    number = -(-len(ordered) // per_clone)
    edges = [len(ordered) * place // number for place in range(number + 1)] if number else [0]
    return [tuple(ordered[first:last]) for first, last in pairwise(edges)]


def split_targets(ways: Ways, targets: Mapping[str, int], parts: int) -> Split:
    """The craftable ingredients of the targets in at most `parts` goals; the targets themselves are left.

    Example:
        With ways {"c": 2x b and 1x a, "b": 1x ore, "a": 3x ore}, 2x c in 4 parts has the goals 4x b and 2x a.
    """
    takes = dict.fromkeys(ingredient for item in targets for ingredient in ways[item].takes)
    made = [item for item in takes if item in ways and item not in targets]
    needs = work_out(ways, targets, made).needs
    groups = [[made[place] for place in chunk] for chunk in chunks([1.0] * len(made), parts)] if made else []
    if len(groups) < 2:
        return Split()
    asks = tuple(Ask(goal=goal_for({item: needs[item] for item in group})) for group in groups)
    return Split(parts=asks, combine=f"What the parts make is for {list_targets(targets)}.")


class Needs:
    """Estimates how many tokens a node and all clones below it generate for their targets."""

    def __init__(self, ways: Ways, tiers: Mapping[str, int], *, per_clone: int) -> None:
        self.ways = ways
        self.tiers = tiers
        self.per_clone = per_clone
        self._known: dict[Items, int] = {}

    def tokens(self, targets: Mapping[str, int]) -> int:
        """The estimate for a node with these targets."""
        key = tuple(targets.items())
        if key not in self._known:
            self._known[key] = self._estimate(targets)
        return self._known[key]

    def _estimate(self, targets: Mapping[str, int]) -> int:
        parts = parts_of(self.ways, self.tiers, targets)
        crafts = len(work_out(self.ways, targets, [*parts]).crafts)
        groups = deal([*parts], per_clone=self.per_clone, tiers=self.tiers)
        below = sum(self.tokens({item: parts[item] for item in group}) for group in groups)
        return TOKENS_A_NODE + TOKENS_A_CRAFT * crafts + TOKENS_A_PART * len(parts) + below
