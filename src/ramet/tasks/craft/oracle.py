"""The oracle of crafting: alone, or with clones that make some of the ingredients.

A node consumes only what it or its own clones made from base materials. So clones that run in parallel never take from
each other, and every node ends with what its goal asks for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ramet.interfaces import Ask, Do, Move, View
from ramet.tasks.craft.plan import Sums, Ways, bottom_up, craft_calls, craft_line, work_out
from ramet.tasks.craft.world import goal_for, list_targets, parse_targets
from ramet.tasks.dice import Dice

CRAFTS_A_TURN, ITEMS_A_TURN = 12, 24
MOST_CLONES = (6, 3, 2)  # most clones of a node, by depth; the last number holds for all depths below
ITEMS_A_CLONE = 3
TRIES = 24
AGAIN = 0.3  # how often a clone delegates
HAND_ON = 0.5  # how often all nodes delegate all they can: they craft their targets, and clones the ingredients


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of one node: the goals it delegates, turn by turn, and what it crafts afterwards."""

    targets: Mapping[str, int]
    asks: tuple[tuple[str, ...], ...]
    own: Sums

    @property
    def goals(self) -> list[str]:
        return [goal for turn in self.asks for goal in turn]


class Crafter:
    """Looks up recipes, delegates some of the ingredients, or none, and crafts the rest.

    Clones start from base materials, so together they can need more of them than one node does. Of several random
    splits, the first that the inventory allows is taken.
    """

    def __init__(
        self,
        ways: Ways,
        inventory: Mapping[str, int],
        question: str,
        *,
        items: Mapping[str, object],
        delegate: bool,
        seed: Sequence[object],
        levels: int = 3,
    ) -> None:
        self.ways = ways
        self.items = items
        self.delegate = delegate
        self.levels = levels  # of clones, at most
        self._seed = tuple(seed)
        self._attempt = 0
        self._hands_on = False
        self._heights: dict[str, int] = {}
        self._plans: dict[tuple[str, int], Plan] = {}
        if delegate and not any(self._affords(inventory, question, attempt) for attempt in range(TRIES)):
            self.delegate, self._plans = False, {}

    def move(self, view: View) -> Move:
        moves = self.moves(view.goal, view.depth)
        return moves[min(view.turn, len(moves) - 1)]

    def moves(self, goal: str, depth: int) -> list[Move]:
        """All turns of a node, which depend only on its goal and depth."""
        plan = self.plan(goal, depth)
        crafts = craft_calls(self.ways, plan.own)
        acts = [Move(asks=tuple(Ask(goal=goal) for goal in turn)) for turn in plan.asks]
        acts += [Move(does=tuple(chunk)) for chunk in _chunks(crafts, CRAFTS_A_TURN)]
        first = acts[0]
        acts[0] = Move(thought=self._thought(plan), does=first.does, asks=first.asks)
        return [*self._look_ups(plan, depth), *acts, Move(answer=f"Crafted {list_targets(plan.targets)}")]

    def plan(self, goal: str, depth: int) -> Plan:
        key = (goal, depth)
        if key not in self._plans:
            self._plans[key] = self._plan(goal, depth)
        return self._plans[key]

    def base_needs(self, goal: str, depth: int) -> Counter[str]:
        """The base materials that a node and all its clones use."""
        plan = self.plan(goal, depth)
        total = Counter({item: number for item, number in plan.own.needs.items() if item not in self.ways})
        for clone_goal in plan.goals:
            total.update(self.base_needs(clone_goal, depth + 1))
        return total

    def _affords(self, inventory: Mapping[str, int], question: str, attempt: int) -> bool:
        """Whether the inventory is enough for the split of this attempt."""
        self._plans, self._attempt = {}, attempt
        self._hands_on = Dice("hand on", *self._seed, attempt).chance(HAND_ON)
        return all(inventory.get(item, 0) >= number for item, number in self.base_needs(question, 0).items())

    def _plan(self, goal: str, depth: int) -> Plan:
        targets = parse_targets(goal, self.items)
        parts = self._parts(goal, targets, depth) if self._splits(goal, targets, depth) else []
        given = [item for part in parts for item in part]
        own = work_out(self.ways, targets, given)
        goals = [goal_for({item: own.needs[item] for item in part}) for part in parts]
        return Plan(targets=targets, asks=self._turns(goals, depth + 1), own=own)

    def _splits(self, goal: str, targets: Mapping[str, int], depth: int) -> bool:
        """Whether this node delegates: a root always, a clone at random."""
        if not self.delegate or depth >= self.levels or len(bottom_up(self.ways, targets)) < 2:
            return False
        return depth == 0 or self._hands_on or Dice("deeper", *self._seed, self._attempt, goal).chance(AGAIN)

    def _parts(self, goal: str, targets: Mapping[str, int], depth: int) -> list[list[str]]:
        """Items to delegate, grouped by clone: some of the items needed at one level of the recipes."""
        dice = Dice("cut", *self._seed, self._attempt, goal)
        if self._hands_on and (direct := self._direct(targets)):
            return [[item] for item in direct[: _most_clones(depth)]]
        top = max(self._height(item) for item in targets)
        level = dice.between(1, top if len(targets) > 1 else top - 1)
        needed = self._below(targets, level)
        most = _most_clones(depth)
        chosen = dice.sample(needed, dice.between(1, min(len(needed), 2 * most)))
        number = dice.between(-(-len(chosen) // ITEMS_A_CLONE), min(len(chosen), most))
        if number == 1 and all(item in chosen for item in targets):  # a single clone must not get the whole goal
            chosen.remove(dice.pick(list(targets)))
        parts: list[list[str]] = [[] for _ in range(number)]
        for i, item in enumerate(chosen):
            parts[i % len(parts)].append(item)
        return parts

    def _direct(self, targets: Mapping[str, int]) -> list[str]:
        """The craftable ingredients of the targets, each once."""
        takes = dict.fromkeys(
            ingredient for item in targets for ingredient in self.ways[item].takes if ingredient in self.ways
        )
        return [item for item in takes if item not in targets]

    def _below(self, targets: Mapping[str, int], level: int) -> list[str]:
        """The items at this level that the recipes of the targets lead down to."""
        items: dict[str, None] = {}
        todo = list(targets)
        for item in todo:
            if self._height(item) <= level:
                items[item] = None
            else:
                todo += [
                    ingredient
                    for ingredient in self.ways[item].takes
                    if ingredient in self.ways and ingredient not in todo
                ]
        return list(items)

    def _height(self, item: str) -> int:
        if item not in self._heights:
            below = [self._height(ingredient) for ingredient in self.ways[item].takes] if item in self.ways else [-1]
            self._heights[item] = 1 + max(below)
        return self._heights[item]

    def _turns(self, goals: Sequence[str], depth: int) -> tuple[tuple[str, ...], ...]:
        """Goals that may run in parallel share a turn."""
        turns: list[list[str]] = []
        for goal in goals:
            for turn in turns:
                if all(self._apart(goal, other, depth) for other in turn):
                    turn.append(goal)
                    break
            else:
                turns.append([goal])
        return tuple(tuple(turn) for turn in turns)

    def _apart(self, one: str, other: str, depth: int) -> bool:
        """Whether clones with these goals can run in parallel.

        A clone of a clone is graded by the inventory since it was spawned. Items that another branch has then and uses
        up later reduce its gain; so if one of the two delegates, they must not make the same items.
        """
        if not self.plan(one, depth).asks and not self.plan(other, depth).asks:
            return True
        first, second = (bottom_up(self.ways, parse_targets(goal, self.items)) for goal in (one, other))
        return not set(first) & set(second)

    # Wording.

    def _look_ups(self, plan: Plan, depth: int) -> list[Move]:
        """Look up the recipes of what is to be crafted, from the targets down: only items already seen by then."""
        chunks = list(self._seen_so_far(plan))
        moves = [Move(does=(Do(name="get_info", arguments={"items": chunk}),)) for chunk in chunks]
        if depth == 0 and moves:
            moves[0] = Move(does=(Do(name="view_inventory"), *moves[0].does))
        return moves

    def _seen_so_far(self, plan: Plan) -> Iterator[list[str]]:
        todo = [item for item in plan.targets if item in plan.own.crafts]
        seen = dict.fromkeys(todo)
        while todo:
            chunk, todo = todo[:ITEMS_A_TURN], todo[ITEMS_A_TURN:]
            yield chunk
            for item in chunk:
                fresh = [
                    ingredient
                    for ingredient in self.ways[item].takes
                    if ingredient in plan.own.crafts and ingredient not in seen
                ]
                seen.update(dict.fromkeys(fresh))
                todo += fresh

    def _thought(self, plan: Plan) -> str:
        """The totals, from the top down."""
        return "\n".join(craft_line(self.ways, item, plan.own.needs[item]) for item in reversed([*plan.own.crafts]))


def _most_clones(depth: int) -> int:
    return MOST_CLONES[min(depth, len(MOST_CLONES) - 1)]


def _chunks(crafts: Sequence[Do], size: int) -> Iterator[Sequence[Do]]:
    return (crafts[i : i + size] for i in range(0, len(crafts), size))
