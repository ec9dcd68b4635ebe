"""Countdown and the game of 24: an expression that uses given numbers, each once, and makes a target.

A part of a puzzle is a puzzle: after a first operation fewer numbers are left. So a clone's goal, worded like the
question, is checked exactly as well; where nothing makes its target, the right answer is `impossible`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from ramet.agent.tree import TaskWorld
from ramet.budget import Budget
from ramet.errors import ConfigError
from ramet.interfaces import World
from ramet.tasks.check import exact_match
from ramet.tasks.countdown.formula import Formula, join, last_formula, number, parse
from ramet.tasks.countdown.puzzle import IMPOSSIBLE, MOST_NUMBERS, NO_WAY, Puzzle, reach, read, solve, solves
from ramet.tasks.dice import Dice, in_eval
from ramet.tasks.files import data_file, read_lines
from ramet.tasks.oracle import Ask, Move, View
from ramet.tasks.registry import check_index, observed_sizes, rows_of, span
from ramet.types import Node, Task, Verdict

SMALL, FEW = 10, 0.6  # this share of numbers is small: without them hardly a product fits
WEIGHTS = {"+": 2.0, "-": 3.5, "*": 3.0, "/": 4.0}  # of the operators that fit
LARGEST_STEP = 2000
FIELDS = (("question", str), ("answer", str), ("meta", dict))


class Countdown:
    """Random puzzles, all with a solution. `numbers` and `long_numbers` say how many, (least, most)."""

    name = "countdown"
    about = "make a target from given numbers with + - * /"
    splits: Mapping[str, str] = {
        "train": "without end",
        "eval": "never in train",
        "long": "out of distribution: more numbers than any trained on",
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
    ) -> None:
        self.numbers = span(numbers, name="numbers", least=2)
        self.long_numbers = span(long_numbers, name="long_numbers", least=self.numbers[1] + 1)
        self.targets = span(targets, name="targets")
        if self.long_numbers[1] > MOST_NUMBERS:
            raise ConfigError(f"{self.name}: at most {MOST_NUMBERS} numbers can be searched")
        self.largest = largest
        self.seed = seed
        self.data = data

    def size(self, split: str) -> int | None:
        return len(self._rows(split)) if split.startswith("data_") else None

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
        raise ConfigError(f"{self.name}: these knobs leave no puzzle for {split}")

    def draw(self, dice: Dice, size: int) -> Formula | None:
        """One try: numbers joined two by two until one value is left, all values whole and above zero."""
        tops = [min(SMALL, self.largest) if dice.chance(FEW) else self.largest for _ in range(size)]
        parts = [number(dice.between(1, top)) for top in tops]
        while len(parts) > 1:
            first, second, *rest = dice.shuffled(parts)
            tries = [join(first, operator, second) for operator in WEIGHTS]
            weights = [WEIGHTS[one.operator] if one is not None and _is_fine(one) else 0.0 for one in tries]
            joined = dice.weighted(tries, weights)
            parts = [joined, *rest] if joined is not None else []
        return parts[0] if self.targets[0] <= parts[0].value <= self.targets[1] else None

    def question(self, puzzle: Puzzle) -> str:
        return puzzle.goal()

    def _file(self, split: str) -> Path:
        return data_file(self.data, split.replace("data", self.name), taskset=self.name)

    def _rows(self, split: str) -> tuple[dict[str, Any], ...]:
        return read_lines(self._file(split), FIELDS)

    def _from_row(self, split: str, index: int) -> Task:
        row = self._rows(split)[index]
        where = f"{self._file(split)}, line {index + 1}"
        meta = cast(dict[str, Any], row["meta"])
        numbers, target = meta.get("numbers"), meta.get("target")
        whole = isinstance(numbers, list) and all(type(one) is int for one in cast(list[object], numbers))
        if not whole or not numbers:
            raise ConfigError(f"{where}: field 'meta.numbers' is a list of whole numbers")
        if type(target) is not int:
            raise ConfigError(f"{where}: field 'meta.target' is a whole number")
        puzzle = Puzzle(tuple(cast(list[int], numbers)), Fraction(target))
        if not solves(row["answer"], puzzle):
            raise ConfigError(f"{where}: field 'answer' does not solve the puzzle: {row['answer'][:60]!r}")
        return _task(f"{self.name}:{split}/{index}", row["question"], puzzle, str(last_formula(row["answer"])))

    def world(self, task: Task) -> World:
        return TaskWorld(task)

    def budget(self, task: Task) -> Budget:
        numbers = len(puzzle_of(task).numbers)
        return Budget(tokens=2000 * numbers, nodes=16 + 4 * numbers, depth=3, children=8, reserve=32)

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        """An expression that solves the puzzle; for a clone also `impossible`, where that is true."""
        del world
        if node.parent is None:
            return Verdict(score=float(solves(node.answer, puzzle_of(task))), how="exact")
        puzzle = read(node.goal)
        if puzzle is None:
            return None
        if puzzle.solution() is not None:
            return Verdict(score=float(solves(node.answer, puzzle)), how="exact")
        said = bool(NO_WAY.search(node.answer or ""))
        return Verdict(score=float(said), how="exact", reason="the puzzle has no solution")

    def same(self, task: Task, one: str, other: str) -> bool:
        """Whether both make the same value from the same numbers, whatever the way; or say the same words."""
        del task
        mine, theirs = last_formula(one), last_formula(other)
        if mine is None or theirs is None:
            return mine is theirs and bool(exact_match(one, [other]))
        return (mine.value, mine.numbers()) == (theirs.value, theirs.numbers())

    def size_of(self, task: Task) -> float | None:
        """Numbers given."""
        return len(puzzle_of(task).numbers)

    def sizes(self, split: str) -> tuple[float, float] | None:
        if split.startswith("data_"):
            return observed_sizes(self, rows_of(self, split))
        return self.long_numbers if split == "long" else self.numbers

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Solver:
        return Solver(puzzle_of(task), solution_of(task), delegate=delegate, dice_seed=(task.id, seed))

    def self_check(self, task: Task) -> tuple[float, float]:
        puzzle, solution = puzzle_of(task), solution_of(task)
        right = f"I get {solution} = {puzzle.target}."
        return float(solves(right, puzzle)), float(solves(f"{solution} + 1", puzzle))


class Game24(Countdown):
    """Four numbers that make 24, drawn from 1 to 13. Splits go by the numbers, whatever their order."""

    name = "game24"
    about = "make 24 from four numbers with + - * /"
    splits: Mapping[str, str] = {
        "train": "without end; may hold puzzles of data_eval, so train on data_train where that is reported",
        "eval": "never in train",
        "data_train": "game24_train of the data folder",
        "data_eval": "game24_eval of the data folder",
    }

    def __init__(self, *, largest: int = 13, target: int = 24, seed: int = 0, data: str | Path | None = None) -> None:
        super().__init__(numbers=(4, 4), largest=largest, targets=(target, target), seed=seed, data=data)

    def draw(self, dice: Dice, size: int) -> Formula | None:
        """One try: any four numbers, if an exact search finds a way."""
        numbers = tuple(sorted(dice.between(1, self.largest) for _ in range(size)))
        return solve(numbers, Fraction(self.targets[0]))

    def question(self, puzzle: Puzzle) -> str:
        listed = ", ".join(map(str, puzzle.numbers))
        return f"Use the numbers {listed} exactly once each with + - * / and parentheses to make {puzzle.target}."


def _is_fine(part: Formula) -> bool:
    return part.value.denominator == 1 and 0 < part.value <= LARGEST_STEP


def _task(name: str, question: str, puzzle: Puzzle, solution: str) -> Task:
    reference = {"numbers": list(puzzle.numbers), "target": int(puzzle.target), "solution": solution}
    return Task(id=name, question=question, reference=reference)


def puzzle_of(task: Task) -> Puzzle:
    held = cast(dict[str, Any], task.reference)
    return Puzzle(tuple(held["numbers"]), Fraction(held["target"]))


def solution_of(task: Task) -> Formula:
    return parse(cast(dict[str, Any], task.reference)["solution"])


# The oracle.


class Solver:
    """Tries first operations: alone one after the other, or each by a clone that gets the numbers left after it."""

    def __init__(self, puzzle: Puzzle, solution: Formula, *, delegate: bool, dice_seed: tuple[object, ...]) -> None:
        self.puzzle = puzzle
        self.solution = solution
        self.delegate = delegate
        self.dice_seed = dice_seed

    def move(self, view: View) -> Move:
        puzzle = self.puzzle if view.depth == 0 else read(view.goal)
        if puzzle is None:
            raise AssertionError(f"no puzzle in {view.goal!r}")
        solution = self.solution if view.depth == 0 else puzzle.solution()
        dice = Dice("first", *self.dice_seed, view.goal)
        if not self._splits(puzzle, view):
            return _alone(puzzle, solution, dice)
        firsts = _firsts(puzzle, solution, dice, extra=dice.between(1, 3) if view.depth == 0 else 1)
        if view.turn == 0:
            asks = [f'{_left(puzzle, one).goal()} If there is none, answer "{IMPOSSIBLE}".' for one in firsts]
            tried = "; ".join(f"{one} = {one.value}" for one in firsts)
            return Move(thought=f"First operations to try: {tried}", asks=tuple(Ask(goal=goal) for goal in asks))
        for one, answer in zip(firsts, view.history[0], strict=True):
            rest = last_formula(answer)
            if rest is not None:
                return Move(thought=f"{one} = {one.value} works: {rest}", answer=str(rest.put(one)))
        return _alone(puzzle, solution, dice)

    def _splits(self, puzzle: Puzzle, view: View) -> bool:
        """Whether this node delegates: the root always; a clone sometimes, whether or not it pays."""
        if not self.delegate or view.depth >= 3 or len(puzzle.numbers) < 3:
            return False
        return view.depth == 0 or Dice("deeper", *self.dice_seed, view.goal).chance(0.3)


def _alone(puzzle: Puzzle, solution: Formula | None, dice: Dice) -> Move:
    """Some ways that lead nowhere, then the one that does, or the word that there is none."""
    if len(puzzle.numbers) > 2:
        tries = _others(puzzle, dice)[: dice.between(0, 2)]
        dead = [one for one in tries if _left(puzzle, one).solution() is None]
        lines = [f"{one} = {one.value}: {puzzle.target} is out of reach" for one in dead]
    else:
        lines = [] if solution is not None else [f"{one} = {one.value}" for one in reach(puzzle.numbers).values()]
    if solution is None:
        return Move(thought="\n".join([*lines, "No way leads there."]), answer=IMPOSSIBLE)
    return Move(thought="\n".join([*lines, *solution.steps()]), answer=str(solution))


def _firsts(puzzle: Puzzle, solution: Formula | None, dice: Dice, *, extra: int) -> list[Formula]:
    """First operations to try, in any order: one of the solution, if it has one with a whole result, and others."""
    inner = [part for part in solution.walk() if _is_first(part)] if solution is not None else []
    right = [dice.pick(inner)] if inner else []
    others = [one for one in _others(puzzle, dice) if not right or _left(puzzle, one) != _left(puzzle, right[0])]
    return dice.shuffled([*right, *others[:extra]])


def _is_first(part: Formula) -> bool:
    """Whether it joins two plain numbers to a whole one, not below zero: a clone can be given that as a number."""
    plain = bool(part.sides) and not any(side.sides for side in part.sides)
    return plain and part.value.denominator == 1 and part.value >= 0


def _others(puzzle: Puzzle, dice: Dice) -> list[Formula]:
    """Every first operation there is, in random order, no two that leave the same numbers."""
    tries: dict[Puzzle, Formula] = {}
    leaves = [number(one) for one in puzzle.numbers]
    pairs = [(a, b) for i, a in enumerate(leaves) for j, b in enumerate(leaves) if i != j]
    for a, b in dice.shuffled(pairs):
        joined = join(a, dice.pick("+-*/"), b)
        if joined is not None and _is_first(joined):
            tries.setdefault(_left(puzzle, joined), joined)
    return list(tries.values())


def _left(puzzle: Puzzle, first: Formula) -> Puzzle:
    """The puzzle after a first operation."""
    left = list(puzzle.numbers)
    for used in first.numbers():
        left.remove(used)
    return Puzzle((*left, int(first.value)), puzzle.target)
