"""Whole-number expressions: parsed and computed exactly, never evaluated as code.

A sum is a list of signed terms, a term is a list of factors, a factor is a number or an expression in brackets.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

from ramet.errors import MalformedAction

TOKEN = re.compile(r"\d+|[-+*()]")
CANDIDATE = re.compile(r"[-(\d][-+*()\d\s]*[)\d]")
TIMES = re.compile(r"[×·⋅∗•∙✕]|\\(?:times|cdot)(?![a-z])|(?<=[\d)])[ ]?[xX](?=[ ]?[\d(])")
BOLD = re.compile(r"(?<![\w)*])\*\*(?=[^\s*])([^\n]+?)\*\*(?![\w(*])")
GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")  # 12,345
SIGNS = str.maketrans("−[]", "-()")
# What stands before and after a piece of something longer that is not an expression: 7/2+3, 1.5+2, x+3+4, 2+3^4.
BEFORE = re.compile(r"(?<=[+*/^%÷–])|(?<=[+*/^%÷–][ ])|(?<=\d\.)|(?<=\w)(?!\()")
AFTER = re.compile(r"[ ]?[+*/^%÷–]|\.\d|\w")
LONGEST, DEEPEST = 2000, 50  # limits on characters and nested brackets
AROUND = 200  # characters of a goal beside its expression


@dataclass(frozen=True, slots=True)
class Product:
    """Factors multiplied together."""

    factors: tuple[int | Sum, ...]

    def value(self) -> int:
        return prod(factor if isinstance(factor, int) else factor.value() for factor in self.factors)

    def __str__(self) -> str:
        return "*".join(str(factor) if isinstance(factor, int) else f"({factor})" for factor in self.factors)


@dataclass(frozen=True, slots=True)
class Sum:
    """Terms added or subtracted, each with its sign."""

    terms: tuple[tuple[int, Product], ...]

    def value(self) -> int:
        return sum(sign * term.value() for sign, term in self.terms)

    def __str__(self) -> str:
        text = "".join(("+" if sign > 0 else "-") + str(term) for sign, term in self.terms)
        return text.removeprefix("+")


def count_operators(expression: Sum) -> int:
    """The number of operations; the sign of the first term is not one."""
    inner = [factor for _, term in expression.terms for factor in term.factors if not isinstance(factor, int)]
    products = sum(len(term.factors) - 1 for _, term in expression.terms)
    return len(expression.terms) - 1 + products + sum(count_operators(factor) for factor in inner)


def parse(text: str) -> Sum:
    """Parse a text that is an expression and nothing else.

    Example:
        parse("2*(3+4)-5").value()  # 9
    """
    if len(text) > LONGEST:
        raise MalformedAction(f"an expression of {len(text)} characters is too long")
    tokens = TOKEN.findall(text)
    if "".join(tokens) != "".join(text.split()):
        raise MalformedAction(f"not an expression: {text[:60]!r}")
    reader = _Reader(tokens)
    expression = reader.sum()
    if reader.peek() is not None:
        raise MalformedAction(f"not an expression: {text[:60]!r}")
    return expression


def unwrap(expression: Sum) -> Sum:
    """The expression without brackets around all of it; a minus sign before them is taken inside.

    Example:
        str(unwrap(parse("((3+4))")))  # "3+4"
    """
    while len(expression.terms) == 1 and len(expression.terms[0][1].factors) == 1:
        sign, inner = expression.terms[0][0], expression.terms[0][1].factors[0]
        if isinstance(inner, int):
            break
        expression = Sum(tuple((sign * other, term) for other, term in inner.terms))
    return expression


def find_expression(text: str) -> Sum | None:
    """The longest expression with an operator inside a text; None if it is a piece of something else, or there is none.

    Example:
        str(find_expression("Compute 1,200 × 3 + 4."))  # "1200*3+4"
        find_expression("Compute 7/2+3")                # None
    """
    text = _plain(text[: LONGEST + AROUND])
    for found in sorted(CANDIDATE.finditer(text), key=lambda found: len(found[0]), reverse=True):
        try:
            expression = parse(found[0])
        except MalformedAction:
            continue
        if count_operators(expression):
            return None if _is_piece(text, found) else expression
    return None


def _plain(text: str) -> str:
    """The text with the signs of this module, without bold marks and without commas between groups of digits."""
    return GROUPED.sub("", TIMES.sub("*", BOLD.sub(r"\1", text).translate(SIGNS)))


def _is_piece(text: str, found: re.Match[str]) -> bool:
    return any(beside.match(text, place) for beside, place in ((BEFORE, found.start()), (AFTER, found.end())))


# Comparing.

Term = tuple[int, tuple[object, ...]]  # sign and factors: numbers, or terms for a sum in brackets


def contains(whole: Sum, part: Sum) -> bool:
    """Whether an expression has all of another in it, in any order and with any needless brackets.

    Example:
        contains(parse("4*(2+1)+0"), parse("(1+2)*4"))  # True
        contains(parse("2+1"), parse("(1+2)*4"))        # False
    """
    return _has_terms(_terms(whole), _terms(part))


def _has_terms(terms: tuple[Term, ...], wanted: tuple[Term, ...]) -> bool:
    if Counter(terms) >= Counter(wanted):
        return True
    if len(wanted) == 1 and any(sign == wanted[0][0] and _has(term, wanted[0][1]) for sign, term in terms):
        return True
    sums = [cast(tuple[Term, ...], factor) for _, term in terms for factor in term if isinstance(factor, tuple)]
    return any(_has_terms(inner, wanted) for inner in sums)


def _has(factors: tuple[object, ...], wanted: tuple[object, ...]) -> bool:
    return Counter(factors) >= Counter(wanted)


def _terms(expression: Sum) -> tuple[Term, ...]:
    """The terms in a fixed order, without brackets that make no difference."""
    terms: list[Term] = []
    for sign, term in expression.terms:
        factors = _factors(term)
        inner = factors[0]
        if len(factors) == 1 and isinstance(inner, tuple):
            terms += [(sign * other, rest) for other, rest in cast(tuple[Term, ...], inner)]
        else:
            terms.append((sign, factors))
    return tuple(sorted(terms, key=repr))


def _factors(term: Product) -> tuple[object, ...]:
    factors: list[object] = []
    for factor in term.factors:
        terms = () if isinstance(factor, int) else _terms(factor)
        if len(terms) == 1 and terms[0][0] > 0:  # a product in brackets
            factors += terms[0][1]
        else:
            factors.append(terms or factor)
    return tuple(sorted(factors, key=repr))


class _Reader:
    """Recursive descent over tokens."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0

    def peek(self) -> str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self) -> str:
        token = self.peek()
        if token is None:
            raise MalformedAction("the expression ends too early")
        self.at += 1
        return token

    def sum(self) -> Sum:
        sign = -1 if self.peek() == "-" else 1
        self.at += sign < 0
        terms = [(sign, self.product())]
        while self.peek() in ("+", "-"):
            sign = 1 if self.take() == "+" else -1
            terms.append((sign, self.product()))
        return Sum(tuple(terms))

    def product(self) -> Product:
        factors = [self.factor()]
        while self.peek() == "*":
            self.take()
            factors.append(self.factor())
        return Product(tuple(factors))

    def factor(self) -> int | Sum:
        token = self.take()
        if token == "(":
            self.depth += 1
            if self.depth > DEEPEST:
                raise MalformedAction(f"more than {DEEPEST} brackets inside each other")
            inner = self.sum()
            self.depth -= 1
            if self.take() != ")":
                raise MalformedAction("a bracket is not closed")
            return inner
        if not token.isdigit():
            raise MalformedAction(f"a number is wanted, not {token!r}")
        return int(token)


def steps(expression: Sum) -> list[str]:
    """The steps of a computation: brackets, then products, then sums, one operation per step.

    Example:
        steps(parse("2*(3+4)-5"))  # ["3+4=7", "2*7=14", "14-5=9"]
    """
    done: list[str] = []
    _sum_steps(expression, done)
    return done


def _sum_steps(expression: Sum, done: list[str]) -> int:
    values = [(sign, _product_steps(term, done)) for sign, term in expression.terms]
    sign, total = values[0]
    total *= sign
    for sign, value in values[1:]:
        # A negative value is shown in brackets.
        shown = f"({value})" if value < 0 else str(value)
        result = total + sign * value
        done.append(f"{total}{'+' if sign > 0 else '-'}{shown}={result}")
        total = result
    return total


def _product_steps(term: Product, done: list[str]) -> int:
    values = [factor if isinstance(factor, int) else _sum_steps(factor, done) for factor in term.factors]
    total = values[0]
    for value in values[1:]:
        left, right = (f"({v})" if v < 0 else str(v) for v in (total, value))
        done.append(f"{left}*{right}={total * value}")
        total *= value
    return total


def rewrites(expression: Sum) -> list[str]:
    """The remaining expression after every operation: easier to follow than steps, but longer.

    Example:
        rewrites(parse("2*(3+4)-5"))  # ["2*7-5", "14-5", "9"]
    """
    lines: list[str] = []
    while count_operators(expression):
        expression = _smaller_sum(expression)
        lines.append(str(expression))
    return lines


def _smaller_sum(expression: Sum) -> Sum:
    """Do one operation: in the first term that has one, else on the first two terms."""
    terms = expression.terms
    for place, (sign, term) in enumerate(terms):
        smaller = _smaller_product(term)
        if smaller is not None:
            signed = (
                _signed(sign * smaller.value()) if len(smaller.factors) == 1 and _bare(smaller) else (sign, smaller)
            )
            return Sum((*terms[:place], signed, *terms[place + 1 :]))
    (a, left), (b, right), *rest = terms
    return Sum((_signed(a * left.value() + b * right.value()), *rest))


def _smaller_product(term: Product) -> Product | None:
    factors = term.factors
    for place, factor in enumerate(factors):
        if not isinstance(factor, int) and count_operators(factor):
            return Product((*factors[:place], _factor(_smaller_sum(factor)), *factors[place + 1 :]))
    if len(factors) == 1:
        return None
    return Product((_factor(Sum((_signed(Product(factors[:2]).value()),))), *factors[2:]))


def _bare(term: Product) -> bool:
    return not count_operators(Sum(((1, term),)))


def _signed(value: int) -> tuple[int, Product]:
    return (-1 if value < 0 else 1), Product((abs(value),))


def _factor(expression: Sum) -> int | Sum:
    """A plain number if it is one; a negative number keeps its brackets."""
    value = expression.value() if not count_operators(expression) else -1
    return value if value >= 0 else expression
