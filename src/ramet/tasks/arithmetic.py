"""Whole-number expressions, after SELFCEST's generator, with options small enough for a tiny model.

The defaults are the paper's: 3 to 10 operators, operands of 3 to 7 digits, + - * in proportion 4 : 3 : 6, at most two
pairs of brackets, values of at most 16 digits. The score gives partial credit for close answers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from ramet.budget import Budget
from ramet.errors import ConfigError
from ramet.interfaces import Ask, Move, Oracle, TaskWorld, View, World
from ramet.tasks.dice import Dice, in_eval
from ramet.tasks.erring import Check, Habits, Wrong
from ramet.tasks.expression import (
    Sum,
    contains,
    count_operators,
    find_expression,
    parse,
    rewrites,
    steps,
    unwrap,
)
from ramet.tasks.expression_cuts import Cut, cut_every, cut_product, cut_sum, fill, split_expression
from ramet.tasks.manner import make_manner
from ramet.tasks.numbers import last_number
from ramet.tasks.registry import check_index, parse_range
from ramet.tasks.split import Split
from ramet.types import Node, Task, Verdict

INTEGER = re.compile(r"-?\d+")  # as the oracle's clones write it
WORKING = ("steps", "rewrites")
SYMBOLS, WEIGHTS = "+-*", (4.0, 3.0, 6.0)
MOST_PAIRS, NEAR_PAIR, WIDE_PAIR = 2, 0.55, 0.22


class Arithmetic:
    """Expressions to compute. `operators` and `digits` are ranges (least, most); `long` has up to twice the operators.

    `working` is how the oracle computes: in `steps`, whose tokens grow with the number of operators, or in `rewrites`
    of the remaining expression, whose tokens grow with its square. In the style `uniform`, nodes that delegate compute
    at most `part` operators themselves; if that is a range, each part has another length. With `state_size` questions
    state the number of operators, and demonstrations begin by repeating it, with the tokens that are left: what a node
    does then follows from what it has just written.
    """

    name = "arithmetic"
    about = "compute an expression; every sub-expression can be checked"
    size_unit = "operators"
    splits: Mapping[str, str] = {
        "train": "unlimited",
        "eval": "never in train",
        "long": "out of distribution: more operators than in training, up to twice as many",
    }

    def __init__(
        self,
        *,
        operators: Sequence[int] | int = (3, 10),
        digits: Sequence[int] | int = (3, 7),
        symbols: str = SYMBOLS,
        brackets: bool = True,
        value_digits: int = 16,
        working: str = "steps",
        seed: int = 0,
        style: str = "cuts",
        mistakes: float = 0.0,
        ask_tokens: bool = False,
        part: Sequence[int] | int = 5,
        state_size: bool = False,
    ) -> None:
        if not symbols or any(symbol not in SYMBOLS for symbol in symbols):
            raise ConfigError(f"symbols must be one or more of {SYMBOLS}; got {symbols!r}")
        if working not in WORKING:
            raise ConfigError(f"working must be {' or '.join(WORKING)}; got {working!r}")
        self.operators = parse_range(operators, name="operators")
        self.digits = parse_range(digits, name="digits")
        self.symbols = symbols
        self.weights = [WEIGHTS[SYMBOLS.index(symbol)] for symbol in symbols]
        self.brackets = brackets
        self.value_digits = value_digits
        self.working = working
        self.seed = seed
        self.part = parse_range(part, name="part")
        self.state_size = state_size
        self.manner = make_manner(self.name, style=style, mistakes=mistakes, ask_tokens=ask_tokens)

    def size(self, split: str) -> int | None:
        return None

    def task(self, split: str, index: int) -> Task:
        check_index(self, split, index)
        dice = Dice(self.name, self.seed, split, index)
        sizes = _sizes(self.operators, split)
        for _ in range(20_000):
            text = draw(dice, self, sizes)
            if text is not None and (split == "long" or in_eval(text) == (split == "eval")):
                expression = parse(text)
                size = f"\nIt has {count_operators(expression)} operators." if self.state_size else ""
                return Task(
                    id=f"{self.name}:{split}/{index}",
                    question=f"Compute {text}{size}",
                    reference=expression.value(),
                )
        raise ConfigError(f"{self.name}: these options leave no expression for {split}")

    def world(self, task: Task) -> World:
        return TaskWorld(task)

    def budget(self, task: Task) -> Budget:
        operators = count_operators(_expression(task))
        return Budget(tokens=600 + 300 * operators, nodes=4 + 2 * operators, depth=3, children=16, reserve=32)

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        del world
        expression = _expression(task) if node.parent is None else find_expression(node.goal)
        if expression is None:
            return None
        return Verdict(score=partial_credit(node.answer, expression.value()), how="exact")

    def same(self, task: Task, one: str, other: str) -> bool:
        """Whether the last numbers are equal: only they are graded."""
        del task
        return last_number(one) == last_number(other)

    def same_goal(self, task: Task, goal: str, other: str) -> bool:
        """Whether the expression of a goal contains that of another, in any order of terms and factors."""
        del task
        whole, part = find_expression(goal), find_expression(other)
        return whole is not None and part is not None and contains(whole, part)

    def size_of(self, task: Task) -> float | None:
        """The number of operators."""
        return count_operators(_expression(task))

    def goal_size(self, task: Task, goal: str) -> float | None:
        """The number of operators in the expression of a goal."""
        del task
        expression = find_expression(goal)
        return None if expression is None else count_operators(expression)

    def sizes(self, split: str) -> tuple[float, float] | None:
        return _sizes(self.operators, split)

    def split(self, task: Task, parts: int) -> Split:
        """For the controls of an evaluation: balanced cuts at the top-level operators."""
        return split_expression(_expression(task), parts)

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Oracle:
        place, uniform = (task.id, seed), self.manner.is_uniform(task.id, seed)
        oracle, solo = (
            Calculator(
                delegate=choice,
                dice_seed=place,
                working=self.working,
                uniform=uniform,
                part=self.part,
                state_size=self.state_size,
            )
            for choice in (delegate, False)
        )
        return self.manner.show(oracle, solo=solo, habits=HABITS, seed=place)

    def self_check(self, task: Task) -> tuple[float, float]:
        value = _expression(task).value()
        return partial_credit(f"So it is {value}", value), partial_credit(str(value + 1), value)


def partial_credit(answer: str | None, value: int) -> float:
    """1 for the right number, below 0.2 for another, by its distance, and 0 without a number.

    Example:
        partial_credit("12", 12)  # 1.0
        partial_credit("13", 12)  # 0.2 / math.log2(2 + 1 / math.sqrt(15))
    """
    number = last_number(answer)
    if number is None:
        return 0.0
    if number == value:
        return 1.0
    number = number if isinstance(number, int) else math.floor(number)
    scale = abs(2 + max(number, value))
    if not scale:
        return 0.0
    distance = abs(number - value) or 1  # a fraction can be closer, but is not right
    magnitude = math.log2(distance) - math.log2(scale) / 2
    if magnitude > 500:  # 2**magnitude would overflow, and adding 2 makes no difference
        return 0.2 / magnitude
    return 0.2 / math.log2(2 + 2**magnitude)


def _sizes(operators: tuple[int, int], split: str) -> tuple[int, int]:
    return (operators[1] + 1, 2 * operators[1]) if split == "long" else operators


@lru_cache(maxsize=4096)
def _parsed(question: str) -> Sum:
    return parse(question.removeprefix("Compute ").partition("\n")[0])


def _expression(task: Task) -> Sum:
    return _parsed(task.question)


# The generator.


def draw(dice: Dice, options: Arithmetic, sizes: tuple[int, int]) -> str | None:
    """Draw an expression as text; None if its value is too large."""
    number = dice.between(*sizes)
    operands = [_operand(dice, dice.between(*options.digits)) for _ in range(number + 1)]
    operators = [dice.weighted(options.symbols, options.weights) for _ in range(number)]
    spans = _brackets(dice, operators) if options.brackets else []
    parts = list(map(str, operands))
    for first, last in spans:
        parts[first] = "(" + parts[first]
        parts[last] = parts[last] + ")"
    text = parts[0] + "".join(operator + part for operator, part in zip(operators, parts[1:], strict=True))
    return text if len(str(abs(parse(text).value()))) <= options.value_digits else None


def _operand(dice: Dice, digits: int) -> int:
    first = dice.between(1, 9)
    return int(str(first) + "".join(str(dice.below(10)) for _ in range(digits - 1)))


def _brackets(dice: Dice, operators: Sequence[str]) -> list[tuple[int, int]]:
    """Spans of operands to bracket: sums beside a product, and sometimes a wide span."""
    spans: list[tuple[int, int]] = []
    near = [i for i, operator in enumerate(operators) if operator in "+-" and "*" in _beside(operators, i)]
    for i in dice.shuffled(near):
        if len(spans) < MOST_PAIRS and _free(spans, i, i + 1) and dice.chance(NEAR_PAIR):
            spans.append((i, i + 1))
    if len(spans) < MOST_PAIRS and dice.chance(WIDE_PAIR):
        width = dice.between(3, 5)
        if width <= len(operators) + 1:
            first = dice.below(len(operators) + 2 - width)
            inside = operators[first : first + width - 1]
            mixed = "*" in inside and any(operator in "+-" for operator in inside)
            if mixed and _free(spans, first, first + width - 1):
                spans.append((first, first + width - 1))
    return spans


def _beside(operators: Sequence[str], i: int) -> str:
    return "".join([*operators[max(0, i - 1) : i], *operators[i + 1 : i + 2]])


def _free(spans: Sequence[tuple[int, int]], first: int, last: int) -> bool:
    return all(last < a or b < first for a, b in spans)


# The oracle.


class Calculator:
    """Computes an expression step by step, or cuts it at random places and delegates the parts.

    In the uniform style every node with more operators than the longest `part` cuts its expression into parts, after as
    many operators as the range says.
    A node that delegates first writes the expression with brackets around the parts.
    """

    def __init__(
        self,
        *,
        delegate: bool,
        dice_seed: tuple[object, ...],
        working: str = "steps",
        uniform: bool = False,
        part: tuple[int, int] = (5, 5),
        state_size: bool = False,
    ) -> None:
        self.delegate = delegate
        self.dice_seed = dice_seed
        self.working = working
        self.uniform = uniform
        self.part = part
        self.state_size = state_size

    def move(self, view: View) -> Move:
        expression = find_expression(view.goal)
        if expression is None:
            raise AssertionError(f"no expression in {view.goal!r}")
        move = self._move(expression, view)
        if not self.state_size or view.depth or view.turn:
            return move
        left = "" if view.tokens is None else f", {view.tokens} tokens"
        return replace(move, thought=f"{count_operators(expression)} operators{left}\n{move.thought}".rstrip())

    def _move(self, expression: Sum, view: View) -> Move:
        cut = self._cut(expression, view) if self._splits(expression, view) else None
        if cut is None:
            return self._work_out(expression)
        if view.turn == 0:
            return Move(thought=cut.plan, asks=tuple(Ask(goal=f"Compute {part}") for part in cut.parts))
        answers = view.history[0]
        if not all(INTEGER.fullmatch(answer) for answer in answers) or len(answers) < len(cut.parts):
            return self._work_out(expression)  # a clone was refused, or did not get to its answer
        return self._work_out(parse(fill(cut.shape, answers)), written=True)

    def _work_out(self, expression: Sum, *, written: bool = False) -> Move:
        """Compute an expression; with `written`, write it down first."""
        # The last rewrite is the answer.
        lines = steps(expression) if self.working == "steps" else rewrites(expression)[:-1]
        if written and count_operators(expression):
            lines = [str(expression), *lines]
        return Move(thought="\n".join(lines), answer=str(expression.value()))

    def _splits(self, expression: Sum, view: View) -> bool:
        """Whether this node delegates: a root always, a clone at random; in the uniform style by its size."""
        if self.uniform:
            return self.delegate and count_operators(expression) > self.part[1]
        if not self.delegate or view.depth >= 3 or count_operators(expression) < 2:
            return False
        return view.depth == 0 or Dice("deeper", *self.dice_seed, view.goal).chance(0.3)

    def _cut(self, expression: Sum, view: View) -> Cut | None:
        dice = Dice("cut", *self.dice_seed, view.goal)
        if self.uniform:
            return cut_every(expression, lambda: dice.between(*self.part))
        terms = unwrap(expression).terms
        if len(terms) == 1:
            sign, product = terms[0]
            edge = dice.between(1, len(product.factors) - 1) if len(product.factors) > 1 else 0
            return cut_product(product, sign, edge)
        for _ in range(8):  # a cut into plain numbers leaves nothing to delegate
            edges = sorted(dice.sample(range(1, len(terms)), dice.between(1, min(3, len(terms) - 1))))
            cut = cut_sum(terms, edges)
            if cut.parts:
                return cut
        return None


# Its mistakes.


def _miscopy(ask: Ask, dice: Dice) -> Wrong:
    """A goal with one wrong digit."""
    text = ask.goal.removeprefix("Compute ")
    places = [i for i, letter in enumerate(text) if letter.isdigit()]
    place = dice.pick(places)
    digit = (int(text[place]) + dice.between(1, 8)) % 9 + 1  # never 0, which could start a number
    digit = digit if str(digit) != text[place] else digit % 9 + 1
    wrong = text[:place] + str(digit) + text[place + 1 :]
    return Wrong(ask=Ask(goal=f"Compute {wrong}"), line=f"I asked for {wrong}, but my part is {text}")


def _wrong_value(view: View, answer: str, dice: Dice) -> str | None:
    """A number whose last digit is wrong; None where no check is cheap enough to notice that."""
    if last_digits(view.goal) == view.goal:
        return None
    return str(int(answer) + dice.pick((-2, -1, 1, 2)))


def last_digits(goal: str) -> str:
    """The goal with the last digit of every number."""
    return re.sub(r"\d*(\d)", r"\1", goal)


def check_last_digit(ask: Ask, told: str) -> Check:
    """Compare a value with that of the last digits of all operands. Numbers of one digit leave nothing to compare.

    Example:
        check_last_digit(Ask(goal="Compute 12*3+4"), "44").line  # "2*3+4=10, so 12*3+4 is not 44"
    """
    part = ask.goal.removeprefix("Compute ")
    digits, numbers = last_digits(part), INTEGER.findall(told)
    if not numbers:
        return Check(ok=False, line=f"{part}: no number")
    if digits == part:
        return Check()
    value = parse(digits).value()
    ok = (int(numbers[-1]) - value) % 10 == 0
    return Check(ok=ok, line=f"{digits}={value}, so {part} {'can be' if ok else 'is not'} {numbers[-1]}")


def _no_expression(view: View) -> str | None:
    return "the goal has no expression" if find_expression(view.goal) is None else None


HABITS = Habits(
    verb="compute it",
    spoil=_miscopy,
    misanswer=_wrong_value,
    check=check_last_digit,
    impossible=_no_expression,
)
