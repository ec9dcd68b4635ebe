"""Countdown and the game of 24: an expression that uses given numbers, each once, and equals a target.

A part of a puzzle is a puzzle: a first operation leaves fewer numbers. So a clone's goal, worded like the question, is
also checked exactly; if its target cannot be made, the right answer is `impossible`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from ramet.budget import Budget
from ramet.errors import ConfigError
from ramet.interfaces import Oracle, TaskWorld, World
from ramet.tasks.check import exact_match
from ramet.tasks.countdown.formula import Formula, join, last_formula, number, parse
from ramet.tasks.countdown.oracle import HABITS, Solver
from ramet.tasks.countdown.puzzle import (
    MOST_NUMBERS,
    NO_WAY,
    Puzzle,
    parse_puzzle,
    solve,
    solves,
)
from ramet.tasks.dice import Dice, in_eval
from ramet.tasks.files import WITH_META, TaskFile, task_file
from ramet.tasks.manner import make_manner
from ramet.tasks.registry import check_index, observed_sizes, parse_range, split_tasks
from ramet.tasks.sources import named_source
from ramet.types import Node, Task, Verdict

SMALL, FEW = 10, 0.6  # this share of numbers is small: products of larger ones rarely fit
WEIGHTS = {"+": 2.0, "-": 3.5, "*": 3.0, "/": 4.0}  # of operators, if the result is allowed
LARGEST_STEP = 2000


class Countdown:
    """Random puzzles with a solution. `numbers` and `long_numbers` are how many numbers, as ranges (least, most)."""

    name = "countdown"
    about = "make a target from given numbers with + - * /"
    size_unit = "numbers"
    splits: Mapping[str, str] = {
        "train": "unlimited",
        "eval": "never in train",
        "long": "out of distribution: more numbers than in training",
        "data_train": "countdown_train of the data folder",
        "data_eval": "countdown_eval of the data folder",
    }

    def __init__(
        self,
        *,
        numbers: Sequence[int] | int = (3, 4),
        long_numbers: Sequence[int] | int = (5, 6),
        largest: int = 99,
        targets: Sequence[int] | int = (10, 999),
        seed: int = 0,
        data: str | Path | None = None,
        style: str = "cuts",
        mistakes: float = 0.0,
        ask_tokens: bool = False,
    ) -> None:
        self.manner = make_manner(self.name, style=style, mistakes=mistakes, ask_tokens=ask_tokens)
        self.numbers = parse_range(numbers, name="numbers", least=2)
        self.long_numbers = parse_range(long_numbers, name="long_numbers", least=self.numbers[1] + 1)
        self.targets = parse_range(targets, name="targets")
        if self.long_numbers[1] > MOST_NUMBERS:
            raise ConfigError(f"{self.name}: long_numbers must be at most {MOST_NUMBERS}: more cannot be searched")
        self.largest = largest
        self.seed = seed
        self.data = data

    def size(self, split: str) -> int | None:
        return len(self._file(split)) if split.startswith("data_") else None

    def task(self, split: str, index: int) -> Task:
        check_index(self, split, index)
        if split.startswith("data_"):
            return self._from_row(split, index)
        dice = Dice(self.name, self.seed, split, index)
        size = dice.between(*(self.long_numbers if split == "long" else self.numbers))
        for _ in range(20_000):
            solution = self.draw(dice, size)
            if solution is None:
                continue
            puzzle = Puzzle(tuple(dice.shuffled(solution.numbers())), solution.value)
            if split == "long" or in_eval(puzzle.key()) == (split == "eval"):
                return _task(f"{self.name}:{split}/{index}", self.question(puzzle), puzzle, str(solution))
        raise ConfigError(f"{self.name}: these options leave no puzzle for {split}")

    def draw(self, dice: Dice, size: int) -> Formula | None:
        """Draw a solution: join numbers two by two until one value is left, all values whole and above zero."""
        tops = [min(SMALL, self.largest) if dice.chance(FEW) else self.largest for _ in range(size)]
        parts = [number(dice.between(1, top)) for top in tops]
        while len(parts) > 1:
            first, second, *rest = dice.shuffled(parts)
            tries = [join(first, operator, second) for operator in WEIGHTS]
            weights = [WEIGHTS[part.operator] if part is not None and _is_allowed(part) else 0.0 for part in tries]
            joined = dice.weighted(tries, weights)
            parts = [joined, *rest] if joined is not None else []
        return parts[0] if self.targets[0] <= parts[0].value <= self.targets[1] else None

    def question(self, puzzle: Puzzle) -> str:
        return puzzle.goal()

    def _file(self, split: str) -> TaskFile:
        return task_file(self.data, split.replace("data", self.name), taskset=self.name, required=WITH_META)

    def _from_row(self, split: str, index: int) -> Task:
        row = self._file(split)[index]
        numbers, target = row.meta.get("numbers"), row.meta.get("target")
        whole = isinstance(numbers, list) and all(type(value) is int for value in cast(list[object], numbers))
        if not whole or not numbers:
            raise ConfigError(f"{row.where}: field 'meta.numbers' must be a list of whole numbers")
        if type(target) is not int:
            raise ConfigError(f"{row.where}: field 'meta.target' must be a whole number")
        puzzle, answer = Puzzle(tuple(cast(list[int], numbers)), Fraction(target)), str(row.fields["answer"])
        if not solves(answer, puzzle):
            raise ConfigError(f"{row.where}: field 'answer' does not solve the puzzle: {answer[:60]!r}")
        return _task(f"{self.name}:{split}/{index}", row.fields["question"], puzzle, str(last_formula(answer)))

    def world(self, task: Task) -> World:
        return TaskWorld(task)

    def budget(self, task: Task) -> Budget:
        numbers = len(puzzle_of(task).numbers)
        return Budget(tokens=2000 * numbers, nodes=16 + 4 * numbers, depth=3, children=8, reserve=32)

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        """Right if the expression solves the puzzle; for a clone also `impossible`, if there is no solution."""
        del world
        if node.parent is None:
            return Verdict(score=float(solves(node.answer, puzzle_of(task))), how="exact")
        puzzle = parse_puzzle(node.goal)
        if puzzle is None:
            return None
        if puzzle.solution() is not None:
            return Verdict(score=float(solves(node.answer, puzzle)), how="exact")
        right = bool(NO_WAY.search(node.answer or ""))
        return Verdict(score=float(right), how="exact", reason="the puzzle has no solution")

    def same(self, task: Task, one: str, other: str) -> bool:
        """Whether both make the same value from the same numbers; without formulas, whether the words are the same."""
        del task
        first, second = last_formula(one), last_formula(other)
        if first is None or second is None:
            return first is second and bool(exact_match(one, [other]))
        return (first.value, first.numbers()) == (second.value, second.numbers())

    def same_goal(self, task: Task, goal: str, other: str) -> bool:
        """Whether both goals have the same numbers, in any order, and the same target."""
        del task
        puzzle, another = parse_puzzle(goal), parse_puzzle(other)
        return puzzle is not None and another is not None and puzzle.key() == another.key()

    def size_of(self, task: Task) -> float | None:
        """The number of given numbers."""
        return len(puzzle_of(task).numbers)

    def sizes(self, split: str) -> tuple[float, float] | None:
        if split.startswith("data_"):
            return observed_sizes(self, split_tasks(self, split))
        return self.long_numbers if split == "long" else self.numbers

    def source(self, split: str) -> str:
        """The data set of a split, to know what is beyond training."""
        return named_source(split)

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Oracle:
        puzzle, solution, place = puzzle_of(task), solution_of(task), (task.id, seed)
        uniform = self.manner.is_uniform(task.id, seed)
        oracle, solo = (
            Solver(puzzle, solution, delegate=choice, dice_seed=place, uniform=uniform) for choice in (delegate, False)
        )
        return self.manner.show(oracle, solo=solo, habits=HABITS, seed=place)

    def self_check(self, task: Task) -> tuple[float, float]:
        puzzle, solution = puzzle_of(task), solution_of(task)
        right = f"I get {solution} = {puzzle.target}."
        return float(solves(right, puzzle)), float(solves(f"{solution} + 1", puzzle))


class Game24(Countdown):
    """Four numbers from 1 to 13 that make 24. The split of a puzzle does not depend on their order."""

    name = "game24"
    about = "make 24 from four numbers with + - * /"
    splits: Mapping[str, str] = {
        "train": "unlimited; may contain puzzles of data_eval: to report on that, train on data_train",
        "eval": "never in train",
        "data_train": "game24_train of the data folder",
        "data_eval": "game24_eval of the data folder",
    }

    def __init__(
        self,
        *,
        largest: int = 13,
        target: int = 24,
        seed: int = 0,
        data: str | Path | None = None,
        style: str = "cuts",
        mistakes: float = 0.0,
        ask_tokens: bool = False,
    ) -> None:
        super().__init__(
            numbers=(4, 4),
            largest=largest,
            targets=(target, target),
            seed=seed,
            data=data,
            style=style,
            mistakes=mistakes,
            ask_tokens=ask_tokens,
        )

    def draw(self, dice: Dice, size: int) -> Formula | None:
        """Draw a solution: any four numbers, if an exact search finds one."""
        numbers = tuple(sorted(dice.between(1, self.largest) for _ in range(size)))
        return solve(numbers, Fraction(self.targets[0]))

    def question(self, puzzle: Puzzle) -> str:
        listed = ", ".join(map(str, puzzle.numbers))
        return f"Use the numbers {listed} exactly once each with + - * / and parentheses to make {puzzle.target}."


def _is_allowed(part: Formula) -> bool:
    return part.value.denominator == 1 and 0 < part.value <= LARGEST_STEP


def _task(name: str, question: str, puzzle: Puzzle, solution: str) -> Task:
    reference = {"numbers": list(puzzle.numbers), "target": int(puzzle.target), "solution": solution}
    return Task(id=name, question=question, reference=reference)


def puzzle_of(task: Task) -> Puzzle:
    reference = cast(dict[str, Any], task.reference)
    return Puzzle(tuple(reference["numbers"]), Fraction(reference["target"]))


def solution_of(task: Task) -> Formula:
    return parse(cast(dict[str, Any], task.reference)["solution"])
