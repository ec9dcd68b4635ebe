"""Puzzles: numbers to use, each once, and the target to make. Solved by exact search."""

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
MOST_NUMBERS = 6  # the search grows too fast beyond


@dataclass(frozen=True, slots=True)
class Puzzle:
    """The numbers to use, and the target to make."""

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
        """A key that does not depend on the order of the numbers."""
        return f"{sorted(self.numbers)} {self.target}"


def solves(answer: str | None, puzzle: Puzzle) -> bool:
    """Whether the last expression of an answer uses every number exactly once and equals the target."""
    formula = last_formula(answer)
    return formula is not None and formula.value == puzzle.target and formula.numbers() == sorted(puzzle.numbers)


def parse_puzzle(goal: str) -> Puzzle | None:
    """The only puzzle in a goal; None if there is none, or more than one.

    Example:
        parse_puzzle("Using the numbers [3, 8], each exactly once, write an expression equal to 24.")
    """
    matches = [match for form in FORMS for match in form.findall(goal[:2000])]
    if len(matches) != 1:
        return None
    listed, target = matches[0]
    words = re.findall(r"\d+", listed)
    if not 2 <= len(words) <= MOST_NUMBERS or max(map(len, words)) > 12 or re.search(r"/0+$", target):
        return None
    return Puzzle(tuple(map(int, words)), Fraction(target))


# Searching.


@lru_cache(maxsize=4096)
def reachable(numbers: tuple[int, ...]) -> dict[Fraction, Formula]:
    """Every value that uses all the numbers, each with one formula."""
    if len(numbers) == 1:
        return {Fraction(numbers[0]): number(numbers[0])}
    values: dict[Fraction, Formula] = {}
    for few, rest in _splits(numbers):
        for part in reachable(few).values():
            for other in reachable(rest).values():
                tries = ((part, "+", other), (part, "-", other), (other, "-", part), (part, "*", other))
                for left, operator, right in (*tries, (part, "/", other), (other, "/", part)):
                    formula = join(left, operator, right)
                    if formula is not None:
                        values.setdefault(formula.value, formula)
    return values


@lru_cache(maxsize=65536)
def solve(numbers: tuple[int, ...], target: Fraction) -> Formula | None:
    """A formula that uses every number once and equals the target, or None.

    Example:
        str(solve((3, 3, 8, 8), Fraction(24)))  # "8 / (3 - (8 / 3))"
    """
    numbers = tuple(sorted(numbers))
    if len(numbers) <= 3:
        return reachable(numbers).get(target)
    for few, rest in _splits(numbers):
        for part in reachable(few).values():
            for operator, wanted, first in _needed(part.value, target):
                other = solve(rest, wanted)
                if other is not None:
                    return join(part, operator, other) if first else join(other, operator, part)
    return None


def _needed(value: Fraction, target: Fraction) -> Iterator[tuple[str, Fraction, bool]]:
    """Ways from one value to the target: the operator, the other value, and whether the first value comes first."""
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
    """All ways to split the numbers in two, the smaller part first, without repeats."""
    places = range(len(numbers))
    splits: dict[tuple[tuple[int, ...], tuple[int, ...]], None] = {}
    for size in range(1, len(numbers) // 2 + 1):
        for chosen in combinations(places, size):
            few = tuple(numbers[i] for i in chosen)
            rest = tuple(numbers[i] for i in places if i not in chosen)
            splits.setdefault((few, rest))
    return list(splits)
