"""Plan crafts: totals from the top down, crafts from the bottom up, and a budget for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ramet.budget import Budget
from ramet.interfaces import Do
from ramet.tasks.craft.world import Book, CraftWorld, list_targets, verdict_on
from ramet.types import Node, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How an item is made: the exact ingredients of one craft, and how many it makes."""

    takes: Mapping[str, int]
    makes: int


Ways = Mapping[str, Way]


def ways_of(book: Book) -> dict[str, Way]:
    """The ways of a book in which every item has one recipe without a choice."""
    return {
        item: Way(takes={choices[0]: amount for choices, amount in recipe.slots}, makes=recipe.makes)
        for item, (recipe, *_) in book.recipes.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Totals: how often each item is crafted, ingredients first, and how many of each item are needed."""

    crafts: Mapping[str, int]
    needs: Mapping[str, int]


def work_out(ways: Ways, targets: Mapping[str, int], given: Sequence[str] = ()) -> Sums:
    """Totals for the targets, from base materials and from `given` items, which are not crafted.

    Example:
        work_out({"b": Way(takes={"a": 2}, makes=3)}, {"b": 4}).crafts  # {"b": 2}
    """
    order = bottom_up(ways, targets, given)
    needs = Counter(targets)
    crafts: dict[str, int] = {}
    for item in reversed(order):
        way = ways[item]
        crafts[item] = -(-needs[item] // way.makes)
        for ingredient, amount in way.takes.items():
            needs[ingredient] += amount * crafts[item]
    return Sums(crafts={item: crafts[item] for item in order}, needs=needs)


def bottom_up(ways: Ways, targets: Mapping[str, int], given: Sequence[str] = ()) -> list[str]:
    """Every item to craft, ingredients first."""
    order: dict[str, None] = {}

    def visit(item: str) -> None:
        if item not in order and item in ways and item not in given:
            for ingredient in ways[item].takes:
                visit(ingredient)
            order[item] = None

    for target in targets:
        visit(target)
    return list(order)


def tree_sizes(ways: Ways) -> dict[str, int]:
    """Of every item: the nodes of a tree in which each ingredient that has to be crafted is made by a clone.

    Example:
        tree_sizes({"b": Way(takes={"a": 2}, makes=3), "c": Way(takes={"b": 1}, makes=1)})  # {"b": 1, "c": 2}
    """
    sizes: dict[str, int] = {}
    for item in bottom_up(ways, dict.fromkeys(ways, 1)):
        sizes[item] = 1 + sum(sizes.get(ingredient, 0) for ingredient in ways[item].takes)
    return sizes


def craft_calls(ways: Ways, sums: Sums) -> list[Do]:
    """The crafts as calls, ingredients first."""
    return [craft_call(ways, item, times) for item, times in sums.crafts.items()]


def craft_call(ways: Ways, item: str, times: int) -> Do:
    """The call that crafts an item so many times."""
    takes = {ingredient: amount * times for ingredient, amount in ways[item].takes.items()}
    return Do(name="craft", arguments={"ingredients": takes, "target": item, "count": times * ways[item].makes})


def craft_line(ways: Ways, item: str, need: int, *, times: int | None = None) -> str:
    """What an item takes, as a line of a thought.

    Example:
        craft_line({"b": Way(takes={"a": 2}, makes=3)}, "b", 4)  # "4x b: 2 crafts of 3 from 4x a"
    """
    way = ways[item]
    times = -(-need // way.makes) if times is None else times
    takes = {ingredient: amount * times for ingredient, amount in way.takes.items()}
    return f"{need}x {item}: {times} {'craft' if times == 1 else 'crafts'} of {way.makes} from {list_targets(takes)}"


MANY_CRAFTS = 150  # of different items: so many are needed only in the deepest bucket


def craft_budget(ways: Ways, targets: Mapping[str, int]) -> Budget:
    """Enough for one node to craft everything, and for clones to craft parts of it twice.

    Nodes lend equal shares, so that a clone of a clone gets a small part of the whole. Of goals with many crafts even
    such a part is long: their trees get three times as much.
    """
    crafts = len(bottom_up(ways, targets))
    return Budget(
        tokens=(4000 + 1200 * crafts) * (3 if crafts > MANY_CRAFTS else 1),
        nodes=64,
        depth=6,
        turns=16 + crafts,
        window=4096 + 300 * crafts,
        output_bytes=16384,
        reserve=64,
    )


def score_of(task: Task, world: CraftWorld, crafts: Sequence[Do]) -> float:
    """The score of a root that makes these crafts and answers."""
    node = Node(index=0, parent=None, depth=0, path=(), goal=task.question, grant=0, answer="done")
    world.spawned(node)
    for do in crafts:
        world.functions[do.name](**do.arguments)
    world.ended(node)
    verdict = verdict_on(task, world, node)
    return verdict.score if verdict else 0.0
