"""A trie over rows, laid out as one sequence, so that a shared prefix is computed once.

Rows are sorted by what the model must read. Each then adds only the tokens that differ from the row before it: the
trie in depth-first order. The position of a token is its depth, and it is visible to exactly the tokens between itself
and the end of its branch. Clones share system prompt and tools, a group shares its task, so on typical trees the packed
sequence is a third to a fifth of the rows.

A token is predicted one position before it. Rows that diverge after a prefix share that position: one hidden state with
several targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, compress, pairwise

from ramet.train.rows import Row

Span = tuple[int, int]  # packed positions, end exclusive


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The tokens one row adds to the packed sequence, and the spans before them that they attend to, root first."""

    span: Span
    path: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Rows as one sequence. Of rows that read 1 2 and 1 2 4 it holds the ids 1 2 4 at the depths 0 1 2."""

    token_ids: tuple[int, ...]
    depths: tuple[int, ...]  # position ids
    ends: tuple[int, ...]  # where each token's branch ends: tokens up to there attend to it
    stretches: tuple[Stretch, ...]
    positions: tuple[int, ...]  # where each trained token is predicted, rows in the order given
    targets: tuple[int, ...]  # the token predicted there


def pack(rows: Sequence[Row]) -> Packed:
    """Lay the rows out as a trie. Rows without a trained token add nothing."""
    reads = [row.read for row in rows]
    layout = _Layout()
    paths: list[list[Span]] = [[] for _ in rows]
    for index in sorted(range(len(rows)), key=lambda index: reads[index]):
        paths[index] = layout.add(reads[index])
    layout.close(layout.path)
    positions, targets = _targets(rows, paths)
    return Packed(
        token_ids=tuple(layout.token_ids),
        depths=tuple(layout.depths),
        ends=tuple(layout.ends),
        stretches=tuple(layout.stretches),
        positions=positions,
        targets=targets,
    )


@dataclass(slots=True)
class _Layout:
    """The packed sequence built so far; sequences are added in ascending order."""

    token_ids: list[int] = field(default_factory=list[int])
    depths: list[int] = field(default_factory=list[int])
    ends: list[int] = field(default_factory=list[int])
    stretches: list[Stretch] = field(default_factory=list[Stretch])
    path: list[Span] = field(default_factory=list[Span])  # positions of the last sequence
    last: tuple[int, ...] = ()

    def add(self, read: tuple[int, ...]) -> list[Span]:
        """Append the tokens that the last sequence does not share; returns the positions of all of them."""
        shared = common(self.last, read)
        kept, closed = _split(self.path, shared)
        self.close(closed)
        if len(read) > shared:
            span = len(self.token_ids), len(self.token_ids) + len(read) - shared
            self.token_ids += read[shared:]
            self.depths += range(shared, len(read))
            self.ends += [0] * (len(read) - shared)
            self.stretches.append(Stretch(span=span, path=tuple(kept)))
            kept.append(span)
        self.path, self.last = kept, read
        return kept

    def close(self, spans: Sequence[Span]) -> None:
        """Close these branches: no later token belongs to them."""
        for first, last in spans:
            self.ends[first:last] = [len(self.token_ids)] * (last - first)


def common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Length of the common prefix, by halving: slices compare faster than a loop over tokens.

    Example:
        common((7, 8, 9), (7, 8, 4, 1))  # 2
    """
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _split(path: Sequence[Span], depth: int) -> tuple[list[Span], list[Span]]:
    """The path down to `depth`, and the spans below it."""
    kept: list[Span] = []
    closed: list[Span] = []
    for first, last in path:
        middle = min(last, first + depth)
        depth -= middle - first
        kept += [(first, middle)] if middle > first else []
        closed += [(middle, last)] if last > middle else []
    return kept, closed


def _targets(rows: Sequence[Row], paths: Sequence[Sequence[Span]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    positions: list[int] = []
    targets: list[int] = []
    for row, path in zip(rows, paths, strict=True):
        places = chain.from_iterable(range(first, last) for first, last in path)
        positions += compress(places, row.mask[1:])  # a token is predicted one position before it
        targets += compress(row.token_ids, row.mask)
    return tuple(positions), tuple(targets)


def plan_batches(rows: Sequence[Row], *, tokens: int, packed: bool = True) -> list[tuple[Row, ...]]:
    """Micro-batches of at most `tokens` packed tokens, or of `tokens` with padding where rows are not packed.

    A row that is longer has a micro-batch of its own, because it cannot be split. Rows that share a prefix stay
    together. The order of rows does not matter. Rows without a trained token are left out; no denominator counts them.
    """
    work = [(row.read, row) for row in rows if row.num_trained]
    work.sort(key=lambda item: _order(*item, packed=packed))
    cut = _cut_packed if packed else _cut_padded
    ends = accumulate(cut([read for read, _ in work], tokens), initial=0)
    return [tuple(row for _, row in work[start:end]) for start, end in pairwise(ends)]


def _order(read: tuple[int, ...], row: Row, *, packed: bool) -> tuple[object, ...]:
    length = 0 if packed else len(read)
    return length, read, row.tree_id, row.node, row.token_ids, row.mask, row.advantage, row.weight


def _cut_packed(reads: Sequence[tuple[int, ...]], tokens: int) -> list[int]:
    """Sizes of batches. A batch ends where the next one has the least to recompute, but at least half full."""
    again = [common(before, read) for before, read in pairwise(reads)]
    sizes: list[int] = []
    start = 0
    while start < len(reads):
        used = [len(reads[start])]  # packed tokens of the first row, the first two, ...
        for read, shared in zip(reads[start + 1 :], again[start:], strict=True):
            if used[-1] + len(read) - shared > tokens:
                break
            used.append(used[-1] + len(read) - shared)
        size = len(used)
        if start + size < len(reads):
            cuts = [cut for cut in range(1, size + 1) if 2 * used[cut - 1] >= tokens or cut == size]
            size = min(cuts, key=lambda cut: (again[start + cut - 1], -cut))
        sizes.append(size)
        start += size
    return sizes


def _cut_padded(reads: Sequence[tuple[int, ...]], tokens: int) -> list[int]:
    """Sizes of batches of rows sorted by length: the last one is the longest."""
    sizes: list[int] = []
    for read in reads:
        if sizes and (sizes[-1] + 1) * len(read) <= tokens:
            sizes[-1] += 1
        else:
            sizes.append(1)
    return sizes
