"""Sum the longest runs of all codes that match a pattern: the smallest task in which clones pay off.

In `1?0??10??` a `?` stands for 0 and for 1, so the pattern matches 32 codes. A pattern is as short for many codes as
for few, and so is splitting it: a `?` becomes 0 for one clone and 1 for the other. But going through the codes takes a
line per code, so the working fills a window, and a clone needs only its part of it.

A longest run is the largest number of equal digits in a row: 4 in 101111001. The answer is the last digit of the sum.
(Longest runs, because simpler sums, such as the number of ones, can be computed from the pattern directly.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, groupby, product

from ramet.budget import Budget
from ramet.errors import ConfigError
from ramet.interfaces import Ask, Move, Oracle, TaskWorld, View, World
from ramet.tasks.dice import Dice, in_eval
from ramet.tasks.erring import Check, Habits, Wrong
from ramet.tasks.manner import make_manner
from ramet.tasks.numbers import last_number
from ramet.tasks.registry import check_index, parse_range
from ramet.tasks.split import Split
from ramet.types import Node, Task, Verdict

PATTERN = re.compile(r"(?<![01?\w])[01?]+(?![01?\w])")
WIDEST = 16  # places: a verdict computes all codes
MORE = {"long": 1, "longer": 2}  # unknown places more than in training
MOST = 1000  # most patterns in such a split
DEEPER = 0.3  # how often a clone of the oracle delegates
SMALL = 2  # most unknown places of a pattern that a node of the uniform style goes through itself
ASKED, LAST = "Add longest runs of ", " (last digit)"


class Codes:
    """Patterns of `places` digits, of which `unknown` (least, most) are a `?`: each doubles the number of codes."""

    name = "codes"
    about = "add up longest runs of all codes that fit a pattern"
    size_unit = "codes"
    splits: Mapping[str, str] = {
        "train": "unlimited",
        "eval": "never in train, except as a part of a longer pattern",
        "long": "out of distribution: every pattern with twice as many codes as the longest in training",
        "longer": "out of distribution: every pattern with four times as many codes as the longest in training",
    }

    def __init__(
        self,
        *,
        places: int = 8,
        unknown: Sequence[int] | int = (1, 5),
        seed: int = 0,
        style: str = "cuts",
        mistakes: float = 0.0,
        ask_tokens: bool = False,
    ) -> None:
        self.places = places
        self.unknown = parse_range(unknown, name="unknown", least=0)
        self.seed = seed
        self.manner = make_manner(self.name, style=style, mistakes=mistakes, ask_tokens=ask_tokens)
        self._all: dict[str, Sequence[str]] = {}
        if not self.unknown[1] < places <= WIDEST:
            raise ConfigError(
                f"places must be from {self.unknown[1] + 1}, one more than unknown, to {WIDEST}; got {places}"
            )

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
        raise ConfigError(f"{self.name}: these options leave no pattern with {unknown} unknown places for {split}")

    def _far(self, split: str) -> Sequence[str]:
        """All patterns of an out-of-distribution split, shuffled."""
        unknown = self._unknown(split)[0]
        if unknown > self.places:
            raise ConfigError(f"{self.name}:{split} needs {unknown} unknown places, but places is {self.places}")
        if split not in self._all:
            dice = Dice(self.name, self.seed, split)
            self._all[split] = dice.shuffled(list(patterns(self.places, unknown)))[:MOST]
        return self._all[split]

    def world(self, task: Task) -> World:
        return TaskWorld(task)

    def budget(self, task: Task) -> Budget:
        """Enough tokens for the deepest tree, in which every node lends a third of its tokens to each of two clones."""
        unknown = _pattern(task.question).count("?")
        return Budget(tokens=1000 + 100 * 3**unknown, nodes=4 + 2 * 2**unknown, depth=unknown + 1, reserve=32)

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        del world
        pattern = pattern_in(task.question if node.parent is None else node.goal)
        return None if pattern is None else Verdict(score=_score(node.answer, last_digit(pattern)), how="exact")

    def split(self, task: Task, parts: int) -> Split:
        """For the controls of an evaluation: patterns with as many codes each, as far as possible."""
        return split_pattern(_pattern(task.question), parts)

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Oracle:
        place, uniform = (task.id, seed), self.manner.is_uniform(task.id, seed)
        oracle, solo = (Adder(delegate=choice, dice_seed=place, uniform=uniform) for choice in (delegate, False))
        return self.manner.show(oracle, solo=solo, habits=HABITS, seed=place)

    def same(self, task: Task, one: str, other: str) -> bool:
        """Whether the last numbers are equal: only they are graded."""
        del task
        return last_number(one) == last_number(other)

    def same_goal(self, task: Task, goal: str, other: str) -> bool:
        """Whether both goals have the same pattern."""
        del task
        pattern = pattern_in(goal)
        return pattern is not None and pattern == pattern_in(other)

    def size_of(self, task: Task) -> float | None:
        """The number of codes."""
        return _codes(_pattern(task.question))

    def goal_size(self, task: Task, goal: str) -> float | None:
        """The number of codes that match the pattern of a goal."""
        del task
        pattern = pattern_in(goal)
        return None if pattern is None else _codes(pattern)

    def sizes(self, split: str) -> tuple[float, float] | None:
        least, most = self._unknown(split)
        return 2**least, 2**most

    def self_check(self, task: Task) -> tuple[float, float]:
        digit = last_digit(_pattern(task.question))
        return _score(f"So it is {digit}", digit), _score(str((digit + 1) % 10), digit)


def goal(pattern: str) -> str:
    """The goal for a pattern.

    Example:
        goal("1?0")  # "Add longest runs of 1?0 (last digit)"
    """
    return f"{ASKED}{pattern}{LAST}"


def pattern_in(text: str) -> str | None:
    """The only pattern in a text; None if there is none or more than one.

    Example:
        pattern_in("Add longest runs of 1?0 (last digit)")  # "1?0"
    """
    words = [word for word in PATTERN.findall(text) if len(word) > 1]
    return words[0] if len(words) == 1 and len(words[0]) <= WIDEST else None


def patterns(places: int, unknown: int) -> Iterator[str]:
    """All patterns with this many places and unknown places.

    Example:
        list(patterns(2, 1))  # ["?0", "?1", "0?", "1?"]
    """
    for open_places in combinations(range(places), unknown):
        for digits in product("01", repeat=places - unknown):
            known = iter(digits)
            yield "".join("?" if place in open_places else next(known) for place in range(places))


def longest_run(code: str) -> int:
    """The largest number of equal digits in a row.

    Example:
        longest_run("101111001")  # 4
    """
    return max(len(list(run)) for _, run in groupby(code))


@lru_cache(maxsize=4096)
def last_digit(pattern: str) -> int:
    """The last digit of the sum of longest runs over all matching codes: 2 in 100 and 2 in 110 give 4.

    Example:
        last_digit("1?0")  # 4
    """
    return sum(map(longest_run, fitting(pattern))) % 10


def fitting(pattern: str) -> Iterator[str]:
    """All codes that match, in order.

    Example:
        list(fitting("1?0"))  # ["100", "110"]
    """
    if "?" not in pattern:
        yield pattern
        return
    for half in halves(pattern):
        yield from fitting(half)


def halves(pattern: str) -> tuple[str, str]:
    """Two patterns that together match the same codes.

    Example:
        halves("1?0?")  # ("100?", "110?")
    """
    return pattern.replace("?", "0", 1), pattern.replace("?", "1", 1)


def split_pattern(pattern: str, parts: int) -> Split:
    """Halve the pattern with the most codes until there are enough.

    Example:
        split_pattern("1??", 3) has goals for 100, 101 and 11?
    """
    found = [pattern]
    while len(found) < parts:
        place = max(range(len(found)), key=lambda place: found[place].count("?"))
        if "?" not in found[place]:
            break
        found[place : place + 1] = halves(found[place])
    if len(found) < 2:
        return Split()
    return Split(parts=tuple(Ask(goal=goal(part)) for part in found), combine=_how_many(pattern))


def _how_many(pattern: str) -> str:
    """The first line of a thought, so that what follows can depend on it."""
    return f"{_codes(pattern)} codes"


def _codes(pattern: str) -> int:
    return 2 ** pattern.count("?")


def _pattern(question: str) -> str:
    pattern = pattern_in(question)
    if pattern is None:
        raise ConfigError(f"no pattern in {question!r}: write it like {goal('1?0??10??')!r}")
    return pattern


def _score(answer: str | None, digit: int) -> float:
    """1 or 0: a near digit is as wrong as any other."""
    return float(last_number(answer) == digit)


class Adder:
    """Goes through the codes one by one, or fixes the first `?` and delegates the two halves.

    In the uniform style every node with more than four codes delegates.
    """

    def __init__(self, *, delegate: bool, dice_seed: tuple[object, ...], uniform: bool = False) -> None:
        self.delegate = delegate
        self.dice_seed = dice_seed
        self.uniform = uniform

    def move(self, view: View) -> Move:
        pattern = _pattern(view.goal)
        if not self._splits(pattern, view):
            return _add_up(pattern)
        if view.turn == 0:
            return Move(thought=_how_many(pattern), asks=tuple(Ask(goal=goal(half)) for half in halves(pattern)))
        digits = [str(number) for number in map(last_number, view.history[0]) if isinstance(number, int)]
        if len(digits) < 2:
            return _add_up(pattern)  # a clone was refused
        total = sum(map(int, digits)) % 10
        return Move(thought=f"{'+'.join(digits)}={total}", answer=str(total))

    def _splits(self, pattern: str, view: View) -> bool:
        """Whether this node delegates: a root always, a clone at random; in the uniform style by its size."""
        if not self.delegate or "?" not in pattern:
            return False
        if self.uniform:
            return pattern.count("?") > SMALL
        return view.depth == 0 or Dice("deeper", *self.dice_seed, view.goal).chance(DEEPER)


def _add_up(pattern: str) -> Move:
    """Every code with the last digits of its longest run and of the sum so far."""
    lines, total = [_how_many(pattern)], 0
    for code in fitting(pattern):
        total += longest_run(code)
        lines.append(f"{code}:{longest_run(code) % 10}={total % 10}")
    return Move(thought="\n".join(lines), answer=str(total % 10))


# Its mistakes.


def _wrong_half(ask: Ask, dice: Dice) -> Wrong:
    """A half with one fixed digit of the pattern changed."""
    half = _pattern(ask.goal)
    place = dice.pick([i for i, sign in enumerate(half) if sign != "?"])
    wrong = half[:place] + ("1" if half[place] == "0" else "0") + half[place + 1 :]
    return Wrong(ask=Ask(goal=goal(wrong)), line=f"{wrong} is not {half}")


def _is_digit(ask: Ask, told: str) -> Check:
    return Check(ok=told.strip().isdigit(), line="" if told.strip().isdigit() else f"{_pattern(ask.goal)}: no digit")


def _no_pattern(view: View) -> str | None:
    return "no pattern" if pattern_in(view.goal) is None else None


HABITS = Habits(
    verb="add",
    spoil=_wrong_half,
    check=_is_digit,
    impossible=_no_pattern,
    label=lambda ask: _pattern(ask.goal),
)
