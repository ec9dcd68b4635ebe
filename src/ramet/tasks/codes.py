"""Adding up the longest runs of all codes that fit a pattern: the smallest task in which clones pay.

In `1?0??10??` a `?` stands for 0 and for 1, so that is 32 codes. The pattern is as short for many codes as for few, and
so is cutting it in two: one `?` becomes 0 for one clone and 1 for the other. Going through the codes takes a line each.
So it is the working-out that fills a window, and a clone needs no more of it than its part.

What is added up is how often a digit follows itself without a break: 4 in 101111001. Only the last digit of the sum is
asked for. (Longest runs, because of much else, such as the ones in a code, the sum can be told from the pattern.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, groupby, product

from ramet.agent.tree import TaskWorld
from ramet.budget import Budget
from ramet.errors import ConfigError
from ramet.interfaces import World
from ramet.tasks.dice import Dice, in_eval
from ramet.tasks.oracle import Ask, Move, View
from ramet.tasks.registry import check_index, span
from ramet.types import Node, Task, Verdict

PATTERN = re.compile(r"(?<![01?\w])[01?]+(?![01?\w])")
WIDEST = 16  # places: a verdict goes through all codes
MORE = {"long": 1, "longer": 2}  # unknown places, beyond those of training
MOST = 1000  # patterns in such a split
DIGIT = re.compile(r"-?\d+")
DEEPER = 0.3  # how often a demonstrating clone delegates in its turn
ASKED, LAST = "Add longest runs of ", " (last digit)"


class Codes:
    """`places` is how long a code is, `unknown` (least, most) how many of them are a `?`: each doubles the codes."""

    name = "codes"
    about = "add up longest runs of all codes that fit a pattern"
    splits: Mapping[str, str] = {
        "train": "without end",
        "eval": "never in train, except as a part of something longer",
        "long": "out of distribution: every pattern with twice as many codes as any trained on",
        "longer": "out of distribution: every pattern with four times as many codes as any trained on",
    }

    def __init__(self, *, places: int = 8, unknown: Sequence[int] | int = (1, 5), seed: int = 0) -> None:
        self.places = places
        self.unknown = span(unknown, name="unknown", least=0)
        self.seed = seed
        self._all: dict[str, Sequence[str]] = {}
        if not self.unknown[1] < places <= WIDEST:
            raise ConfigError(f"places is from {self.unknown[1] + 1}, one more than unknown, to {WIDEST}; got {places}")

    def _unknown(self, split: str) -> tuple[int, int]:
        least, most = self.unknown
        return (most + MORE[split], most + MORE[split]) if split in MORE else (least, most)

    def size(self, split: str) -> int | None:
        return len(self._far(split)) if split in MORE else None

    def task(self, split: str, index: int) -> Task:
        check_index(self, split, index)
        pattern = self._far(split)[index] if split in MORE else self._drawn(split, index)
        return Task(id=f"{self.name}:{split}/{index}", question=goal(pattern), reference=last_digit(pattern))

    def _drawn(self, split: str, index: int) -> str:
        dice = Dice(self.name, self.seed, split, index)
        unknown = dice.between(*self.unknown)
        for _ in range(1000):
            open_places = dice.sample(range(self.places), unknown)
            pattern = "".join("?" if place in open_places else dice.pick("01") for place in range(self.places))
            if in_eval(pattern) == (split == "eval"):
                return pattern
        raise ConfigError(f"{self.name}: these knobs leave no pattern with {unknown} unknown places for {split}")

    def _far(self, split: str) -> Sequence[str]:
        """All patterns of a split that is out of distribution, shuffled: there are not so many."""
        unknown = self._unknown(split)[0]
        if unknown > self.places:
            raise ConfigError(f"{self.name}:{split} wants {unknown} unknown places, and there are only {self.places}")
        if split not in self._all:
            dice = Dice(self.name, self.seed, split)
            self._all[split] = dice.shuffled(list(patterns(self.places, unknown)))[:MOST]
        return self._all[split]

    def world(self, task: Task) -> World:
        return TaskWorld(task)

    def budget(self, task: Task) -> Budget:
        """Tokens for a chain as long as can be: of what a node has, it lends each of two clones a third."""
        unknown = _pattern(task.question).count("?")
        return Budget(tokens=1000 + 100 * 3**unknown, nodes=4 + 2 * 2**unknown, depth=unknown + 1, reserve=32)

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        del world
        pattern = pattern_in(task.question if node.parent is None else node.goal)
        return None if pattern is None else Verdict(score=_score(node.answer, last_digit(pattern)), how="exact")

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Adder:
        return Adder(delegate=delegate, dice_seed=(task.id, seed))

    def same(self, task: Task, one: str, other: str) -> bool:
        """Whether the last number is the same, which is the one that counts."""
        del task
        return DIGIT.findall(one)[-1:] == DIGIT.findall(other)[-1:]

    def size_of(self, task: Task) -> float | None:
        """Codes."""
        return _codes(_pattern(task.question))

    def sizes(self, split: str) -> tuple[float, float] | None:
        least, most = self._unknown(split)
        return 2**least, 2**most

    def self_check(self, task: Task) -> tuple[float, float]:
        digit = last_digit(_pattern(task.question))
        return _score(f"So it is {digit}", digit), _score(str((digit + 1) % 10), digit)


def goal(pattern: str) -> str:
    """What is asked for.

    Example:
        goal("1?0")  # "Add longest runs of 1?0 (last digit)"
    """
    return f"{ASKED}{pattern}{LAST}"


def pattern_in(text: str) -> str | None:
    """The one pattern a text speaks of, if there is one.

    Example:
        pattern_in("Add longest runs of 1?0 (last digit)")  # "1?0"
    """
    found = [word for word in PATTERN.findall(text) if len(word) > 1]
    return found[0] if len(found) == 1 and len(found[0]) <= WIDEST else None


def patterns(places: int, unknown: int) -> Iterator[str]:
    """All of that kind.

    Example:
        list(patterns(2, 1))  # ["?0", "?1", "0?", "1?"]
    """
    for open_places in combinations(range(places), unknown):
        for digits in product("01", repeat=places - unknown):
            known = iter(digits)
            yield "".join("?" if place in open_places else next(known) for place in range(places))


def longest_run(code: str) -> int:
    """How many equal digits in a row there are at most.

    Example:
        longest_run("101111001")  # 4
    """
    return max(len(list(run)) for _, run in groupby(code))


@lru_cache(maxsize=4096)
def last_digit(pattern: str) -> int:
    """Of the sum of the longest runs of all codes that fit: two in 100 and two in 110 are four.

    Example:
        last_digit("1?0")  # 4
    """
    return sum(map(longest_run, fitting(pattern))) % 10


def fitting(pattern: str) -> Iterator[str]:
    """All codes that fit, in order.

    Example:
        list(fitting("1?0"))  # ["100", "110"]
    """
    if "?" not in pattern:
        yield pattern
        return
    for half in halves(pattern):
        yield from fitting(half)


def halves(pattern: str) -> tuple[str, str]:
    """Two patterns that share its codes between them.

    Example:
        halves("1?0?")  # ("100?", "110?")
    """
    return pattern.replace("?", "0", 1), pattern.replace("?", "1", 1)


def _how_many(pattern: str) -> str:
    """Said before anything else, so that what is done can depend on it."""
    return f"{_codes(pattern)} codes"


def _codes(pattern: str) -> int:
    return 2 ** pattern.count("?")


def _pattern(question: str) -> str:
    pattern = pattern_in(question)
    if pattern is None:
        raise ConfigError(f"no pattern in {question!r}: write it like {goal('1?0??10??')!r}")
    return pattern


def _score(answer: str | None, digit: int) -> float:
    """Right or wrong: no digit is nearer to another."""
    found = DIGIT.findall(answer or "")
    return float(bool(found) and found[-1] == str(digit))


class Adder:
    """Goes through code by code, or settles the first `?` and has one clone take either half."""

    def __init__(self, *, delegate: bool, dice_seed: tuple[object, ...]) -> None:
        self.delegate = delegate
        self.dice_seed = dice_seed

    def move(self, view: View) -> Move:
        pattern = _pattern(view.goal)
        if not self._splits(pattern, view):
            return _add_up(pattern)
        if view.turn == 0:
            return Move(thought=_how_many(pattern), asks=tuple(Ask(goal=goal(half)) for half in halves(pattern)))
        digits = [found[-1] for found in map(DIGIT.findall, view.history[0]) if found]
        if len(digits) < 2:
            return _add_up(pattern)  # a clone was refused: nobody else will do it
        total = sum(map(int, digits)) % 10
        return Move(thought=f"{'+'.join(digits)}={total}", answer=str(total))

    def _splits(self, pattern: str, view: View) -> bool:
        """Whether this node delegates: the root always; a clone sometimes, whether or not it pays."""
        if not self.delegate or "?" not in pattern:
            return False
        return view.depth == 0 or Dice("deeper", *self.dice_seed, view.goal).chance(DEEPER)


def _add_up(pattern: str) -> Move:
    """Every code with its longest run, then all of them so far: last digits of both."""
    lines, total = [_how_many(pattern)], 0
    for code in fitting(pattern):
        total += longest_run(code)
        lines.append(f"{code}:{longest_run(code) % 10}={total % 10}")
    return Move(thought="\n".join(lines), answer=str(total % 10))
