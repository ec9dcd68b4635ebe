"""Find a hidden number in a range by guessing, after RAO's number search. Parts of a range are ranges too.

The number is drawn from 1 to `largest` - 1, the lower end from below it and the upper end from above it, up to
`largest`, so it lies strictly between them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import cast

from ramet.budget import Budget
from ramet.errors import ConfigError
from ramet.interfaces import Ask, Do, HostFunction, Move, Oracle, View, World
from ramet.tasks.dice import Dice, in_eval
from ramet.tasks.erring import Habits, Wrong
from ramet.tasks.files import WITH_META, TaskFile, task_file
from ramet.tasks.manner import make_manner
from ramet.tasks.numbers import last_number
from ramet.tasks.registry import check_index, observed_sizes, split_tasks
from ramet.tasks.sources import named_source
from ramet.tasks.split import Split, chunks
from ramet.types import Node, Task, Verdict

RANGE = re.compile(r"\bnumber between (\d{1,18}) and (\d{1,18})\b", re.IGNORECASE)
NOT_THERE = re.compile(r"\b(?:not (?:between|found|there|in|here)|no such|nothing|none|outside)\b", re.IGNORECASE)
SMALL = 64  # most candidates for which a node of the uniform style guesses itself
CHILDREN = 8  # clones that one call may start
LONGER = 1000  # factor by which the numbers of `long` are larger


class NumberSearch:
    """Hidden numbers up to `largest`. `guesses` is the limit for a whole tree; None: no limit."""

    name = "number_search"
    about = "find a hidden number in a range by guessing"
    size_unit = "candidates"
    splits: Mapping[str, str] = {
        "train": "unlimited",
        "eval": "never in train",
        "long": f"out of distribution: numbers up to {LONGER} times as large",
        "data_train": "number_search_train of the data folder",
        "data_eval": "number_search_eval of the data folder",
    }

    def __init__(
        self,
        *,
        largest: int = 1024,
        guesses: int | None = None,
        seed: int = 0,
        data: str | Path | None = None,
        style: str = "cuts",
        mistakes: float = 0.0,
        ask_tokens: bool = False,
    ) -> None:
        if largest < 2:
            raise ConfigError(f"{self.name}: largest must be a whole number from 2 up; got {largest}")
        self.largest = largest
        self.guesses = guesses
        self.seed = seed
        self.data = data
        self.manner = make_manner(self.name, style=style, mistakes=mistakes, ask_tokens=ask_tokens)

    def size(self, split: str) -> int | None:
        return len(self._file(split)) if split.startswith("data_") else None

    def task(self, split: str, index: int) -> Task:
        check_index(self, split, index)
        if split.startswith("data_"):
            return self._from_row(split, index)
        dice = Dice(self.name, self.seed, split, index)
        largest = LONGER * self.largest if split == "long" else self.largest
        for _ in range(20_000):
            hidden = dice.between(1, largest - 1)
            low, high = dice.between(0, hidden - 1), dice.between(hidden + 1, largest)
            longer = split == "long" and high - low > self.largest
            if longer or (split != "long" and in_eval(f"{low}:{hidden}:{high}") == (split == "eval")):
                return self._task(split, index, low, hidden, high)
        raise ConfigError(f"{self.name}: numbers up to {self.largest} leave no task for {split}")

    def _task(self, split: str, index: int, low: int, hidden: int, high: int) -> Task:
        return Task(id=f"{self.name}:{split}/{index}", question=range_goal(low, high), reference=hidden)

    def _file(self, split: str) -> TaskFile:
        return task_file(self.data, split.replace("data", self.name), taskset=self.name, required=WITH_META)

    def _from_row(self, split: str, index: int) -> Task:
        row = self._file(split)[index]
        low, high, answer = row.meta.get("low"), row.meta.get("high"), str(row.fields["answer"])
        if type(low) is not int or type(high) is not int:
            raise ConfigError(f"{row.where}: fields 'meta.low' and 'meta.high' must be whole numbers")
        if not re.fullmatch(r"\d{1,18}", answer) or not low <= int(answer) <= high:
            raise ConfigError(f"{row.where}: field 'answer' must be a whole number from {low} to {high}")
        return self._task(split, index, low, int(answer), high)

    def world(self, task: Task) -> Hidden:
        return Hidden(_hidden(task), guesses=self.guesses)

    def budget(self, task: Task) -> Budget:
        low, high = _range(task.question)
        halvings = (high - low + 1).bit_length()
        return Budget(tokens=1600 * halvings, nodes=48, depth=3, children=CHILDREN, turns=halvings + 6, reserve=32)

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        """The root is right if it answered after it or a clone guessed the number; as in RAO, its words do not count.

        A clone was asked for the number between a and b, both included. If the number is in that range, the clone is
        right if it names it and the number was guessed before it ended; if not, the clone must answer that it is not.
        """
        if not isinstance(world, Hidden):
            raise AssertionError("a verdict needs the world the tree ran in")
        found = node.index in world.found_by_end and node.answer is not None
        if node.parent is None:
            return Verdict(score=float(found), how="exact")
        part = find_range(node.goal)
        if part is None:
            return None
        low, high = part
        if low <= world.number <= high:
            named = last_number(node.answer) == world.number and not NOT_THERE.search(node.answer or "")
            return Verdict(score=float(found and named), how="exact")
        right = bool(NOT_THERE.search(node.answer or ""))
        return Verdict(score=float(right), how="exact", reason="the number is not in this range")

    def same_goal(self, task: Task, goal: str, other: str) -> bool:
        """Whether the range of a goal contains that of another."""
        del task
        whole, part = find_range(goal), find_range(other)
        return whole is not None and part is not None and whole[0] <= part[0] <= part[1] <= whole[1]

    def size_of(self, task: Task) -> float | None:
        """The number of candidates in the range."""
        low, high = _range(task.question)
        return high - low + 1

    def sizes(self, split: str) -> tuple[float, float] | None:
        if split.startswith("data_"):
            return observed_sizes(self, split_tasks(self, split))
        return (self.largest + 2, LONGER * self.largest + 1) if split == "long" else (3, self.largest + 1)

    def source(self, split: str) -> str:
        """The data set of a split, to know what is beyond training."""
        return named_source(split)

    def split(self, task: Task, parts: int) -> Split:
        """For the controls of an evaluation: ranges of equal length."""
        low, high = _range(task.question)
        ranges = chunks([1.0] * (high - low + 1), parts)
        asks = tuple(Ask(goal=range_goal(low + part[0], low + part[-1])) for part in ranges)
        return Split(parts=asks, combine="One of the parts has the number.") if len(asks) > 1 else Split()

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Oracle:
        place, uniform = (task.id, seed), self.manner.is_uniform(task.id, seed)
        oracle, solo = (Searcher(delegate=choice, dice_seed=place, uniform=uniform) for choice in (delegate, False))
        return self.manner.show(oracle, solo=solo, habits=HABITS, seed=place)

    def self_check(self, task: Task) -> tuple[float, float]:
        """The scores of a tree that guessed the number, and of one that only names it."""
        scores: list[float] = []
        for guess in (_hidden(task), _hidden(task) + 1):
            world = self.world(task)
            world.guess(guess)
            node = Node(index=0, parent=None, depth=0, path=(), goal=task.question, grant=1, answer=str(_hidden(task)))
            world.ended(node)
            verdict = self.verdict(task, world, node)
            scores.append(verdict.score if verdict is not None else 0.0)
        return scores[0], scores[1]


class Hidden:
    """A number to guess. It records which nodes ended after it was guessed."""

    def __init__(self, number: int, *, guesses: int | None = None) -> None:
        self.number = number
        self.left = guesses
        self.found = False
        self.found_by_end: list[int] = []
        self.order_matters = True  # calls can be repeated in the same order; nodes share the guesses
        self.functions: Mapping[str, HostFunction] = {"guess": self.guess}
        self.context: Mapping[str, str] = {}

    def guess(self, n: int) -> str:
        """Guess the hidden number: says "too low", "too high" or "correct"."""
        if type(n) is not int:
            raise ValueError(f"n is a whole number, not {str(n)[:40]!r}")
        if self.left is not None:
            if self.left < 1:
                raise ValueError("no guesses are left")
            self.left -= 1
        self.found = self.found or n == self.number
        return "correct" if n == self.number else "too low" if n < self.number else "too high"

    def spawned(self, node: Node) -> None:
        """Spawned nodes are not recorded."""

    def ended(self, node: Node) -> None:
        if self.found:
            self.found_by_end.append(node.index)


def _hidden(task: Task) -> int:
    return cast(int, task.reference)


def range_goal(low: int, high: int) -> str:
    return f"Guess the correct number between {low} and {high}."


def part_ask(low: int, high: int) -> Ask:
    return Ask(goal=f"{range_goal(low, high)} Answer with it, or say that it is not between {low} and {high}.")


def find_range(goal: str) -> tuple[int, int] | None:
    """The only range in a goal; None if there is none, or more than one."""
    ranges = RANGE.findall(goal)
    return (int(ranges[0][0]), int(ranges[0][1])) if len(ranges) == 1 else None


def _range(question: str) -> tuple[int, int]:
    part = find_range(question)
    if part is None:
        raise AssertionError(f"no range in {question!r}")
    return part


# The oracle.


class Searcher:
    """Halves the range guess by guess, or splits it among clones.

    In the uniform style every node with more than 64 candidates gives each half of them to a clone.
    """

    def __init__(self, *, delegate: bool, dice_seed: tuple[object, ...], uniform: bool = False) -> None:
        self.delegate = delegate
        self.dice_seed = dice_seed
        self.uniform = uniform

    def move(self, view: View) -> Move:
        low, high = _range(view.goal)
        if not self._splits(low, high, view):
            return _halve(low, high, view)
        parts = self._parts(low, high, view)
        if view.turn == 0:
            return Move(asks=tuple(part_ask(a, b) for a, b in parts))
        found = [answer for answer in view.history[0] if answer.isdigit()]
        if not found and not all(NOT_THERE.search(answer) for answer in view.history[0]):
            return _halve(low, high, replace(view, history=view.history[1:]))  # a clone was refused
        return Move(answer=found[0] if found else f"not between {low} and {high}")

    def _splits(self, low: int, high: int, view: View) -> bool:
        """Whether this node delegates: a root always, a clone at random; in the uniform style by its size."""
        if self.uniform:
            return self.delegate and high - low + 1 > SMALL
        if not self.delegate or view.depth >= 2 or high == low:
            return False
        return view.depth == 0 or Dice("deeper", *self.dice_seed, view.goal).chance(0.2)

    def _parts(self, low: int, high: int, view: View) -> list[tuple[int, int]]:
        """The range, cut at random places; in the uniform style in the middle."""
        if self.uniform:
            middle = (low + high) // 2
            return [(low, middle), (middle + 1, high)]
        dice = Dice("cut", *self.dice_seed, view.goal)
        most = min(4 if view.depth == 0 else 2, high - low + 1)
        num_parts = dice.between(2, most)
        edges: list[int] = []
        while len(edges) < num_parts - 1:
            edge = dice.between(low + 1, high)
            if edge not in edges:
                edges.append(edge)
        edges.sort()
        return [(a, b - 1) for a, b in zip([low, *edges], [*edges, high + 1], strict=True)]


def _halve(low: int, high: int, view: View) -> Move:
    """The next guess, or the answer."""
    part = f"between {low} and {high}"
    for (reply,) in view.history:
        middle = (low + high) // 2
        if reply == "correct":
            return Move(answer=str(middle))
        low, high = (middle + 1, high) if reply == "too low" else (low, middle - 1)
    if low > high:
        return Move(thought="Nothing is left.", answer=f"not {part}")
    middle = (low + high) // 2
    return Move(thought=f"Left: {low} to {high}.", does=(Do(name="guess", arguments={"n": middle}),))


# Its mistakes.


def _wrong_part(ask: Ask, dice: Dice) -> Wrong | None:
    """A part that ends too early, so that some numbers are in no part."""
    low, high = _range(ask.goal)
    if high - low < 2:
        return None
    end = dice.between(low, high - 1)
    wrong = ask.goal.replace(f"between {low} and {high}", f"between {low} and {end}")
    line = f"{end + 1} to {high} were in no part: the part is {low} to {high}"
    return Wrong(ask=Ask(goal=wrong), line=line)


def _many_parts(view: View) -> tuple[Ask, ...] | None:
    """One part more than a call may start."""
    low, high = _range(view.goal)
    number = CHILDREN + 1
    if high - low < 4 * number:
        return None
    edges = [low + (high - low + 1) * i // number for i in range(number + 1)]
    return tuple(part_ask(a, b - 1) for a, b in pairwise(edges))


def _wrong_guess(do: Do, dice: Dice) -> Do | None:
    """The number in words, which is an error."""
    del dice
    return Do(name=do.name, arguments={"n": f"number {do.arguments['n']}"})


def _no_range(view: View) -> str | None:
    return "the goal has no range" if find_range(view.goal) is None else None


HABITS = Habits(
    verb="find it",
    spoil=_wrong_part,
    many=_many_parts,
    misdo=_wrong_guess,
    settles=lambda _ask, told: told.isdigit(),
    impossible=_no_range,
    label=lambda ask: "{} to {}".format(*_range(ask.goal)),
)
