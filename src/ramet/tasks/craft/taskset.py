"""Crafting from recipes that cannot be guessed, after RAO's TextCraft-Synth: 2,522 goals to train on, 632 held out.

Nodes look up recipes, craft, and share one inventory. The tier of an item decides its bucket: easy 2 and 3, medium 4 to
6, hard 7 to 9, extreme 10 to 12. No held-out item is the goal of a tree in training. As in the paper, it may be an
ingredient of one, so that clones craft it there; those of the split `unseen`, and of deeper buckets, are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from ramet.budget import Budget
from ramet.errors import ConfigError
from ramet.interfaces import Oracle, World
from ramet.tasks.craft.items import make_items
from ramet.tasks.craft.oracle import Crafter
from ramet.tasks.craft.parts import split_targets
from ramet.tasks.craft.plan import bottom_up, craft_budget, craft_calls, score_of, tree_sizes, ways_of, work_out
from ramet.tasks.craft.worker import Worker
from ramet.tasks.craft.world import (
    RULES,
    CraftWorld,
    covers,
    goal_for,
    inventory_of,
    parse_targets,
    targets_of,
    verdict_on,
    why_impossible,
)
from ramet.tasks.dice import Dice
from ramet.tasks.manner import make_manner
from ramet.tasks.registry import check_index
from ramet.tasks.split import Split
from ramet.types import Node, Task, Verdict

TIERS = {"easy": (2, 3), "medium": (4, 5, 6), "hard": (7, 8, 9), "extreme": (10, 11, 12)}
MOST = {"easy": 3, "medium": 3, "hard": 2, "extreme": 2}  # most units of the item
TRAINED_ON = "medium"
MIXED = {"train_shallow": 4, "train_mixed": 6}  # deepest tier of goals from train_easy and train_medium
LEVELS = 3  # of clones in the style "cuts"
Goal = tuple[str, int]


class Craft:
    """Items to craft, one kind per task. Another `seed` gives another world of recipes.

    `style` is how demonstrations act: `cuts` splits at random places, `uniform` does the same at every depth, `mixed`
    draws one of the two. `levels` is how many levels of clones `cuts` has at most. In `uniform`, `mistakes` is the
    share of nodes that make a mistake and mend it, and `per_clone` how many ingredients one clone makes at most. With
    `ask_tokens` every clone is asked for with the tokens that its part takes.
    """

    name = "craft"
    about = "craft through up to twelve tiers, in one shared inventory"
    splits: Mapping[str, str] = {
        "train": "852 goals of medium depth, the same as train_medium",
        "eval": "all 632 held-out goals, every bucket",
        "easy": "147 held-out goals of tier 2 and 3, about 4 crafts",
        "medium": "213 held-out goals of tier 4 to 6, about 20 crafts: as deep as train",
        "unseen": "87 goals of medium, 69 of them of tier 6, whose items no goal of train_mixed needs as ingredients",
        "hard": "136 held-out goals of tier 7 to 9, about 90 crafts: out of distribution after train",
        "extreme": "136 held-out goals of tier 10 to 12, about 180 crafts: far out of distribution after train",
        "train_easy": "588 goals",
        "train_medium": "852 goals",
        "train_hard": "544 goals; after these, hard is in distribution",
        "train_extreme": "538 goals; after these, extreme is in distribution",
        "train_shallow": "876 goals of tier 2 to 4, from train_easy and train_medium",
        "train_mixed": "1,440 goals of tier 2 to 6, from train_easy and train_medium",
    }

    def __init__(
        self,
        *,
        seed: int = 0,
        style: str = "cuts",
        mistakes: float = 0.0,
        levels: int = LEVELS,
        per_clone: int = 1,
        ask_tokens: bool = False,
    ) -> None:
        self.manner = make_manner(self.name, style=style, mistakes=mistakes, ask_tokens=ask_tokens)
        if mistakes and style == "cuts":
            raise ConfigError("demonstrations with mistakes need the style uniform or mixed")
        if min(levels, per_clone) < 1:
            raise ConfigError(f"levels and per_clone are whole numbers from 1 up; got {levels!r} and {per_clone!r}")
        if per_clone > 1 and style == "cuts":
            raise ConfigError("per_clone needs the style uniform or mixed")
        self.seed = seed
        self.levels = levels
        self.per_clone = per_clone
        self.items = make_items(seed)
        self.ways = ways_of(self.items.book)

    def size(self, split: str) -> int | None:
        return len(self._goals[split])

    def task(self, split: str, index: int) -> Task:
        check_index(self, split, index)
        item, number = self._goals[split][index]
        return Task(
            id=f"{self.name}:{split}/{index}",
            question=f"{goal_for({item: number})}. {RULES}",
            reference={"targets": {item: number}, "inventory": self._inventory(item, number)},
        )

    def world(self, task: Task) -> World:
        return CraftWorld(self.items.book, inventory_of(task))

    def budget(self, task: Task) -> Budget:
        budget = craft_budget(self.ways, targets_of(task))
        if self.manner.style == "cuts" and self.levels <= LEVELS:
            return budget
        # Trees of the uniform style have a node for every ingredient above tier 1, and each needs enough to act.
        return replace(budget, tokens=20 * budget.tokens, nodes=1024, parent_share=0.25)

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        return verdict_on(task, world, node)

    def size_of(self, task: Task) -> float | None:
        """The depth of the item: crafts on the shortest way from base materials."""
        return max(self.items.book.depths[item] for item in targets_of(task))

    def sizes(self, split: str) -> tuple[float, float] | None:
        depths = [self.items.book.depths[item] for item, _ in self._goals[split]]
        return min(depths), max(depths)

    def same_goal(self, task: Task, goal: str, other: str) -> bool:
        """Whether a goal asks for the items of another one in the same number or more."""
        return covers(goal, other, self.items.book.depths)

    def goal_size(self, task: Task, goal: str) -> float | None:
        """The nodes of a tree in which each ingredient that has to be crafted is made by a clone."""
        targets = parse_targets(goal, self.items.book.depths)
        return float(sum(self._tree_sizes.get(item, 1) for item in targets)) if targets else None

    def impossible(self, task: Task, goal: str) -> bool:
        """Whether a goal asks for a base material, or for nothing that exists."""
        return self.why_impossible(task, goal) is not None

    def why_impossible(self, task: Task, goal: str) -> str | None:
        return why_impossible(goal, self.items.book)

    def split(self, task: Task, parts: int) -> Split:
        """For the controls of an evaluation: the ingredients of the target, dealt out."""
        return split_targets(self.ways, targets_of(task), parts)

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Oracle:
        """In the style of the taskset. The choice between two styles depends on the task and the seed."""
        if self.manner.is_uniform(task.id, seed):
            depths = self.items.book.depths
            return Worker(
                self.ways,
                items=depths,
                delegate=delegate,
                mistakes=self.manner.mistakes,
                seed=(task.id, seed),
                per_clone=self.per_clone,
                ask_tokens=self.manner.ask_tokens,
            )
        return Crafter(
            self.ways,
            inventory_of(task),
            task.question,
            items=self.items.book.depths,
            delegate=delegate,
            seed=(task.id, seed),
            levels=self.levels,
        )

    def self_check(self, task: Task) -> tuple[float, float]:
        crafts = craft_calls(self.ways, work_out(self.ways, targets_of(task)))
        right, wrong = (CraftWorld(self.items.book, inventory_of(task)) for _ in range(2))
        return score_of(task, right, crafts), score_of(task, wrong, crafts[:-1])

    @cached_property
    def _tree_sizes(self) -> dict[str, int]:
        return tree_sizes(self.ways)

    @cached_property
    def _goals(self) -> dict[str, list[Goal]]:
        """The goals of every split: all counts of all items of its tiers; four of five items are for training."""
        goals: dict[str, list[Goal]] = {split: [] for split in self.splits}
        dice = Dice(self.name, self.seed, "split")
        for tier, names in enumerate(self.items.tiers):
            bucket = next((name for name, tiers in TIERS.items() if tier in tiers), None)
            shuffled = dice.shuffled(names)
            cut = len(names) * 4 // 5
            for split, part in ((f"train_{bucket}", shuffled[:cut]), (bucket, shuffled[cut:])):
                if bucket is not None and split is not None:
                    goals[split] += [(item, number) for item in part for number in range(1, MOST[bucket] + 1)]
        for bucket in TIERS:
            goals["eval"] += goals[bucket]
        goals = {split: Dice(self.name, self.seed, "order", split).shuffled(part) for split, part in goals.items()}
        goals["train"] = goals[f"train_{TRAINED_ON}"]
        for split, deepest in MIXED.items():
            both = [goal for goal in goals["train_easy"] + goals["train_medium"] if self._tier(goal) <= deepest]
            goals[split] = Dice(self.name, self.seed, "order", split).shuffled(both)
        crafted = set(bottom_up(self.ways, dict(goals["train_mixed"])))
        goals["unseen"] = [goal for goal in goals["medium"] if goal[0] not in crafted]
        return goals

    def _tier(self, goal: Goal) -> int:
        return self.items.book.depths[goal[0]]

    def _inventory(self, item: str, number: int) -> dict[str, int]:
        """Base materials as if every craft made just one, some more of them, and some that are not needed."""
        dice = Dice(self.name, self.seed, "inventory", item, number)
        needs = {base: number * each for base, each in self.items.materials[item].items()}
        inventory = Counter({base: need + dice.between(0, max(1, need // 2)) for base, need in needs.items()})
        others = [base for base in self.items.tiers[0] if base not in needs]
        for base in dice.sample(others, dice.between(1, 3)):
            inventory[base] = dice.between(1, 5)
        return dict(sorted(inventory.items()))
