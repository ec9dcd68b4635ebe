"""TextCraft: crafting with Minecraft's recipes, and the synthetic goals that come with it.

In `train` and `eval` a recipe may leave a choice (any planks will do) and an item may have several recipes; every row
has a known solution, from which the oracle takes its recipes. `synth_train` and `synth_eval` have one recipe per item
and up to three targets.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from ramet.budget import Budget
from ramet.errors import ConfigError
from ramet.interfaces import Do, Oracle, World
from ramet.tasks.craft.oracle import Crafter
from ramet.tasks.craft.parts import split_targets
from ramet.tasks.craft.plan import Way, Ways, craft_budget, craft_calls, score_of, ways_of, work_out
from ramet.tasks.craft.worker import NodeWork, Worker
from ramet.tasks.craft.world import (
    RULES,
    Book,
    CraftWorld,
    Recipe,
    covers,
    goal_for,
    inventory_of,
    targets_of,
    verdict_on,
    why_impossible,
)
from ramet.tasks.files import Fields, TaskFile, data_file, task_file
from ramet.tasks.manner import make_manner
from ramet.tasks.registry import check_index, observed_sizes, split_tasks
from ramet.tasks.split import Split
from ramet.types import Node, Task, Verdict

FIELDS = (("meta", dict),)
FILES = {"train": "textcraft_train", "eval": "textcraft_eval"}
SYNTH = {"synth_train": "textcraft_synth_train", "synth_eval": "textcraft_synth_eval"}


class TextCraft:
    """Items to craft, one to three kinds per task. `data` is the folder of the `textcraft_*` files and recipes."""

    name = "textcraft"
    about = "craft Minecraft items, in one shared inventory"
    splits: Mapping[str, str] = {
        "train": "871 goals of up to 13 crafts",
        "eval": "98 goals, none of them in train",
        "synth_train": "700 goals over meaningless items, up to 12 recipes deep",
        "synth_eval": "300 goals over other target items than synth_train",
    }

    def __init__(
        self,
        *,
        data: str | Path | None = None,
        style: str = "cuts",
        mistakes: float = 0.0,
        ask_tokens: bool = False,
    ) -> None:
        if mistakes and style == "cuts":
            raise ConfigError("demonstrations with mistakes need the style uniform or mixed")
        self.data = data
        self.manner = make_manner(self.name, style=style, mistakes=mistakes, ask_tokens=ask_tokens)

    def size(self, split: str) -> int | None:
        return len(self._file(split))

    def task(self, split: str, index: int) -> Task:
        check_index(self, split, index)
        row = self._file(split)[index]
        targets = _amounts(row.meta.get("target_items"), f"{row.where}: field meta.target_items")
        inventory = _amounts(row.meta.get("initial_inventory"), f"{row.where}: field meta.initial_inventory")
        reference: Fields = {"targets": targets, "inventory": inventory}
        if split in FILES:
            reference["crafts"] = _crafts(row.meta.get("gold_trajectory"), f"{row.where}: field meta.gold_trajectory")
        question = f"{goal_for(targets)}. {RULES}"
        return Task(id=f"{self.name}:{split}/{index}", question=question, reference=reference)

    def world(self, task: Task) -> World:
        return self._world(task)

    def budget(self, task: Task) -> Budget:
        budget = craft_budget(self._ways(task), targets_of(task))
        if self.manner.style == "cuts":
            return budget
        # As in `craft`: trees of the uniform style have a node for every ingredient above tier 1.
        return replace(budget, tokens=20 * budget.tokens, nodes=1024, parent_share=0.25)

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        return verdict_on(task, world, node)

    def size_of(self, task: Task) -> float | None:
        """The depth of the deepest target: crafts on the shortest way from base materials."""
        depths = self._book(task, inventory_of(task)).depths
        return max(depths[item] for item in targets_of(task))

    def sizes(self, split: str) -> tuple[float, float] | None:
        return observed_sizes(self, split_tasks(self, split))

    def same_goal(self, task: Task, goal: str, other: str) -> bool:
        """Whether a goal asks for the items of another one in the same number or more."""
        return covers(goal, other, self._book(task, inventory_of(task)).depths)

    def impossible(self, task: Task, goal: str) -> bool:
        """Whether a goal asks for something without a recipe, or for nothing that exists."""
        return self.why_impossible(task, goal) is not None

    def why_impossible(self, task: Task, goal: str) -> str | None:
        return why_impossible(goal, self._book(task, inventory_of(task)))

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Oracle:
        """In the style of the taskset, as in `craft`. Where base materials are too few for `uniform`, it is `cuts`."""
        inventory, place = inventory_of(task), (task.id, seed)
        items, ways = self._book(task, inventory).depths, self._ways(task)
        if self.manner.is_uniform(*place):
            worker = Worker(ways, items=items, delegate=delegate, mistakes=self.manner.mistakes, seed=place)
            needs = uniform_needs(worker, targets_of(task))
            if all(inventory.get(item, 0) >= number for item, number in needs.items()):
                return worker
        return Crafter(ways, inventory, task.question, items=items, delegate=delegate, seed=place)

    def source(self, split: str) -> str:
        """The data set of a split, to know what is beyond training."""
        return "synth" if split in SYNTH else "minecraft"

    def split(self, task: Task, parts: int) -> Split:
        """For the controls of an evaluation: the ingredients of the targets, dealt out."""
        return split_targets(self._ways(task), targets_of(task), parts)

    def self_check(self, task: Task) -> tuple[float, float]:
        ways = self._ways(task)
        crafts = _calls(_gold(task)) or craft_calls(ways, work_out(ways, targets_of(task)))
        return score_of(task, self._world(task), crafts), score_of(task, self._world(task), crafts[:-1])

    def _file(self, split: str) -> TaskFile:
        return task_file(self.data, {**FILES, **SYNTH}[split], taskset=self.name, required=FIELDS)

    def _world(self, task: Task) -> CraftWorld:
        inventory = inventory_of(task)
        return CraftWorld(self._book(task, inventory), inventory)

    def _book(self, task: Task, inventory: Mapping[str, int]) -> Book:
        """The recipes; items of the inventory that are in no recipe are added."""
        name = "textcraft_recipes" if _gold(task) else "textcraft_synth_recipes"
        book = read_book(data_file(self.data, name, taskset=self.name))
        return Book(recipes=book.recipes, depths={**dict.fromkeys(inventory, 0), **book.depths})

    def _ways(self, task: Task) -> Ways:
        """One way per crafted item: that of the known solution, or its only recipe."""
        inventory, gold = inventory_of(task), _gold(task)
        if not gold:
            return ways_of(self._book(task, inventory))
        # An item that is made twice may use different ingredients: one kind for both must be enough.
        candidates = [gold_ways(gold), gold_ways(gold[::-1])]
        return next((ways for ways in candidates if _enough(ways, targets_of(task), inventory)), candidates[0])


def uniform_needs(worker: Worker, targets: Mapping[str, int]) -> Counter[str]:
    """The base materials that a node of the uniform style and all its clones use."""
    parts = NodeWork(worker, goal_for(targets), 0).parts
    own = work_out(worker.ways, targets, [*parts])
    needs = Counter({item: number for item, number in own.needs.items() if item not in worker.ways})
    for item, number in parts.items():
        needs += uniform_needs(worker, {item: number})
    return needs


def gold_ways(crafts: Sequence[Fields]) -> Ways:
    """For each item, the way it is made first.

    Example:
        gold_ways([{"ingredients": {"log": 2}, "target": "planks", "count": 8, "times": 2}])
        # {"planks": Way(takes={"log": 1}, makes=4)}
    """
    ways: dict[str, Way] = {}
    for craft in crafts:
        times = craft["times"]
        takes = {item: amount // times for item, amount in craft["ingredients"].items()}
        ways.setdefault(craft["target"], Way(takes=takes, makes=craft["count"] // times))
    return ways


def _gold(task: Task) -> list[Fields]:
    """The crafts of the known solution, from the reference of a task."""
    return cast(Fields, task.reference).get("crafts", [])


def _calls(crafts: Sequence[Fields]) -> list[Do]:
    names = ("ingredients", "target", "count")
    return [Do(name="craft", arguments={name: craft[name] for name in names}) for craft in crafts]


def _enough(ways: Ways, targets: Mapping[str, int], inventory: Mapping[str, int]) -> bool:
    needs = work_out(ways, targets).needs
    return all(inventory.get(item, 0) >= number for item, number in needs.items() if item not in ways)


# Parsing.


@lru_cache(maxsize=8)
def read_book(file: Path) -> Book:
    """Read recipes: `{"recipes": [{"result", "count", "ingredients"}], "tags": {name: items}}`.

    An ingredient is one item, any of a list, or any item with a tag: `{"count": 2, "tag": "planks"}`.
    """
    try:
        loaded: Any = json.loads(file.read_text(encoding="utf-8"))
        tags: Fields = loaded.get("tags", {})
        recipes: dict[str, tuple[Recipe, ...]] = {}
        for entry in loaded["recipes"]:
            recipe = Recipe(
                slots=tuple(_slot(ingredient, tags) for ingredient in entry["ingredients"]), makes=int(entry["count"])
            )
            recipes[entry["result"]] = (*recipes.get(entry["result"], ()), recipe)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"cannot read recipes from {file}: {type(error).__name__}: {error}") from None
    return Book(recipes=recipes, depths=depths_of(recipes))


def _slot(ingredient: Fields, tags: Fields) -> tuple[tuple[str, ...], int]:
    count = int(ingredient["count"])
    if "item" in ingredient:
        return (ingredient["item"],), count
    return tuple(ingredient["any"] if "any" in ingredient else tags[ingredient["tag"]]), count


def depths_of(recipes: Mapping[str, Sequence[Recipe]]) -> dict[str, int]:
    """The number of crafts on the shortest way from base materials, for every item.

    Items that can only be made of each other, like iron and its nuggets, count as base materials.
    """
    items = dict.fromkeys([*recipes, *(ingredient for item in recipes for ingredient in _ingredients(item, recipes))])
    base = [item for item in items if item not in recipes]
    reached = _spread(base, recipes)
    circular = [item for item in recipes if item not in reached and _is_circular(item, recipes)]
    return dict.fromkeys(items, 0) | _spread([*base, *circular], recipes)


def _is_circular(item: str, recipes: Mapping[str, Sequence[Recipe]]) -> bool:
    """Whether every recipe of an item needs something that is made of the item."""
    return all(
        any(all(item in _below(ingredient, recipes) for ingredient in choices) for choices, _ in recipe.slots)
        for recipe in recipes[item]
    )


def _spread(base: Sequence[str], recipes: Mapping[str, Sequence[Recipe]]) -> dict[str, int]:
    depths = dict.fromkeys(base, 0)
    for depth in range(1, len(recipes) + 1):
        fresh = [item for item in recipes if item not in depths and _craftable(recipes[item], depths)]
        if not fresh:
            break
        depths.update(dict.fromkeys(fresh, depth))
    return depths


def _craftable(recipes: Sequence[Recipe], available: Mapping[str, int]) -> bool:
    return any(
        all(any(ingredient in available for ingredient in choices) for choices, _ in recipe.slots) for recipe in recipes
    )


def _below(item: str, recipes: Mapping[str, Sequence[Recipe]]) -> dict[str, None]:
    """All direct and indirect ingredients of an item."""
    below = dict.fromkeys(_ingredients(item, recipes))
    todo = list(below)
    for ingredient in todo:
        fresh = [other for other in _ingredients(ingredient, recipes) if other not in below]
        below.update(dict.fromkeys(fresh))
        todo += fresh
    return below


def _ingredients(item: str, recipes: Mapping[str, Sequence[Recipe]]) -> list[str]:
    return [ingredient for recipe in recipes.get(item, ()) for choices, _ in recipe.slots for ingredient in choices]


def _amounts(value: object, where: str) -> dict[str, int]:
    """Check amounts by item, all above 0."""
    if not isinstance(value, dict) or not value:
        raise ConfigError(f"{where} must be an object of amounts by item")
    amounts = cast(dict[str, object], value)
    for item, amount in amounts.items():
        if not isinstance(amount, int) or amount < 1:
            raise ConfigError(f"{where}: the amount of {item!r} must be a whole number from 1 up; got {amount!r}")
    return cast(dict[str, int], amounts)


def _crafts(value: object, where: str) -> list[Fields]:
    """Check crafts, `{"target": [item, times], "ingredients": totals, "result_count": total}`, for the reference."""
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where} must be a list of crafts")
    crafts: list[Fields] = []
    for number, entry in enumerate(cast(list[Any], value)):
        here = f"{where}[{number}]"
        match entry:
            case {"target": [str(item), int(times)], "ingredients": ingredients, "result_count": int(count)}:
                totals = _amounts(ingredients, f"{here}.ingredients")
            case _:
                raise ConfigError(f"{here} must have target (item and number of crafts), ingredients and result_count")
        if times < 1 or any(total % times for total in (count, *totals.values())):
            raise ConfigError(f"{here}: {times} crafts cannot make or use these amounts")
        crafts.append({"ingredients": totals, "target": item, "count": count, "times": times})
    return crafts
