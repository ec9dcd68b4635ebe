"""Formulas of + - * / over whole numbers: parsed and computed in exact fractions, never evaluated as code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ramet.errors import MalformedAction
from ramet.tasks.numbers import boxed

TOKEN = re.compile(r"[0-9]+|[-+*/()]")
RUN = re.compile(r"(?<![-+/0-9])[(0-9][-+*/()0-9.= \t]*")  # formulas, with `=` between equal ones
REMARK = re.compile(r"(?<=[0-9)])[ \t]+(?:\(.*|-)\Z")  # after a formula: "(24)", "(which is 24)", "- and so on"
SIGNS = str.maketrans(
    {**dict.fromkeys("×·∗⋅•∙✕", "*"), **dict.fromkeys("÷∕⁄", "/"), "−": "-", "–": "-", "[": "(", "]": ")"}
)
TEX = {r"\\(?:times|cdot|ast)(?![a-z])": "*", r"\\div(?![a-z])": "/", r"\\left|\\right|\\[][(),;:! ]": " "}
FRACTION = re.compile(r"\\[dtc]?frac[ ]*(?:\{([^{}]*)\}|([0-9]))[ ]*(?:\{([^{}]*)\}|([0-9]))")
TIMES = re.compile(r"(?<=[0-9)])([ ]?)[xX](?=[ ]?[0-9(])")
EQUAL = re.compile(r"(?<!\s)\s*+&?=\s*+")  # a line may begin with it
LONGEST, DEEPEST = 1000, 40  # limits on characters and nested brackets
TAIL = 4 * LONGEST


@dataclass(frozen=True, slots=True)
class Formula:
    """A number, or an operator between two formulas."""

    value: Fraction
    operator: str = ""
    sides: tuple[Formula, ...] = ()

    def __str__(self) -> str:
        if not self.sides:
            return str(self.value)
        left, right = (f"({side})" if side.sides else str(side) for side in self.sides)
        return f"{left} {self.operator} {right}"

    def numbers(self) -> list[int]:
        """The numbers in the formula, smallest first."""
        return sorted(int(leaf.value) for leaf in self.walk() if not leaf.sides)

    def walk(self) -> Iterator[Formula]:
        """Every part, inner ones first."""
        for side in self.sides:
            yield from side.walk()
        yield self

    def steps(self) -> list[str]:
        """The steps of its computation, one operation each: `["99 * 10 = 990", "990 - 9 = 981"]`."""
        return [
            f"{part.sides[0].value} {part.operator} {part.sides[1].value} = {part.value}"
            for part in self.walk()
            if part.sides
        ]

    def put(self, part: Formula) -> Formula:
        """The formula with `part` in place of the first number that has its value."""
        done, placed = _put(self, part)
        if not placed:
            raise AssertionError(f"{self} has no {part.value}")
        return done


def _put(formula: Formula, part: Formula) -> tuple[Formula, bool]:
    if not formula.sides:
        return (part, True) if formula.value == part.value else (formula, False)
    left, right = formula.sides
    left, placed = _put(left, part)
    if not placed:
        right, placed = _put(right, part)
    return Formula(formula.value, formula.operator, (left, right)), placed


def number(value: int) -> Formula:
    return Formula(Fraction(value))


def join(left: Formula, operator: str, right: Formula) -> Formula | None:
    """The two formulas with an operator between them; None for a division by zero."""
    a, b = left.value, right.value
    if operator == "/" and not b:
        return None
    value = a + b if operator == "+" else a - b if operator == "-" else a * b if operator == "*" else a / b
    return Formula(value, operator, (left, right))


# Parsing.


def parse(text: str) -> Formula:
    """Parse a text that is a formula and nothing else. Numbers have no sign.

    Example:
        parse("8 / (3 - 8/3)").value  # Fraction(24, 1)
    """
    if len(text) > LONGEST:
        raise MalformedAction(f"a formula of {len(text)} characters is too long")
    tokens = TOKEN.findall(text)
    if "".join(tokens) != "".join(text.split()) or re.search(r"[0-9]\s+[0-9]", text):
        raise MalformedAction(f"not a formula: {text[:60]!r}")
    reader = _Reader(tokens)
    formula = reader.sum()
    if reader.at < len(tokens):
        raise MalformedAction(f"not a formula: {text[:60]!r}")
    return formula


def last_formula(text: str | None) -> Formula | None:
    """The last formula with an operator in the last box of a text, or else in the text; None without one.

    Of formulas with `=` between them it is the first, so results and steps towards them are skipped.

    Example:
        str(last_formula("I get (99 * 10) - 9 = 990 - 9 = 981."))  # "(99 * 10) - 9"
    """
    text = (text or "")[-TAIL:]
    inside = boxed(text)
    found = None if inside is None else _last(inside)
    return _last(text) if found is None else found


def _last(text: str) -> Formula | None:
    # A full stop at the end of a sentence also ends a formula; one inside a number makes it invalid.
    plain = EQUAL.sub(" = ", re.sub(r"\.(?![0-9])", ";", _in_ascii(text)))
    for run in reversed(RUN.findall(plain)):
        for side in run.split("="):
            formula = _parsed(REMARK.sub("", side.strip()).removesuffix("**"))  # bold
            if formula is not None and formula.sides:
                return formula
    return None


def _in_ascii(text: str) -> str:
    """A text with the operators of this module: in TeX `\\times` and `\\frac{}{}`, in prose `x` between numbers."""
    if "\\" in text:
        for sign, plain in TEX.items():
            text = re.sub(sign, plain, text)
        for _ in range(DEEPEST):
            text, found = FRACTION.subn(r"((\1\2)/(\3\4))", text)
            if not found:
                break
    return TIMES.sub(r"\1*", text.translate(SIGNS))


def _parsed(text: str) -> Formula | None:
    try:
        return parse(text)
    except MalformedAction:
        return None


class _Reader:
    """Recursive descent over tokens, to a limited depth."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0

    def take(self, wanted: str = "") -> str:
        """The next token if it is one of `wanted`, else an empty text."""
        token = self.tokens[self.at] if self.at < len(self.tokens) else ""
        if not token or (wanted and token not in wanted):
            return ""
        self.at += 1
        return token

    def sum(self) -> Formula:
        total = self.product()
        while operator := self.take("+-"):
            total = _joined(total, operator, self.product())
        return total

    def product(self) -> Formula:
        total = self.factor()
        while operator := self.take("*/"):
            total = _joined(total, operator, self.factor())
        return total

    def factor(self) -> Formula:
        token = self.take()
        if token.isdigit():
            return number(int(token))
        self.depth += 1
        if token != "(" or self.depth > DEEPEST:
            raise MalformedAction(f"a number is wanted, not {token!r}")
        inner = self.sum()
        if not self.take(")"):
            raise MalformedAction("a bracket is not closed")
        self.depth -= 1
        return inner


def _joined(left: Formula, operator: str, right: Formula) -> Formula:
    formula = join(left, operator, right)
    if formula is None:
        raise MalformedAction("a division by zero")
    return formula
