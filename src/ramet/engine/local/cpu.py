# pyright: standard
"""Steps on a CPU: float32, batched over all requests, one attention call per layer for all that are being answered.

Keys and values live in pages. Gathering a request's pages anew for every token would cost more than attention itself,
so requests that are being answered also have a dense row each on a shelf, filled once when they join and appended to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ramet.engine.local.decoder import Decoder
from ramet.engine.local.request import Request
from ramet.engine.local.sampling import Draw, choose, keys
from ramet.engine.local.scheduler import Chunk, Step

Results = Callable[[], tuple[list[int], list[float]]]
SHORTEST = 64  # tokens in the smallest dense rows


@dataclass(frozen=True, slots=True)
class Shape:
    """What the cache stores per token."""

    layers: int
    kv_heads: int
    head_dim: int

    def token_bytes(self, dtype: torch.dtype) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * dtype.itemsize


class CpuRunner:
    """Runs steps at once; their results are there when `launch` returns."""

    lag = 0

    def __init__(
        self,
        decoder: Decoder,
        shape: Shape,
        *,
        pages: int,
        page_size: int,
        max_batch: int,
        dtype: torch.dtype = torch.float32,
        threads: int | None = None,
    ) -> None:
        self.decoder = decoder
        self.threads = threads
        self.size = page_size
        self.pool = torch.zeros(shape.layers, 2, pages, shape.kv_heads, page_size, shape.head_dim, dtype=dtype)
        self.shelves = Shelves(shape, self.pool)
        self.last = torch.zeros(max_batch, dtype=torch.long)

    def enter(self) -> None:
        """The thread that will step has begun."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)

    def refresh(self) -> None:
        self.decoder.refresh()

    @torch.inference_mode()
    def launch(self, step: Step) -> Results:
        if step.copies:
            sources, copies = (torch.tensor(numbers) for numbers in zip(*step.copies, strict=True))
            self.pool[:, :, copies] = self.pool[:, :, sources]
        ids = [self.last[[request.slot for request in step.decodes]]]
        ids += [torch.tensor(chunk.request.ids[chunk.start : chunk.end]) for chunk in step.chunks]
        positions = [request.planned - 1 for request in step.decodes]
        for chunk in step.chunks:
            positions += range(chunk.start, chunk.end)
        plan = Pass(self.pool, self.shelves, step, self.size)
        logits = self.decoder.logits(torch.cat(ids), torch.tensor(positions), _sampled_rows(step), plan)
        requests = step.sampling
        if not requests:
            return lambda: ([], [])
        tokens, logprobs = choose(logits, draw_of(requests))
        self.last[[request.slot for request in requests]] = tokens
        return lambda: (tokens.tolist(), logprobs.tolist())


def draw_of(requests: Sequence[Request]) -> Draw:
    """The wishes of a batch of requests."""
    sampling = [request.sampling for request in requests]
    return Draw(
        temperature=torch.tensor([one.temperature for one in sampling]),
        top_p=torch.tensor([one.top_p for one in sampling]),
        top_k=torch.tensor([one.top_k for one in sampling]),
        keys=keys([one.seed for one in sampling], [request.draws - 1 for request in requests]),
        filtered=any(one.top_p < 1 or one.top_k > 0 for one in sampling),
    )


def _sampled_rows(step: Step) -> Tensor:
    rows, at = list(range(len(step.decodes))), len(step.decodes)
    for chunk in step.chunks:
        at += chunk.end - chunk.start
        if chunk.samples:
            rows.append(at - 1)
    return torch.tensor(rows, dtype=torch.long)


class Shelf:
    """Dense rows for requests of about one length: their keys and values without gaps, as attention likes them."""

    def __init__(self, shape: Shape, pool: Tensor, *, length: int) -> None:
        self.length = length
        self.keys = self.values = pool.new_empty(shape.layers, 0, shape.kv_heads, length, shape.head_dim)
        self._pool = pool
        self._owners: list[tuple[Request, int] | None] = []

    def seat(self, requests: Sequence[Request]) -> list[int]:
        """A row for each, filled up to what came before this step's token."""
        wanted = {(id(request), request.admissions) for request in requests}
        rows: dict[int, int] = {}
        for row, owner in enumerate(self._owners):
            if owner is not None and (id(owner[0]), owner[1]) in wanted:
                rows[id(owner[0])] = row
            else:
                self._owners[row] = None
        highest = max(rows.values(), default=-1) + 1
        if len(requests) > len(self._owners):
            self._resize(1 << (len(requests) - 1).bit_length(), keep=len(self._owners))
        elif highest > max(8, 2 * len(requests)):  # most rows would be computed for nobody
            self._resize(len(requests), keep=0)
            rows.clear()
        free = (row for row, owner in enumerate(self._owners) if owner is None)
        joining = [request for request in requests if id(request) not in rows]
        for request in joining:
            row = rows[id(request)] = next(free)
            self._owners[row] = (request, request.admissions)
        if joining:
            self._fill([rows[id(request)] for request in joining], joining)
        return [rows[id(request)] for request in requests]

    def _resize(self, rows: int, *, keep: int) -> None:
        layers, _, *rest = self.keys.shape
        keys, values = (self._pool.new_zeros(layers, rows, *rest) for _ in range(2))
        keys[:, :keep], values[:, :keep] = self.keys[:, :keep], self.values[:, :keep]
        self.keys, self.values = keys, values
        self._owners = [*self._owners[:keep], *[None] * (rows - keep)]

    def _fill(self, rows: list[int], requests: Sequence[Request]) -> None:
        """Copy what the pages hold; what a row gets beyond its own text is never looked at."""
        longest = max(request.planned for request in requests) - 1
        count = -(-longest // self._pool.shape[4])
        numbers = np.zeros((len(requests), count), dtype=np.int64)
        for line, request in zip(numbers, requests, strict=True):
            own = [page.number for page in request.pages[:count]]
            line[: len(own)] = own
        pages = self._pool[:, :, torch.from_numpy(numbers)]  # (layers, 2, rows, pages, heads, tokens, size)
        dense = pages.transpose(3, 4).flatten(4, 5)[..., :longest, :]
        where = torch.tensor(rows)
        self.keys[:, where, :, :longest] = dense[:, 0]
        self.values[:, where, :, :longest] = dense[:, 1]


class Shelves:
    """A shelf for each power of two: a request that outgrows one moves to the next."""

    def __init__(self, shape: Shape, pool: Tensor) -> None:
        self._shape, self._pool = shape, pool
        self._shelves: dict[int, Shelf] = {}

    def seat(self, requests: Sequence[Request]) -> list[Seated]:
        by_length: dict[int, list[int]] = {}
        for place, request in enumerate(requests):
            length = max(SHORTEST, 1 << (request.planned - 1).bit_length())
            by_length.setdefault(length, []).append(place)
        for length in self._shelves.keys() - by_length.keys():
            del self._shelves[length]
        seated: list[Seated] = []
        for length, places in sorted(by_length.items()):
            shelf = self._shelves.get(length)
            if shelf is None:
                shelf = self._shelves[length] = Shelf(self._shape, self._pool, length=length)
            chosen = [requests[place] for place in places]
            seated.append(Seated(shelf, chosen, places, whole=len(places) == len(requests)))
        return seated


class Seated:
    """Requests on one shelf, in one step: one attention call per layer."""

    def __init__(self, shelf: Shelf, requests: list[Request], places: list[int], *, whole: bool) -> None:
        rows = shelf.seat(requests)
        self.shelf = shelf
        self.places = None if whole else torch.tensor(places)
        self.rows = torch.tensor(rows)
        self.at = torch.tensor([request.planned - 1 for request in requests])
        self.height = max(rows) + 1
        self.width = max(request.planned for request in requests)
        lengths = torch.ones(self.height, dtype=torch.long)
        lengths[self.rows] = self.at + 1
        self.mask = (torch.arange(self.width) < lengths.unsqueeze(1))[:, None, None, :]
        self.straight = rows == list(range(len(rows)))

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor, scale: float) -> None:
        if self.places is not None:
            queries, keys, values = queries[self.places], keys[self.places], values[self.places]
        shelf_keys, shelf_values = self.shelf.keys[layer], self.shelf.values[layer]
        shelf_keys[self.rows, :, self.at] = keys
        shelf_values[self.rows, :, self.at] = values
        _, heads, size = queries.shape
        if not self.straight:
            spread = queries.new_zeros(self.height, heads, size)
            spread[self.rows] = queries
            queries = spread
        # Query heads that share a key head become its queries: nothing is repeated in memory.
        grouped = queries.reshape(self.height, keys.shape[1], -1, size)
        seen = functional.scaled_dot_product_attention(
            grouped,
            shelf_keys[: self.height, :, : self.width],
            shelf_values[: self.height, :, : self.width],
            attn_mask=self.mask.expand(-1, -1, grouped.shape[2], -1),
            scale=scale,
        ).reshape(self.height, heads, size)
        if not self.straight:
            seen = seen[self.rows]
        out[slice(len(seen)) if self.places is None else self.places] = seen


class Pass:
    """Attention of one step: requests being answered shelf by shelf, prompts in groups of like length."""

    def __init__(self, pool: Tensor, shelves: Shelves, step: Step, size: int) -> None:
        self.pool = pool
        self.decodes = len(step.decodes)
        pages, offsets = _places(step, size)
        self.pages, self.offsets = torch.from_numpy(pages), torch.from_numpy(offsets)
        self.seated = shelves.seat(step.decodes)
        at, starts = self.decodes, dict[int, int]()
        for chunk in step.chunks:
            starts[id(chunk)] = at
            at += chunk.end - chunk.start
        self.groups = [Group(chunks, starts, size) for chunks in _alike(step.chunks)]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        pool = self.pool[layer]
        pool[0, self.pages, :, self.offsets] = keys
        pool[1, self.pages, :, self.offsets] = values
        out, count = torch.empty_like(queries), self.decodes
        for seated in self.seated:
            seated.attend(layer, queries[:count], keys[:count], values[:count], out, scale)
        for group in self.groups:
            group.attend(pool, queries, out, scale)
        return out


class Group:
    """Chunks of prompts of similar size, padded to one block."""

    def __init__(self, chunks: list[Chunk], starts: dict[int, int], size: int) -> None:
        self.chunks = chunks
        self.width = max(chunk.end - chunk.start for chunk in chunks)
        self.length = max(chunk.end for chunk in chunks)
        count = -(-self.length // size)
        self.pages = torch.zeros(len(chunks), count, dtype=torch.long)
        for row, chunk in enumerate(chunks):
            numbers = [page.number for page in chunk.request.pages[: -(-chunk.end // size)]]
            self.pages[row, : len(numbers)] = torch.tensor(numbers)
        # Where the chunks' tokens are among the tokens of the step.
        counts = torch.tensor([chunk.end - chunk.start for chunk in chunks])
        first = torch.tensor([starts[id(chunk)] for chunk in chunks])
        steps = torch.arange(self.width)
        self.real = steps < counts.unsqueeze(1)
        self.rows = first.unsqueeze(1) + torch.minimum(steps, counts.unsqueeze(1) - 1)
        upto = torch.tensor([chunk.start for chunk in chunks]).unsqueeze(1) + steps
        self.mask = (torch.arange(self.length) <= upto.unsqueeze(2)).unsqueeze(1)

    def attend(self, pool: Tensor, queries: Tensor, out: Tensor, scale: float) -> None:
        _, heads, size = queries.shape
        count, kv_heads = len(self.chunks), pool.shape[2]
        keys, values = (
            half[self.pages].transpose(1, 2).reshape(count, kv_heads, -1, size)[:, :, : self.length] for half in pool
        )
        shared = heads // kv_heads
        grouped = queries[self.rows].view(count, self.width, kv_heads, shared, size).permute(0, 2, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(
            grouped.reshape(count, kv_heads, shared * self.width, size),
            keys,
            values,
            attn_mask=self.mask.repeat(1, 1, shared, 1),
            scale=scale,
        )
        seen = seen.view(count, kv_heads, shared, self.width, size).permute(0, 3, 1, 2, 4)
        out[self.rows[self.real]] = seen.reshape(count, self.width, heads, size)[self.real]


def _places(step: Step, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The page and the place in it for each token of the step."""
    pages, offsets = [], []
    for request in step.decodes:
        at = request.planned - 1
        pages.append(request.pages[at // size].number)
        offsets.append(at % size)
    for chunk in step.chunks:
        span = np.arange(chunk.start, chunk.end)
        numbers = np.array([page.number for page in chunk.request.pages])
        pages += numbers[span // size].tolist()
        offsets += (span % size).tolist()
    return np.array(pages, dtype=np.int64), np.array(offsets, dtype=np.int64)


def _alike(chunks: list[Chunk]) -> list[list[Chunk]]:
    """Chunks whose sizes are within a factor of two of each other."""
    groups: dict[tuple[int, int], list[Chunk]] = {}
    for chunk in chunks:
        kind = math.ceil(math.log2(chunk.end - chunk.start)), math.ceil(math.log2(chunk.end))
        groups.setdefault(kind, []).append(chunk)
    return list(groups.values())
