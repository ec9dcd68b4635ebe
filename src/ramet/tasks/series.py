"""Adding up the digits of consecutive numbers: the smallest task in which clones pay.

The question is as short for a long series as for a short one, and so is cutting it in two; adding it up takes a line a
number. So it is the working-out that fills a window, and a clone needs no more of it than its part. Only the last digit
of the sum is asked for. (Of the digits, because sums of the numbers themselves repeat: whoever leaves out twenty in a
row would be right by luck.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ramet.agent.tree import TaskWorld
from ramet.budget import Budget
from ramet.errors import ConfigError
from ramet.interfaces import World
from ramet.tasks import check_index, span
from ramet.tasks.dice import Dice, in_eval
from ramet.tasks.oracle import Ask, Move, View
from ramet.types import Node, Task, Verdict

SERIES = re.compile(r"(\d{1,6})\.\.(\d{1,6})")
LONGEST = 10_000  # terms a goal may reasonably have
DIGIT = re.compile(r"-?\d+")
DEEPER = 0.3  # how often a demonstrating clone delegates in its turn
LEAST = 4  # terms worth cutting


class Series:
    """`terms` is how many numbers are added, `numbers` from which they come, each (least, most)."""

    name = "series"
    about = "add up digits of consecutive numbers; every part is checked"
    splits: Mapping[str, str] = {
        "train": "without end",
        "eval": "never in train, except as a part of something longer",
        "long": "out of distribution: at least twice as many terms as any trained on",
    }

    def __init__(
        self, *, terms: Sequence[int] | int = (1, 32), numbers: Sequence[int] = (10, 99), seed: int = 0
    ) -> None:
        self.terms = span(terms, name="terms")
        self.numbers = span(numbers, name="numbers", least=0)
        self.seed = seed
        if self._sizes("train")[1] > self._room:
            raise ConfigError(f"terms go up to {self.terms[1]}, and numbers are only {self._room}")

    @property
    def _room(self) -> int:
        return self.numbers[1] - self.numbers[0] + 1

    def _sizes(self, split: str) -> tuple[int, int]:
        least, most = self.terms
        return (2 * most, 2 * most + most // 4) if split == "long" else (least, most)

    def size(self, split: str) -> int | None:
        return None

    def task(self, split: str, index: int) -> Task:
        check_index(self, split, index)
        dice = Dice(self.name, self.seed, split, index)
        least, most = self._sizes(split)
        if most > self._room:
            raise ConfigError(f"{self.name}:{split} wants {most} terms, and numbers are only {self._room}")
        terms = dice.between(least, most)
        for _ in range(1000):
            first = self.numbers[0] + dice.below(self._room - terms + 1)
            question = goal(first, first + terms - 1)
            if split == "long" or in_eval(question) == (split == "eval"):
                return Task(
                    id=f"{self.name}:{split}/{index}", question=question, reference=last_digit(first, first + terms - 1)
                )
        raise ConfigError(f"{self.name}: these knobs leave no series of {terms} terms for {split}")

    def world(self, task: Task) -> World:
        return TaskWorld(task)

    def budget(self, task: Task) -> Budget:
        first, last = _ends(task.question)
        return Budget(tokens=1000 + 300 * (last - first + 1), nodes=4 + 2 * (last - first + 1), depth=4, reserve=32)

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        del world
        ends = ends_in(task.question if node.parent is None else node.goal)
        return None if ends is None else Verdict(score=_score(node.answer, last_digit(*ends)), how="exact")

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Adder:
        return Adder(delegate=delegate, dice_seed=(task.id, seed))

    def same(self, task: Task, one: str, other: str) -> bool:
        """Whether the last number is the same, which is the one that counts."""
        del task
        return DIGIT.findall(one)[-1:] == DIGIT.findall(other)[-1:]

    def size_of(self, task: Task) -> float | None:
        """Terms."""
        first, last = _ends(task.question)
        return last - first + 1

    def sizes(self, split: str) -> tuple[float, float] | None:
        return self._sizes(split)

    def self_check(self, task: Task) -> tuple[float, float]:
        digit = last_digit(*_ends(task.question))
        return _score(f"So it is {digit}", digit), _score(str((digit + 1) % 10), digit)


def goal(first: int, last: int) -> str:
    """What is asked for.

    Example:
        goal(13, 28)  # "Last digit when adding the digits of 13..28"
    """
    return f"Last digit when adding the digits of {first}..{last}"


def ends_in(text: str) -> tuple[int, int] | None:
    """The first and last number of the series a text speaks of, if it makes sense.

    Example:
        ends_in("the digits of 13..28")  # (13, 28)
    """
    found = SERIES.search(text)
    ends = (int(found[1]), int(found[2])) if found else None
    return ends if ends is not None and 0 <= ends[1] - ends[0] < LONGEST else None


def last_digit(first: int, last: int) -> int:
    """Of the sum of all digits of all numbers from one to the other: 13, 14, 15 give 1+3+1+4+1+5.

    Example:
        last_digit(13, 15)  # 5
    """
    return sum(int(digit) for number in range(first, last + 1) for digit in str(number)) % 10


def _ends(question: str) -> tuple[int, int]:
    ends = ends_in(question)
    if ends is None:
        raise ConfigError(f"no series in {question!r}: write it like {goal(13, 28)!r}")
    return ends


def _score(answer: str | None, digit: int) -> float:
    """Right or wrong: no digit is nearer to another."""
    found = DIGIT.findall(answer or "")
    return float(bool(found) and found[-1] == str(digit))


class Adder:
    """Adds up number by number, or cuts the series in its middle third and has two clones add up the parts."""

    def __init__(self, *, delegate: bool, dice_seed: tuple[object, ...]) -> None:
        self.delegate = delegate
        self.dice_seed = dice_seed

    def move(self, view: View) -> Move:
        first, last = _ends(view.goal)
        if not self._splits(first, last, view):
            return _add_up(first, last)
        if view.turn == 0:
            third = (last - first + 1) // 3
            cut = Dice("cut", *self.dice_seed, view.goal).between(first + third, last - third - 1)
            return Move(asks=(Ask(goal=goal(first, cut)), Ask(goal=goal(cut + 1, last))))
        digits = [found[-1] for found in map(DIGIT.findall, view.history[0]) if found]
        if len(digits) < 2:
            return _add_up(first, last)  # a clone was refused: nobody else will do it
        total = sum(map(int, digits)) % 10
        return Move(thought=f"{'+'.join(digits)}={total}", answer=str(total))

    def _splits(self, first: int, last: int, view: View) -> bool:
        """Whether this node delegates: the root always; a clone sometimes, whether or not it pays."""
        if not self.delegate or last - first + 1 < LEAST:
            return False
        return view.depth == 0 or Dice("deeper", *self.dice_seed, view.goal).chance(DEEPER)


def _add_up(first: int, last: int) -> Move:
    """Every number with its own digits added up, then everything so far: last digits of both."""
    lines = [f"{number}:{last_digit(number, number)}={last_digit(first, number)}" for number in range(first, last + 1)]
    return Move(thought="\n".join(lines), answer=str(last_digit(first, last)))
