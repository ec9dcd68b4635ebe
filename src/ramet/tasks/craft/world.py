"""Crafting: recipes, one inventory that all nodes of a tree share, and what each node added to it.

A node is graded by the inventory when it was spawned and when it ended. So siblings affect each other: one can use up
what another made, which then fails, or make items for it, which then succeeds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ramet.agent.wording import cut
from ramet.interfaces import HostFunction, World
from ramet.types import Node, Task, Verdict

TARGET = re.compile(r"(?<!\w)(\d{1,9})\s?[x×]\s+([A-Za-z_]\w*)")
RULES = (
    "What is asked for comes on top of what is already held. A recipe makes a fixed number at a time, so more than "
    "was asked for may have to be made."
)
NO_ITEM = "there is no item"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The ingredients of one craft and how many it makes. A slot is an amount of its items in any mixture.

    Example:
        Recipe(slots=((("oak_planks", "birch_planks"), 2), (("string",), 1)), makes=4)
    """

    slots: tuple[tuple[tuple[str, ...], int], ...]
    makes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """The recipes of a world, and the depth of every item. Base materials have no recipe and depth 0."""

    recipes: Mapping[str, tuple[Recipe, ...]]
    depths: Mapping[str, int]


def parse_targets(goal: str, items: Mapping[str, object]) -> dict[str, int]:
    """The items a goal asks for: every `Nx item` whose item exists.

    Example:
        parse_targets("Craft 3x m1_i2, 2x gold", {"m1_i2": 2})  # {"m1_i2": 3}
    """
    return {item: number for item, number in parse_amounts(goal).items() if item in items}


def parse_amounts(goal: str) -> dict[str, int]:
    """Every `Nx item` of a goal, whether the item exists or not."""
    amounts: dict[str, int] = {}
    for number, item in TARGET.findall(goal):
        if int(number):
            amounts[item] = amounts.get(item, 0) + int(number)
    return amounts


def list_targets(targets: Mapping[str, int]) -> str:
    return ", ".join(f"{number}x {item}" for item, number in targets.items())


def goal_for(targets: Mapping[str, int]) -> str:
    """The goal for these targets, in the common wording."""
    return f"Craft the following items: {list_targets(targets)}"


def covers(goal: str, other: str, items: Mapping[str, object]) -> bool:
    """Whether a goal asks for all the items of another one, in the same number or more.

    Example:
        covers("Craft 3x plank, 1x stick", "make 2x plank", {"plank": 1, "stick": 2})  # True
    """
    asked, wanted = parse_targets(goal, items), parse_targets(other, items)
    return bool(wanted) and all(asked.get(item, 0) >= number for item, number in wanted.items())


def why_impossible(goal: str, book: Book) -> str | None:
    """Why a goal cannot be met: it names no item that exists, or one that has no recipe; None if it can be."""
    targets = parse_targets(goal, book.depths)
    for item in targets:
        if item not in book.recipes:
            return f"{item} is a base material: it cannot be crafted"
    if targets:
        return None
    unknown = next(iter(parse_amounts(goal)), None)
    return "the goal names no item: write 2x NAME" if unknown is None else f"{NO_ITEM} {unknown}"


class CraftWorld:
    """Recipes and an inventory. It records the inventory when nodes are spawned and end, for their verdicts."""

    def __init__(self, book: Book, inventory: Mapping[str, int]) -> None:
        self.book = book
        self.inventory = dict(inventory)
        self.context: Mapping[str, str] = {}
        self.functions: Mapping[str, HostFunction] = {
            "craft": self.craft,
            "get_info": self.get_info,
            "view_inventory": self.view_inventory,
        }
        self.order_matters = True  # calls can be repeated in the same order; nodes share the inventory
        self.actions = ("craft",)  # the other functions only look something up
        self._before: dict[int, dict[str, int]] = {}
        self._after: dict[int, dict[str, int]] = {}

    def craft(self, ingredients: dict[str, int], target: str, count: int) -> str:
        """Craft count of target, a multiple of its recipe's result_count, from the exact total of every ingredient."""
        problem = _mistyped(ingredients, target, count) or self._problem(ingredients, target, count)
        if problem is not None:
            return f"error: {problem}"
        for item, amount in ingredients.items():
            self.inventory[item] -= amount
        self.inventory[target] = self.inventory.get(target, 0) + count
        return f"crafted {count}x {target}, {self.inventory[target]} held now"

    def get_info(self, items: list[str]) -> list[dict[str, Any]]:
        """Recipes of each item and how many are held; an ingredient written "a or b" takes either."""
        names = cast(object, items)
        if isinstance(names, str):
            names = [names]
        if not isinstance(names, list):
            raise ValueError('items is a list of names, like ["a", "b"]')
        return [self._info(str(item)) for item in cast(list[object], names)]

    def view_inventory(self) -> dict[str, int]:
        """Everything held. You and all clones share it; what a goal asks for comes on top of it."""
        return {item: number for item, number in self.inventory.items() if number}

    def spawned(self, node: Node) -> None:
        self._before[node.index] = dict(self.inventory)

    def ended(self, node: Node) -> None:
        self._after[node.index] = dict(self.inventory)

    def gained(self, node: Node, item: str) -> int:
        """How many of an item were added since the node was spawned, until it ended or until now."""
        after = self._after.get(node.index, self.inventory)
        return after.get(item, 0) - self._before[node.index].get(item, 0)

    def _info(self, item: str) -> dict[str, Any]:
        if item not in self.book.depths:
            return {"item": cut(item, 60), "error": "there is no such item"}
        recipes = self.book.recipes.get(item, ())
        return {
            "item": item,
            "can_craft": bool(recipes),
            "is_base": not recipes,
            "in_inventory": self.inventory.get(item, 0),
            "crafting_depth": self.book.depths[item],
            "recipes": [
                {
                    "ingredients": {" or ".join(choices): amount for choices, amount in recipe.slots},
                    "result_count": recipe.makes,
                }
                for recipe in recipes
            ],
        }

    def _problem(self, ingredients: Mapping[str, int], target: str, count: int) -> str | None:
        """Why this cannot be crafted, or None."""
        if target not in self.book.depths:
            return f"there is no item {cut(target, 60)!r}"
        recipes = self.book.recipes.get(target)
        if not recipes:
            return f"{target} is a base material: it has no recipe"
        misfits = [_misfit(recipe, ingredients, target, count) for recipe in recipes]
        if None not in misfits:
            return (
                misfits[0] if len(misfits) == 1 else f"none of the {len(misfits)} recipes of {target} takes just that"
            )
        return self._lacking(ingredients)

    def _lacking(self, ingredients: Mapping[str, int]) -> str | None:
        for item, amount in ingredients.items():
            if self.inventory.get(item, 0) < amount:
                return f"{amount}x {item} needed, {self.inventory.get(item, 0)} held"
        return None


def _mistyped(ingredients: object, target: object, count: object) -> str | None:
    """Why the arguments are invalid, or None."""
    if not isinstance(target, str):
        return "target is the name of one item"
    if not _is_amount(count):
        return "count is a whole number from 1 up"
    if not isinstance(ingredients, dict):
        return 'ingredients is an object of amounts, like {"a": 2, "b": 1}'
    for item, amount in cast(dict[object, object], ingredients).items():
        if not isinstance(item, str) or not _is_amount(amount):
            return f"the amount of {cut(str(item), 60)!r} is a whole number from 1 up"
    return None


def _is_amount(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _misfit(recipe: Recipe, ingredients: Mapping[str, int], target: str, count: int) -> str | None:
    """Why these are not the ingredients of `count` items by this recipe, or None."""
    if count % recipe.makes:
        return f"{target} is made {recipe.makes} at a time: count must be a multiple of {recipe.makes}, not {count}"
    for item in ingredients:
        if not any(item in choices for choices, _ in recipe.slots):
            return f"{cut(item, 60)!r} is not an ingredient of {target}"
    for choices, amount in recipe.slots:
        wanted, given = amount * count // recipe.makes, _given(ingredients, choices)
        if given != wanted:
            return f"{count}x {target} takes exactly {wanted}x {' or '.join(choices)}, not {given}"
    return None


def _given(ingredients: Mapping[str, int], choices: Iterable[str]) -> int:
    return sum(ingredients.get(item, 0) for item in choices)


def targets_of(task: Task) -> dict[str, int]:
    """The targets of a task, from its reference."""
    return dict(cast(Mapping[str, Mapping[str, int]], task.reference)["targets"])


def inventory_of(task: Task) -> dict[str, int]:
    """The initial inventory of a task, from its reference."""
    return dict(cast(Mapping[str, Mapping[str, int]], task.reference)["inventory"])


def verdict_on(task: Task, world: World, node: Node) -> Verdict | None:
    """1 if the node answered and gained what its goal asks for, else 0; None if its goal names no item."""
    if not isinstance(world, CraftWorld):
        raise AssertionError("a crafting task is graded by the world it was played in")
    targets = targets_of(task) if node.parent is None else parse_targets(node.goal, world.book.depths)
    if not targets:
        return None
    if not (node.answer or "").strip():
        return Verdict(score=0.0, how="exact", reason="no answer")
    short = {item: wanted - world.gained(node, item) for item, wanted in targets.items()}
    short = {item: number for item, number in short.items() if number > 0}
    return Verdict(score=float(not short), how="exact", reason=f"short of {list_targets(short)}" if short else "")
