"""Cutting an expression into parts: for demonstrations, and by a fixed rule for the controls of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ramet.interfaces import Ask
from ramet.tasks.expression import Product, Sum, count_operators, unwrap
from ramet.tasks.split import Split, chunks

# Demonstrations.


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Parts to delegate, the expression with brackets around them, and the expression with a `?` for each."""

    parts: tuple[str, ...]
    plan: str
    shape: str


def cut_sum(terms: Sequence[tuple[int, Product]], edges: Sequence[int]) -> Cut:
    """Cut a sum before the terms at `edges`; a part keeps the sign of its first term.

    Example:
        For 1-2-3+4 with the edges 1 and 3: the part "-2-3", the plan "1+(-2-3)+4" and the shape "1+?+4".
    """
    parts: list[str] = []
    plan = shape = ""
    for chunk in (terms[a:b] for a, b in zip([0, *edges], [*edges, len(terms)], strict=True)):
        text = str(Sum(tuple(chunk)))
        is_part = count_operators(Sum(tuple(chunk))) > 0
        joint = "+" if shape and (is_part or not text.startswith("-")) else ""
        parts += [text] if is_part else []
        plan += joint + (f"({text})" if is_part else text)
        shape += joint + ("?" if is_part else text)
    return Cut(parts=tuple(parts), plan=plan, shape=shape)


def cut_product(product: Product, sign: int, edge: int) -> Cut | None:
    """Cut a product before the factor at `edge`; None if that leaves nothing to compute on either side.

    Example:
        For 2*3*4 with the edge 2: the part "2*3", the plan "(2*3)*4" and the shape "?*4".
    """
    sides = [Product(product.factors[:edge]), Product(product.factors[edge:])]
    if not all(side.factors for side in sides):
        return None
    is_part = [count_operators(Sum(((1, side),))) > 0 for side in sides]
    before = "-" if sign < 0 else ""
    bracketed = [str(side) if len(side.factors) == 1 else f"({side})" for side in sides]
    parts = tuple(str(side) for side, part in zip(sides, is_part, strict=True) if part)
    shape = "*".join("?" if part else str(side) for side, part in zip(sides, is_part, strict=True))
    return Cut(parts=parts, plan=before + "*".join(bracketed), shape=before + shape) if parts else None


def cut_every(expression: Sum, most: Callable[[], int]) -> Cut | None:
    """Cut a sum after every `most()` operators, so that the last part has the rest, or a product in the middle.

    Example:
        For 1+2+3-4-5-6+7 and always 2 operators: the plan "(1+2+3)+(-4-5-6)+7".
    """
    terms = unwrap(expression).terms
    if len(terms) == 1:
        sign, product = terms[0]
        return cut_product(product, sign, len(product.factors) // 2)
    edges: list[int] = []
    filled, room = 0, most() + 1
    for place, term in enumerate(terms):
        weight = count_operators(Sum((term,))) + 1
        if filled and filled + weight > room:
            edges.append(place)
            filled, room = 0, most() + 1
        filled += weight
    cut = cut_sum(terms, edges)
    return cut if edges and cut.parts else None


def fill(shape: str, answers: Sequence[str]) -> str:
    """The shape with an answer for each `?`; a negative one takes the place of a plus sign, or has brackets.

    Example:
        fill("?+?-?*2", ["-4", "-1", "3"])  # "-4-1-3*2"
    """
    for answer in answers:
        before, _, after = shape.partition("?")
        is_factor = before.endswith("*") or after.startswith("*")
        if answer.startswith("-") and before.endswith("+") and not is_factor:
            before = before[:-1]
        elif answer.startswith("-") and (before or is_factor):
            answer = f"({answer})"
        shape = before + answer + after
    return shape


# Controls.

Pieces = list[str | Sum]


def split_expression(expression: Sum, parts: int) -> Split:
    """Cut a sum into consecutive terms of nearly equal length; the parts keep their signs, so answers are only added.

    What has too few terms is cut at the top-level operator that leaves the most equal sides, then its longest part
    again, and so on.

    Example:
        1+2-3+4-5-6 in three parts is "Compute 1+2", "Compute -3+4" and "Compute -5-6", combined by
        "(1+2)+(-3+4)+(-5-6)". 2*3*(4+5) in two parts is "Compute 2*3" and "Compute 4+5", combined by "The value is ?*?,
        with an answer for each ? in order."
    """
    terms = unwrap(expression).terms
    groups = chunks([count_operators(Sum((term,))) + 1 for term in terms], parts)
    cut = cut_sum(terms, [group.start for group in groups[1:]])
    if len(cut.parts) == parts:
        asks = tuple(Ask(goal=f"Compute {part}") for part in cut.parts)
        return Split(parts=asks, combine=cut.plan, steps=chain_steps(expression, parts))
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
