"""How crafting is done, alone or with clones that make some of the ingredients.

Whatever a node consumes it, or a clone of its own, has made from base materials. So clones that run at once never
take from each other, and every node ends with what it was asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ramet.tasks.craft.plan import Sums, Ways, bottom_up, craft_calls, work_out
from ramet.tasks.craft.world import goal_for, list_targets, parse_targets
from ramet.tasks.dice import Dice
from ramet.tasks.oracle import Ask, Do, Move, View

CRAFTS_A_TURN, ITEMS_A_TURN = 12, 24
MOST_CLONES = (6, 3, 2)  # a node starts at most so many, by its depth
ITEMS_A_CLONE = 3
TRIES = 24
AGAIN = 0.3  # how often a clone delegates too
HAND_ON = 0.5  # how often every node hands on all it can: it crafts its own targets, and clones their ingredients


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one node does: whom it asks, turn by turn, and what it crafts then."""

    targets: Mapping[str, int]
    asks: tuple[tuple[str, ...], ...]
    own: Sums

    @property
    def goals(self) -> list[str]:
        return [goal for turn in self.asks for goal in turn]


class Crafter:
    """Looks recipes up, has clones make some of the ingredients, or none, and crafts the rest.

    Clones from scratch can need more base materials than one node does; of the cuts that Dice propose, the first that
    the inventory allows is taken.
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
    ) -> None:
        self.ways = ways
        self.items = items
        self.delegate = delegate
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
        """All turns of a node, which depend on its goal and depth alone."""
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
        """Base materials that a node and all its clones use up."""
        plan = self.plan(goal, depth)
        total = Counter({item: number for item, number in plan.own.needs.items() if item not in self.ways})
        for one in plan.goals:
            total.update(self.base_needs(one, depth + 1))
        return total

    def _affords(self, inventory: Mapping[str, int], question: str, attempt: int) -> bool:
        """Whether there is enough for this way to cut; a later attempt cuts elsewhere."""
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
        """Whether this node delegates: the root always; a clone sometimes, whether or not it pays."""
        if not self.delegate or depth >= len(MOST_CLONES) or len(bottom_up(self.ways, targets)) < 2:
            return False
        return depth == 0 or self._hands_on or Dice("deeper", *self._seed, self._attempt, goal).chance(AGAIN)

    def _parts(self, goal: str, targets: Mapping[str, int], depth: int) -> list[list[str]]:
        """Items to hand out, those of one clone together: some of what is needed from a level of the recipes."""
        dice = Dice("cut", *self._seed, self._attempt, goal)
        if self._hands_on and (direct := self._direct(targets)):
            return [[item] for item in direct[: MOST_CLONES[depth]]]
        top = max(self._height(item) for item in targets)
        level = dice.between(1, top if len(targets) > 1 else top - 1)
        found = self._below(targets, level)
        most = MOST_CLONES[depth]
        chosen = dice.sample(found, dice.between(1, min(len(found), 2 * most)))
        number = dice.between(-(-len(chosen) // ITEMS_A_CLONE), min(len(chosen), most))
        if number == 1 and all(item in chosen for item in targets):  # one clone with all of the goal would be no part
            chosen.remove(dice.pick(list(targets)))
        parts: list[list[str]] = [[] for _ in range(number)]
        for i, item in enumerate(chosen):
            parts[i % len(parts)].append(item)
        return parts

    def _direct(self, targets: Mapping[str, int]) -> list[str]:
        """What the recipes of the targets take and that can be crafted, each item once."""
        takes = dict.fromkeys(one for item in targets for one in self.ways[item].takes if one in self.ways)
        return [item for item in takes if item not in targets]

    def _below(self, targets: Mapping[str, int], level: int) -> list[str]:
        """Where the recipes, followed down from the targets, reach the level."""
        found: dict[str, None] = {}
        todo = list(targets)
        for item in todo:
            if self._height(item) <= level:
                found[item] = None
            else:
                todo += [one for one in self.ways[item].takes if one in self.ways and one not in todo]
        return list(found)

    def _height(self, item: str) -> int:
        if item not in self._heights:
            below = [self._height(one) for one in self.ways[item].takes] if item in self.ways else [-1]
            self._heights[item] = 1 + max(below)
        return self._heights[item]

    def _turns(self, goals: Sequence[str], depth: int) -> tuple[tuple[str, ...], ...]:
        """Goals that may run at once share a turn."""
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
        """Whether clones with these goals can run at once.

        A clone's own clone is measured from when it was spawned. What a cousin holds then, and uses up later, would be
        missing from its gain; so where one of the two delegates, they must not make the same items.
        """
        if not self.plan(one, depth).asks and not self.plan(other, depth).asks:
            return True
        first, second = (bottom_up(self.ways, parse_targets(goal, self.items)) for goal in (one, other))
        return not set(first) & set(second)

    # The words.

    def _look_ups(self, plan: Plan, depth: int) -> list[Move]:
        """Ask about what is to be crafted, from the targets down: only of items it has heard of by then."""
        chunks = list(self._heard_of(plan))
        moves = [Move(does=(Do(name="get_info", arguments={"items": chunk}),)) for chunk in chunks]
        if depth == 0 and moves:
            moves[0] = Move(does=(Do(name="view_inventory"), *moves[0].does))
        return moves

    def _heard_of(self, plan: Plan) -> Iterator[list[str]]:
        todo = [item for item in plan.targets if item in plan.own.crafts]
        seen = dict.fromkeys(todo)
        while todo:
            chunk, todo = todo[:ITEMS_A_TURN], todo[ITEMS_A_TURN:]
            yield chunk
            for item in chunk:
                fresh = [one for one in self.ways[item].takes if one in plan.own.crafts and one not in seen]
                seen.update(dict.fromkeys(fresh))
                todo += fresh

    def _thought(self, plan: Plan) -> str:
        """The totals, from the top down."""
        lines: list[str] = []
        for item, times in list(plan.own.crafts.items())[::-1]:
            way, word = self.ways[item], "craft" if times == 1 else "crafts"
            takes = {one: amount * times for one, amount in way.takes.items()}
            lines.append(f"{plan.own.needs[item]}x {item}: {times} {word} of {way.makes} from {list_targets(takes)}")
        return "\n".join(lines)


def _chunks(crafts: Sequence[Do], size: int) -> Iterator[Sequence[Do]]:
    return (crafts[i : i + size] for i in range(0, len(crafts), size))
