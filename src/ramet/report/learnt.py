"""When a run learnt to delegate, in words: which sizes, by how much, and from which step on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from ramet.evaluate.format import share
from ramet.report.delegation import Counts, Delegation, SizeRow, total
from ramet.report.format import join_words

ALWAYS, NEVER = 0.9, 0.1  # shares from which on, and up to which, a size counts as settled
LEAST_CHANGE = 0.1  # a smaller change of the share is not worth a sentence
REACH = 2  # steps on each side that are counted together with a step
GREW, FELL, SAME = 1, -1, 0


def learnt(delegation: Delegation) -> str:
    """The sentence above the picture.

    Example:
        "It learnt to delegate large tasks (16 and 32 codes: 57% → 100% of trees, from step 22 on) and to do small ones
        alone (2, 4 and 8 codes: 32% → 4%)."
    """
    grew = [row for row in delegation.rows if direction(delegation, row) == GREW]
    fell = [row for row in delegation.rows if direction(delegation, row) == FELL]
    large = bool(grew and fell) and min(row.low for row in grew) > max(row.high for row in fell)
    parts: list[str] = []
    if grew:
        parts.append(f"to delegate {'large tasks ' if large else ''}{_evidence(delegation, grew, bracketed=large)}")
    if fell:
        what = "to do small ones alone " if large else "not to delegate "
        parts.append(what + _evidence(delegation, fell, bracketed=large))
    if parts:
        return f"It learnt {' and '.join(parts)}."
    first, last = (share(counts.share("delegated").value) for counts in _ends(delegation, delegation.rows))
    return (
        f"At no size did the share of trees that delegate change by {share(LEAST_CHANGE)} or more beyond chance "
        f"(all sizes: {first}, then {last})."
    )


def direction(delegation: Delegation, row: SizeRow) -> int:
    """Whether the share of trees that delegate grew or fell from the first steps to the last, beyond chance."""
    first, last = delegation.first_and_last(row)
    if not first.trees or not last.trees:
        return SAME
    before, after = first.share("delegated"), last.share("delegated")
    if abs(after.value - before.value) < LEAST_CHANGE:
        return SAME
    return GREW if after.low > before.high else FELL if after.high < before.low else SAME


def _ends(delegation: Delegation, rows: Sequence[SizeRow]) -> tuple[Counts, Counts]:
    ends = [delegation.first_and_last(row) for row in rows]
    return total(first for first, _ in ends), total(last for _, last in ends)


def _evidence(delegation: Delegation, rows: Sequence[SizeRow], *, bracketed: bool) -> str:
    first, last = (share(counts.share("delegated").value) for counts in _ends(delegation, rows))
    steps = [settled(delegation, row) for row in rows]
    known = [step for step in steps if step is not None]
    since = f", from step {max(known) + 1} on" if len(known) == len(steps) else ""
    numbers = f"{first} → {last} of trees{since}"
    named = name_sizes(rows, delegation.unit)
    return f"({named}: {numbers})" if bracketed else f"tasks of {named} ({numbers})"


def name_sizes(rows: Sequence[SizeRow], unit: str) -> str:
    """Sizes in words.

    Example:
        "2, 4 and 8 codes"; without a unit: "size 2, 4 and 8"
    """
    words = join_words([row.label for row in rows])
    return f"{words} {unit}" if unit else f"size {words}"


def settled(delegation: Delegation, row: SizeRow) -> int | None:
    """The first step from which on trees of this size nearly always delegate, or nearly never; None if neither.

    Every step is counted together with its neighbours.
    """
    _, last = delegation.first_and_last(row)
    if not last.trees:
        return None
    end = last.share("delegated").value
    if NEVER < end < ALWAYS:
        return None
    steps = [(step, value >= ALWAYS if end >= ALWAYS else value <= NEVER) for step, value in _smooth(delegation, row)]
    runs = [(on_side, list(group)) for on_side, group in groupby(steps, key=lambda pair: pair[1])]
    on_side, group = runs[-1]
    return group[0][0] if on_side else None


def _smooth(delegation: Delegation, row: SizeRow) -> Iterator[tuple[int, float]]:
    """The share of trees that delegate at each step and its neighbours. Steps without trees are left out."""
    for step in delegation.steps_of(row):
        place = delegation.steps.index(step)
        near = delegation.steps[max(0, place - REACH) : place + REACH + 1]
        yield step, total(row.by_step.get(one, Counts()) for one in near).share("delegated").value
