"""The oracle of countdown, and its mistakes."""

from __future__ import annotations

from dataclasses import replace

from ramet.interfaces import Ask, Move, View
from ramet.tasks.countdown.formula import Formula, join, last_formula, number
from ramet.tasks.countdown.puzzle import IMPOSSIBLE, Puzzle, parse_puzzle, reachable, solves
from ramet.tasks.dice import Dice
from ramet.tasks.erring import Check, Habits, Wrong


class Solver:
    """Tries first operations: alone one after the other, or each by a clone that gets the numbers left after it.

    In the uniform style every node with more than two numbers has clones try two first operations.
    """

    def __init__(
        self,
        puzzle: Puzzle,
        solution: Formula,
        *,
        delegate: bool,
        dice_seed: tuple[object, ...],
        uniform: bool = False,
    ) -> None:
        self.puzzle = puzzle
        self.solution = solution
        self.delegate = delegate
        self.dice_seed = dice_seed
        self.uniform = uniform

    def move(self, view: View) -> Move:
        puzzle = self.puzzle if view.depth == 0 else parse_puzzle(view.goal)
        if puzzle is None:
            raise AssertionError(f"no puzzle in {view.goal!r}")
        solution = self.solution if view.depth == 0 else puzzle.solution()
        dice = Dice("first", *self.dice_seed, view.goal)
        if not self._splits(puzzle, view):
            return _alone(puzzle, solution, dice)
        several = view.depth == 0 and not self.uniform
        firsts = _firsts(puzzle, solution, dice, extra=dice.between(1, 3) if several else 1)
        if view.turn == 0:
            asks = [
                f'{_left(puzzle, operation).goal()} If there is none, answer "{IMPOSSIBLE}".' for operation in firsts
            ]
            tried = "; ".join(f"{operation} = {operation.value}" for operation in firsts)
            return Move(thought=f"First operations to try: {tried}", asks=tuple(Ask(goal=goal) for goal in asks))
        for operation, answer in zip(firsts, view.history[0], strict=False):
            rest = last_formula(answer)
            if rest is not None and solves(answer, _left(puzzle, operation)):
                return Move(thought=f"{operation} = {operation.value} works: {rest}", answer=str(rest.put(operation)))
        return _alone(puzzle, solution, dice)

    def _splits(self, puzzle: Puzzle, view: View) -> bool:
        """Whether this node delegates: a root always, a clone at random; in the uniform style both."""
        if not self.delegate or view.depth >= 3 or len(puzzle.numbers) < 3:
            return False
        return view.depth == 0 or self.uniform or Dice("deeper", *self.dice_seed, view.goal).chance(0.3)


def _alone(puzzle: Puzzle, solution: Formula | None, dice: Dice) -> Move:
    """Some dead ends, then the solution, or the answer that there is none."""
    if len(puzzle.numbers) > 2:
        tries = _others(puzzle, dice)[: dice.between(0, 2)]
        dead = [operation for operation in tries if _left(puzzle, operation).solution() is None]
        lines = [f"{operation} = {operation.value}: {puzzle.target} is out of reach" for operation in dead]
    else:
        lines = (
            []
            if solution is not None
            else [f"{operation} = {operation.value}" for operation in reachable(puzzle.numbers).values()]
        )
    if solution is None:
        return Move(thought="\n".join([*lines, "No way leads there."]), answer=IMPOSSIBLE)
    return Move(thought="\n".join([*lines, *solution.steps()]), answer=str(solution))


def _firsts(puzzle: Puzzle, solution: Formula | None, dice: Dice, *, extra: int) -> list[Formula]:
    """First operations to try, shuffled: one of the solution, if it has one with a whole result, and others."""
    inner = [part for part in solution.walk() if _is_first(part)] if solution is not None else []
    right = [dice.pick(inner)] if inner else []
    others = [
        operation
        for operation in _others(puzzle, dice)
        if not right or _left(puzzle, operation) != _left(puzzle, right[0])
    ]
    return dice.shuffled([*right, *others[:extra]])


def _is_first(part: Formula) -> bool:
    """Whether it joins two plain numbers to a whole number of at least 0, which a clone's goal can contain."""
    plain = bool(part.sides) and not any(side.sides for side in part.sides)
    return plain and part.value.denominator == 1 and part.value >= 0


def _others(puzzle: Puzzle, dice: Dice) -> list[Formula]:
    """First operations in random order, no two of which leave the same numbers."""
    tries: dict[Puzzle, Formula] = {}
    leaves = [number(value) for value in puzzle.numbers]
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


# Its mistakes.


def _wrong_numbers(ask: Ask, dice: Dice) -> Wrong | None:
    """A puzzle with one wrong number."""
    puzzle = parse_puzzle(ask.goal)
    if puzzle is None:
        return None
    place = dice.below(len(puzzle.numbers))
    wrong = tuple(number + (i == place) for i, number in enumerate(puzzle.numbers))
    goal = ask.goal.replace(puzzle.goal(), Puzzle(wrong, puzzle.target).goal())
    left = ", ".join(map(str, puzzle.numbers))
    return Wrong(ask=replace(ask, goal=goal), line=f"I asked with a wrong number: {left} are left")


def _wrong_formula(view: View, answer: str, dice: Dice) -> str | None:
    """The numbers added up, which is not the target; nothing for a puzzle where that would be right."""
    del answer, dice
    puzzle = parse_puzzle(view.goal)
    if puzzle is None or sum(puzzle.numbers) == puzzle.target:
        return None
    return " + ".join(map(str, puzzle.numbers))


def check_formula(ask: Ask, told: str) -> Check:
    """Compute what a formula makes.

    Example:
        check_formula(Ask(goal="Using the numbers [3, 8], each exactly once, ... equal to 24."), "3 + 8").line
        # "3 + 8 = 11, not 24"
    """
    puzzle, formula = parse_puzzle(ask.goal), last_formula(told)
    if puzzle is None or formula is None or solves(told, puzzle):
        return Check()
    same = sorted(formula.numbers()) == sorted(puzzle.numbers)
    wrong = f"not {puzzle.target}" if same else "with other numbers"
    return Check(ok=False, line=f"{formula} = {formula.value}, {wrong}")


def _is_solved(ask: Ask, told: str) -> bool:
    puzzle = parse_puzzle(ask.goal)
    return puzzle is not None and solves(told, puzzle)


def _no_puzzle(view: View) -> str | None:
    return "the goal has no puzzle" if view.depth > 0 and parse_puzzle(view.goal) is None else None


HABITS = Habits(
    verb="solve it",
    spoil=_wrong_numbers,
    misanswer=_wrong_formula,
    check=check_formula,
    settles=_is_solved,
    impossible=_no_puzzle,
)
