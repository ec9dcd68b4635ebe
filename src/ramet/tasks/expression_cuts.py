"""A fixed rule that cuts an expression into parts of nearly equal size."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.interfaces import Ask
from ramet.tasks.expression import Product, Sum, count_operators, unwrap
from ramet.tasks.split import Split, chunks

Pieces = list[str | Sum]


def split_expression(expression: Sum, parts: int) -> Split:
    """Cut at the top-level operator that leaves the most equal sides, then the longest part again, and so on.

    Example:
        1*2+3*4-5*6 in three parts is "Compute 1*2", "Compute 3*4" and "Compute 5*6", combined by "The value is ?+(?-?),
        with an answer for each ? in order."
    """
    pieces: Pieces = [unwrap(expression)]
    while sum(isinstance(piece, Sum) for piece in pieces) < parts:
        place = max(range(len(pieces)), key=lambda place: _operators(pieces[place]))
        longest = pieces[place]
        if not isinstance(longest, Sum) or count_operators(longest) < 2:
            break
        inside = _halve(longest)
        pieces[place : place + 1] = inside if len(pieces) == 1 else ["(", *inside, ")"]
    asked = tuple(Ask(goal=f"Compute {piece}") for piece in pieces if isinstance(piece, Sum))
    if len(asked) < 2:
        return Split()
    shape = "".join("?" if isinstance(piece, Sum) else piece for piece in pieces)
    combine = f"The value is {shape}, with an answer for each ? in order."
    return Split(parts=asked, combine=combine, steps=chain_steps(expression, parts))


def _operators(piece: str | Sum) -> int:
    return count_operators(piece) if isinstance(piece, Sum) else -1


def _halve(expression: Sum) -> Pieces:
    """Two sides and what stands between them. A side without an operator is text: there is nothing to compute."""
    terms = expression.terms
    if len(terms) > 1:
        edge = _middle([count_operators(Sum((term,))) + 1 for term in terms])
        first, second = terms[:edge], terms[edge:]
        sign = second[0][0]  # stays outside; signs inside are relative to it
        rest = Sum(tuple((sign * other, term) for other, term in second))
        return [_side(Sum(first)), "+" if sign > 0 else "-", *_bracketed(rest)]
    sign, product = next(iter(terms))
    edge = _middle([_weight(factor) for factor in product.factors])
    left, right = (Sum(((1, Product(side)),)) for side in (product.factors[:edge], product.factors[edge:]))
    return [*(["-"] if sign < 0 else []), *_bracketed(left), "*", *_bracketed(right)]


def _side(expression: Sum) -> str | Sum:
    expression = unwrap(expression)
    return expression if count_operators(expression) else str(expression)


def _bracketed(expression: Sum) -> Pieces:
    """A side as one piece; a plain negative number needs brackets."""
    side = _side(expression)
    return ["(", side, ")"] if isinstance(side, str) and side.startswith("-") else [side]


def _weight(factor: int | Sum) -> int:
    return 1 if isinstance(factor, int) else 1 + count_operators(factor)


def _middle(weights: Sequence[int]) -> int:
    """The edge between two consecutive items that leaves the most equal sides."""
    return min(range(1, len(weights)), key=lambda edge: abs(sum(weights[:edge]) - sum(weights[edge:])))


def chain_steps(expression: Sum, parts: int) -> tuple[str, ...]:
    """Goals from left to right, each with `{}` for the value so far; none if there is nothing to cut at the top.

    Example:
        For 1*2+3*4-5 in two parts: "Compute 1*2" and "Compute {}+3*4-5".
        For 2*3*4*5: "Compute 2*3" and "Compute {}*4*5".
    """
    terms = unwrap(expression).terms
    if len(terms) > 1:
        groups = _from_left([count_operators(Sum((term,))) + 1 for term in terms], parts)
        texts = [str(Sum(tuple(terms[place] for place in group))) for group in groups]
        goals = [texts[0], *(f"{{}}{text}" if text.startswith("-") else f"{{}}+{text}" for text in texts[1:])]
    else:
        sign, product = next(iter(terms))
        groups = _from_left([_weight(factor) for factor in product.factors], parts)
        texts = [str(Product(tuple(product.factors[place] for place in group))) for group in groups]
        goals = [("-" if sign < 0 else "") + texts[0], *(f"{{}}*{text}" for text in texts[1:])]
    return tuple(f"Compute {goal}" for goal in goals) if len(goals) > 1 else ()


def _from_left(weights: Sequence[int], parts: int) -> list[range]:
    """Chunks, of which the first has an operator."""
    first, *rest = chunks(weights, parts)
    if rest and sum(weights[place] for place in first) < 2:
        return [range(first.start, rest[0].stop), *rest[1:]]
    return [first, *rest]
