"""Puzzles: numbers to use, each once, and what they have to make. Solved by exact search."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations

from ramet.tasks.countdown.formula import Formula, join, last_formula, number

TARGET = r"(-?\d{1,12}(?:/\d{1,12})?)(?!\.?\d)"
FORMS = (
    re.compile(rf"using the numbers \[?([\d, ]+)\]?[^.]*? equal to {TARGET}", re.IGNORECASE),
    re.compile(rf"use the numbers \[?([\d, ]+?)\]? exactly once[^.]*? to make {TARGET}", re.IGNORECASE),
)
IMPOSSIBLE = "impossible"
NO_WAY = re.compile(r"\b(impossible|no solution|cannot be done|not possible|none)\b", re.IGNORECASE)
MOST_NUMBERS = 6  # more cannot be searched in a moment


@dataclass(frozen=True, slots=True)
class Puzzle:
    """Numbers to use, and what they have to make."""

    numbers: tuple[int, ...]
    target: Fraction

    def goal(self) -> str:
        listed = ", ".join(map(str, self.numbers))
        return (
            f"Using the numbers [{listed}], each exactly once, with + - * / and parentheses, "
            f"write an expression equal to {self.target}."
        )

    def solution(self) -> Formula | None:
        return solve(tuple(sorted(self.numbers)), self.target)

    def key(self) -> str:
        """The same for the same puzzle, however its numbers are ordered."""
        return f"{sorted(self.numbers)} {self.target}"


def solves(answer: str | None, puzzle: Puzzle) -> bool:
    """Whether the last expression of an answer uses exactly the numbers, once each, and makes exactly the target."""
    formula = last_formula(answer)
    return formula is not None and formula.value == puzzle.target and formula.numbers() == sorted(puzzle.numbers)


def read(goal: str) -> Puzzle | None:
    """The one puzzle that a goal asks for, or None.

    Example:
        read("Using the numbers [3, 8], each exactly once, write an expression equal to 24.")
    """
    found = [match for form in FORMS for match in form.findall(goal[:2000])]
    if len(found) != 1:
        return None
    listed, target = found[0]
    words = re.findall(r"\d+", listed)
    if not 2 <= len(words) <= MOST_NUMBERS or max(map(len, words)) > 12 or re.search(r"/0+$", target):
        return None
    return Puzzle(tuple(map(int, words)), Fraction(target))


# Searching.


@lru_cache(maxsize=4096)
def reach(numbers: tuple[int, ...]) -> dict[Fraction, Formula]:
    """Every value that uses all the numbers, with one formula for each."""
    if len(numbers) == 1:
        return {Fraction(numbers[0]): number(numbers[0])}
    found: dict[Fraction, Formula] = {}
    for few, rest in _splits(numbers):
        for one in reach(few).values():
            for other in reach(rest).values():
                tries = ((one, "+", other), (one, "-", other), (other, "-", one), (one, "*", other))
                for left, operator, right in (*tries, (one, "/", other), (other, "/", one)):
                    formula = join(left, operator, right)
                    if formula is not None:
                        found.setdefault(formula.value, formula)
    return found


@lru_cache(maxsize=65536)
def solve(numbers: tuple[int, ...], target: Fraction) -> Formula | None:
    """A formula that uses all the numbers once and makes the target, or None when there is none.

    Example:
        str(solve((3, 3, 8, 8), Fraction(24)))  # "8 / (3 - (8 / 3))"
    """
    numbers = tuple(sorted(numbers))
    if len(numbers) <= 3:
        return reach(numbers).get(target)
    for few, rest in _splits(numbers):
        for one in reach(few).values():
            for operator, wanted, first in _needed(one.value, target):
                other = solve(rest, wanted)
                if other is not None:
                    return join(one, operator, other) if first else join(other, operator, one)
    return None


def _needed(value: Fraction, target: Fraction) -> Iterator[tuple[str, Fraction, bool]]:
    """What else it takes to get from one value to the target: operator, other value, whether ours comes first."""
    yield "+", target - value, True
    yield "-", value - target, True
    yield "-", target + value, False
    if value:
        yield "*", target / value, True
        yield "/", target * value, False
        if target:
            yield "/", value / target, True


@lru_cache(maxsize=4096)
def _splits(numbers: tuple[int, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All ways to part the numbers in two, the smaller part first, equal ones once."""
    places = range(len(numbers))
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], None] = {}
    for size in range(1, len(numbers) // 2 + 1):
        for chosen in combinations(places, size):
            few = tuple(numbers[i] for i in chosen)
            rest = tuple(numbers[i] for i in places if i not in chosen)
            found.setdefault((few, rest))
    return list(found)
