"""A second oracle of crafting: every node acts in the same way, whatever its depth, and mends what goes wrong.

A node looks up its targets, has clones make the ingredients that are more than one craft away from base materials, one
each or a few each, crafts the other ingredients and the targets itself, and reads the results. It mends errors: wrong
amounts are corrected, missing items are crafted or asked for. What cannot be mended is reported: no node answers that
it crafted what it did not, unless that is the mistake it shows. Mistakes are drawn per node and carry no loss.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from ramet.interfaces import Ask, Do, Move, View
from ramet.tasks.craft.mistakes import (
    MOST_REPEATS,
    Kind,
    Mistake,
    Wrong,
    base_goal,
    draw_mistake,
    misname,
    possible_kinds,
    wrong_craft,
)
from ramet.tasks.craft.parts import OWN_TIER, Needs, deal, parts_of
from ramet.tasks.craft.plan import Sums, Ways, craft_call, craft_calls, craft_line, work_out
from ramet.tasks.craft.world import NO_ITEM, goal_for, list_targets, parse_amounts, parse_targets
from ramet.tasks.dice import Dice

CRAFTS_A_TURN = 12
MOST_MENDED = 6  # turns in which a node mends something
AGAIN = ". The first try failed"  # part of a goal that is asked for once more
LACKING = re.compile(r"error: (\d+)x (\w+) needed, (\d+) held")
MISSING = re.compile(r"\d+x (\w+) is missing$")
CRAFTED = re.compile(r"crafted (\d+)x (\w+),")

Results = tuple[str, ...]
Problem = str | None  # why a goal cannot be met


class Worker:
    """Acts on what it reads. `mistakes` is the share of nodes that make one.

    A clone makes at most `per_clone` ingredients. With `ask_tokens`, every clone is asked for with the tokens that its
    part is estimated to take; without, nodes lend equal shares.
    """

    def __init__(
        self,
        ways: Ways,
        *,
        items: Mapping[str, int],
        delegate: bool,
        mistakes: float,
        seed: Sequence[object],
        per_clone: int = 1,
        ask_tokens: bool = False,
    ) -> None:
        self.ways = ways
        self.items = items
        self.delegate = delegate
        self.mistakes = mistakes
        self.seed = tuple(seed)
        self.per_clone = per_clone
        self.needs = Needs(ways, items, per_clone=per_clone) if ask_tokens else None

    def move(self, view: View) -> Move:
        """The next move, found by going through all moves so far again."""
        moves = NodeWork(self, view.goal, view.depth).moves()
        move = next(moves)
        for results in view.history:
            move = moves.send(results)
        return move


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Crafts that failed, ingredients first, and the error of the first one."""

    calls: tuple[Do, ...]
    error: str

    @property
    def item(self) -> str:
        return self.calls[0].arguments["target"]


class NodeWork:
    """One node: its goal, what it has looked up, asked for and crafted, and the mistake it makes, if any."""

    def __init__(self, worker: Worker, goal: str, depth: int) -> None:
        self.ways, self.items, self.delegate = worker.ways, worker.items, worker.delegate
        self.per_clone, self.needs = worker.per_clone, worker.needs
        self.depth = depth
        self.wanted = parse_amounts(goal)
        self.targets = parse_targets(goal, worker.items)
        self.parts: dict[str, int] = {}
        self.groups: dict[str, tuple[str, ...]] = {}  # the parts that one clone makes, by the first of them
        self.known: dict[str, None] = {}  # items whose recipes were looked up
        self.asked: set[str] = set()  # goals given to clones
        self.made: Counter[str] = Counter()
        self.kept: str | None = None  # an ingredient for a clone that the node crafts itself by mistake
        self.dice = Dice("work", *worker.seed, goal, depth)
        self.mistake: Mistake | None = None
        if self.impossible() is None:
            self.parts = parts_of(self.ways, self.items, self.targets) if self.delegate else {}
            groups = deal([*self.parts], per_clone=self.per_clone, tiers=self.items)
            self.groups = {group[0]: group for group in groups}
            if AGAIN not in goal and self.dice.chance(worker.mistakes):
                own = work_out(self.ways, self.targets, [*self.parts])
                kinds = possible_kinds(self.ways, own, delegate=self.delegate, parts=self.parts)
                self.mistake = draw_mistake(self.dice, kinds, depth=depth)

    def moves(self) -> Generator[Move, Results, None]:
        problem = yield from self._work()
        targets = list_targets(self.wanted)
        answer = f"Crafted {targets}" if problem is None else f"Could not craft {targets}: {problem}"
        while True:
            yield Move(answer=answer, mistake=problem is None and self._is_short())

    def impossible(self) -> Problem:
        if not self.wanted:
            return "the goal names no item"
        for item in self.wanted:
            if item not in self.items:
                return f"there is no item {item}"
            if item not in self.ways:
                return f"{item} is a base material"
        return None

    def _work(self) -> Generator[Move, Results, Problem]:
        """Everything before the answer."""
        yield from self._look_up([*self.wanted])
        if (problem := self.impossible()) is not None:
            return problem
        if self._errs("own goal"):
            (told,) = yield Move(asks=(self._ask_for(goal_for(self.targets)),), mistake=True)
            if not _refused(told):
                self.made.update(self.targets if _succeeded(told) else {})
                return _reason(told)
        given, problem = yield from self._hand_out()
        if problem is not None:
            return problem
        own = work_out(self.ways, self.targets, given)
        yield from self._look_up([item for item in own.crafts if item not in self.known])
        if self._errs("base"):
            yield Move(asks=(Ask(goal=goal_for(base_goal(self.ways, own, self.dice))),), mistake=True)
        return (yield from self._craft_all(own))

    def _errs(self, kind: Kind) -> bool:
        return self.mistake is not None and self.mistake.kind == kind

    # Clones.

    def _hand_out(self) -> Generator[Move, Results, tuple[list[str], Problem]]:
        """Ask clones for all parts in one turn; returns the items that the node need not craft, or the problem."""
        if not self.parts:
            return [], None
        goals = {first: goal_for(self._amounts(group)) for first, group in self.groups.items()}
        is_wrong = self._spoil(goals)
        looked_up = self._own_ingredients()
        thought = "\n".join(craft_line(self.ways, item, number) for item, number in self.targets.items())
        does = (Do(name="get_info", arguments={"items": looked_up}),) if looked_up else ()
        self.known |= dict.fromkeys(looked_up)
        told = dict.fromkeys(goals, "")
        if goals or does:
            asks = tuple(self._ask_for(goal) for goal in goals.values())
            results = yield Move(thought=thought, does=does, asks=asks, mistake=is_wrong)
            told |= dict(zip(goals, results[len(does) :], strict=False))
        self.asked.update(goals.values())
        started = [first for first in self.groups if not _refused(told.get(first, "")) or NO_ITEM in told[first]]
        given = [item for first in started for item in self.groups[first]]
        failed = [first for first in started if first in told and not _succeeded(told[first])]
        problem = yield from self._ask_again(failed, told)
        if self.kept is not None:
            given = [item for item in given if item != self.kept] + [*self.ways[self.kept].takes]
        return given, problem

    def _amounts(self, group: Sequence[str]) -> dict[str, int]:
        return {item: self.parts[item] for item in group}

    def _ask_for(self, goal: str, again: str = "") -> Ask:
        """Ask a clone, with the tokens that its goal takes if they are estimated."""
        targets = parse_targets(goal, self.items)
        known = self.needs is not None and bool(targets) and all(item in self.ways for item in targets)
        return Ask(goal=goal + again, tokens=self.needs.tokens(targets) if self.needs is not None and known else None)

    def _own_ingredients(self) -> list[str]:
        """The craftable ingredients of the targets that the node crafts itself, by mistake or not."""
        takes = dict.fromkeys(ingredient for item in self.targets for ingredient in self.ways[item].takes)
        return [
            item
            for item in takes
            if item in self.ways and item not in self.targets and (item not in self.parts or item == self.kept)
        ]

    def _spoil(self, goals: dict[str, str]) -> bool:
        """Make one of the goals for clones wrong, if that is the mistake."""
        item = self.dice.pick([*goals])
        number, others = self.parts[item], self._amounts(self.groups[item][1:])
        if self._errs("misname"):
            goals[item] = goal_for({misname(item, self.items, self.dice): number} | others)
        elif self._errs("few") and number > 1:
            goals[item] = goal_for({item: number - 1} | others)
        elif self._errs("few") or self._errs("keep"):
            del goals[item]
            self.kept = item if self._errs("keep") else None
        else:
            return False
        return True

    def _ask_again(self, failed: Sequence[str], told: Mapping[str, str]) -> Generator[Move, Results, Problem]:
        """Ask once more for parts that clones did not make, unless base materials are missing."""
        for item in failed:
            if self._is_final(told[item]):
                return _reason(told[item])
        if not failed:
            return None
        results = yield self._ask([self._amounts(self.groups[first]) for first in failed])
        return next((_reason(text) for text in results if not _succeeded(text) and not _refused(text)), None)

    def _ask(self, groups: Sequence[Mapping[str, int]]) -> Move:
        """A move that asks for missing items; a goal that was asked for before is marked."""
        thought = "\n".join(f"{number}x {item} is missing" for group in groups for item, number in group.items())
        goals = [goal_for(group) for group in groups]
        asks = tuple(self._ask_for(goal, AGAIN if goal in self.asked else "") for goal in goals)
        self.asked.update(goals)
        return Move(thought=thought, asks=asks)

    def _is_final(self, told: str) -> bool:
        """Whether a report names a missing base material: nothing can be done about that."""
        missing = MISSING.search(told)
        return missing is not None and missing.group(1) not in self.ways

    # Functions.

    def _look_up(self, items: Sequence[str]) -> Generator[Move, Results, None]:
        """Look up items from the top down: those first that recipes looked up before lead to."""
        left = list(items)
        while left:
            heard = {ingredient for item in self.known for ingredient in self.ways[item].takes}
            chunk = [item for item in left if item in heard] or left
            self.known |= dict.fromkeys(item for item in chunk if item in self.ways)
            left = [item for item in left if item not in chunk]
            yield Move(does=(Do(name="get_info", arguments={"items": chunk}),))

    def _craft_all(self, own: Sums) -> Generator[Move, Results, Problem]:
        """Craft, and mend what fails."""
        wrong = dict([found]) if (found := self._wrong(own)) is not None else {}
        failed = yield from self._craft(craft_calls(self.ways, own), self._lines(own, wrong), wrong=wrong)
        if failed is not None and self.mistake is not None and (wrong or self.kept):
            for _ in range(self.mistake.repeats):
                failed = (yield from self._craft(failed.calls, {}, wrong=wrong, again=True)) or failed
            if self.mistake.claims:
                return None
            if self.mistake.repeats == MOST_REPEATS and failed.item not in wrong and LACKING.match(failed.error):
                return _lack(failed.error)
        return (yield from self._mend_all(own, failed, wrong))

    def _wrong(self, own: Sums) -> tuple[str, Wrong] | None:
        return None if self.mistake is None else wrong_craft(self.mistake.kind, self.ways, own, self.dice)

    def _lines(self, own: Sums, wrong: Mapping[str, Wrong]) -> dict[str, str]:
        """Lines of the thought by item, from the top down; those of the targets come before clones are asked."""
        said = [item for item in reversed([*own.crafts]) if item not in self.targets or not self.parts]
        lines = {item: craft_line(self.ways, item, own.needs[item]) for item in said}
        return lines | {item: change.line for item, change in wrong.items() if item in lines}

    def _craft(
        self, calls: Sequence[Do], lines: Mapping[str, str], *, wrong: Mapping[str, Wrong], again: bool = False
    ) -> Generator[Move, Results, Failed | None]:
        """Craft, some items per turn; `wrong` replaces right calls."""
        failed: list[Do] = []
        errors: list[str] = []
        thought = "\n".join(line for line in lines.values() if line)
        for start in range(0, len(calls), CRAFTS_A_TURN):
            chunk = [call for call in calls[start : start + CRAFTS_A_TURN] if not _left_out(call, wrong)]
            said = [_said(call, wrong) for call in chunk]
            is_wrong = again or bool(wrong) or self.kept is not None
            results = yield Move(thought=thought, does=tuple(said), mistake=is_wrong)
            thought = ""
            for call, result in zip(chunk, results, strict=False):
                if done := CRAFTED.match(result):
                    self.made[done.group(2)] += int(done.group(1))
                else:
                    failed.append(call)
                    errors.append(result)
        return Failed(calls=tuple(failed), error=errors[0]) if failed else None

    def _mend_all(
        self, own: Sums, failed: Failed | None, wrong: Mapping[str, Wrong]
    ) -> Generator[Move, Results, Problem]:
        """Mend one cause after another; returns what cannot be mended."""
        self.kept = None
        for _ in range(MOST_MENDED):
            short = {item: own.needs[item] - self.made[item] for item in self.targets}
            if failed is None:
                calls = [self._call(item, number) for item, number in short.items() if number > 0]
                if not calls:
                    return None
                lines = {item: craft_line(self.ways, item, number) for item, number in short.items() if number > 0}
            else:
                mended = yield from self._mend(own, failed, wrong)
                if isinstance(mended, str):
                    return mended
                first, lines = mended
                calls = [*first, *failed.calls]
            failed = yield from self._craft(calls, lines, wrong={})
            wrong = {}
        return None if failed is None else _lack(failed.error)

    def _mend(
        self, own: Sums, failed: Failed, wrong: Mapping[str, Wrong]
    ) -> Generator[Move, Results, tuple[list[Do], dict[str, str]] | str]:
        """What to craft before the failed calls, with lines for a thought; or why it cannot be mended."""
        lacking = LACKING.match(failed.error)
        if lacking is None or failed.item in wrong:  # wrong numbers: the right call is enough
            need = own.needs.get(failed.item) or failed.calls[0].arguments["count"]
            return [], {failed.item: craft_line(self.ways, failed.item, need)}
        item, number = lacking.group(2), int(lacking.group(1)) - int(lacking.group(3))
        if item not in self.ways:
            return _lack(failed.error)
        if self.delegate and self.items[item] > OWN_TIER:
            (told,) = yield self._ask([{item: number}])
            if not _refused(told):
                return _reason(told) or ([], {})
            sums = work_out(self.ways, {item: number})
            yield from self._look_up([one for one in sums.crafts if one not in self.known])
            lines = {one: craft_line(self.ways, one, sums.needs[one]) for one in reversed([*sums.crafts])}
            return craft_calls(self.ways, sums), lines
        yield from self._look_up([item] if item not in self.known else [])
        return [self._call(item, number)], {item: craft_line(self.ways, item, number)}

    def _call(self, item: str, number: int) -> Do:
        return craft_call(self.ways, item, -(-number // self.ways[item].makes))

    def _is_short(self) -> bool:
        """Whether it has made fewer of its targets than it was asked for."""
        return any(self.made[item] < number for item, number in self.targets.items())


def _left_out(call: Do, wrong: Mapping[str, Wrong]) -> bool:
    change = wrong.get(call.arguments["target"])
    return change is not None and change.call is None


def _said(call: Do, wrong: Mapping[str, Wrong]) -> Do:
    change = wrong.get(call.arguments["target"])
    return call if change is None or change.call is None else change.call


# What clones and functions say.


def _refused(told: str) -> bool:
    return told.lstrip("[").startswith("refused")


def _succeeded(told: str) -> bool:
    return told.startswith("Crafted")


def _reason(told: str) -> Problem:
    """Why a clone did not succeed, from its report; None if it did."""
    return None if _succeeded(told) else told.removeprefix("Could not craft ").partition(": ")[2] or "a clone failed"


def _lack(error: str) -> str:
    """An error of `craft` as the reason of a failure.

    Example:
        _lack("error: 3x log needed, 1 held")  # "2x log is missing"
    """
    lacking = LACKING.match(error)
    if lacking is None:
        return error.removeprefix("error: ")
    return f"{int(lacking.group(1)) - int(lacking.group(3))}x {lacking.group(2)} is missing"
