# pyright: standard
"""Steps on a CPU: one batched forward pass for all requests.

Keys and values live in pages. Gathering the pages of a request for every token would cost more than attention itself,
so a request that is decoding also has a dense row: filled once when decoding starts, then appended to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ramet.engine.local.captures import CaptureGuard
from ramet.engine.local.decoder import Decoder
from ramet.engine.local.request import Request
from ramet.engine.local.sampling import Draw, choose, keys
from ramet.engine.local.scheduler import Chunk, Step

Results = Callable[[], tuple[list[int], list[float]]]
MIN_ROW_LENGTH = 64  # tokens in the smallest dense rows


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of what the cache stores per token."""

    layers: int
    kv_heads: int
    head_dim: int

    def token_bytes(self, dtype: torch.dtype) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * dtype.itemsize


class CpuRunner:
    """Runs a step synchronously: its results are ready when `launch` returns."""

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
        self.guard = CaptureGuard()
        self.threads = threads
        self.size = page_size
        self.pool = _lazy_zeros(shape.layers, 2, pages, shape.kv_heads, page_size, shape.head_dim, dtype=dtype)
        self.dense = DenseCache(shape, self.pool)
        self.last = torch.zeros(max_batch, dtype=torch.long)

    def start_thread(self) -> None:
        """Called once in the thread that runs the steps."""
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
        plan = StepAttention(self.pool, self.dense, step, self.size)
        logits = self.decoder.logits(torch.cat(ids), torch.tensor(positions), _sampled_rows(step), plan)
        requests = step.sampling
        if not requests:
            return lambda: ([], [])
        tokens, logprobs = choose(logits, make_draw(requests))
        self.last[[request.slot for request in requests]] = tokens
        return lambda: (tokens.tolist(), logprobs.tolist())


def _lazy_zeros(*sizes: int, dtype: torch.dtype) -> Tensor:
    """Zeros that take memory only where they are written to, unlike `torch.zeros`: few runs fill the cache."""
    return torch.from_numpy(np.zeros(math.prod(sizes) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(sizes)


def make_draw(requests: Sequence[Request]) -> Draw:
    """The sampling settings of a batch of requests."""
    sampling = [request.sampling for request in requests]
    return Draw(
        temperature=torch.tensor([each.temperature for each in sampling]),
        top_p=torch.tensor([each.top_p for each in sampling]),
        top_k=torch.tensor([each.top_k for each in sampling]),
        keys=keys([each.seed for each in sampling], [request.draws - 1 for request in requests]),
        filtered=any(each.top_p < 1 or each.top_k > 0 for each in sampling),
    )


def _sampled_rows(step: Step) -> Tensor:
    rows, at = list(range(len(step.decodes))), len(step.decodes)
    for chunk in step.chunks:
        at += chunk.end - chunk.start
        if chunk.samples:
            rows.append(at - 1)
    return torch.tensor(rows, dtype=torch.long)


class DenseRows:
    """Contiguous keys and values of requests of similar length, one row per request."""

    def __init__(self, shape: Shape, pool: Tensor, *, length: int) -> None:
        self.length = length
        self.keys = self.values = pool.new_empty(shape.layers, 0, shape.kv_heads, length, shape.head_dim)
        self._pool = pool
        self._owners: list[tuple[Request, int] | None] = []

    def assign(self, requests: Sequence[Request]) -> list[int]:
        """The row of each request, filled with everything before this step's token."""
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
        elif highest > max(8, 2 * len(requests)):  # attention would run over mostly empty rows
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
        """Copy keys and values from the pages. What lies beyond a row's own text is masked in attention."""
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


class DenseCache:
    """Dense rows by length, in powers of two. A request that outgrows its rows moves to the next length."""

    def __init__(self, shape: Shape, pool: Tensor) -> None:
        self._shape, self._pool = shape, pool
        self._by_length: dict[int, DenseRows] = {}

    def assign(self, requests: Sequence[Request]) -> list[DecodeGroup]:
        by_length: dict[int, list[int]] = {}
        for place, request in enumerate(requests):
            length = max(MIN_ROW_LENGTH, 1 << (request.planned - 1).bit_length())
            by_length.setdefault(length, []).append(place)
        for length in self._by_length.keys() - by_length.keys():
            del self._by_length[length]
        decode_groups: list[DecodeGroup] = []
        for length, places in sorted(by_length.items()):
            dense_rows = self._by_length.get(length)
            if dense_rows is None:
                dense_rows = self._by_length[length] = DenseRows(self._shape, self._pool, length=length)
            chosen = [requests[place] for place in places]
            decode_groups.append(DecodeGroup(dense_rows, chosen, places, whole=len(places) == len(requests)))
        return decode_groups


class DecodeGroup:
    """The decoding requests of one row length in one step: one attention call per layer."""

    def __init__(self, dense_rows: DenseRows, requests: list[Request], places: list[int], *, whole: bool) -> None:
        rows = dense_rows.assign(requests)
        self.dense_rows = dense_rows
        self.places = None if whole else torch.tensor(places)
        self.rows = torch.tensor(rows)
        self.at = torch.tensor([request.planned - 1 for request in requests])
        self.height = max(rows) + 1
        self.width = max(request.planned for request in requests)
        lengths = torch.ones(self.height, dtype=torch.long)
        lengths[self.rows] = self.at + 1
        self.mask = (torch.arange(self.width) < lengths.unsqueeze(1))[:, None, None, :]
        self.in_order = rows == list(range(len(rows)))

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor, scale: float) -> None:
        if self.places is not None:
            queries, keys, values = queries[self.places], keys[self.places], values[self.places]
        row_keys, row_values = self.dense_rows.keys[layer], self.dense_rows.values[layer]
        row_keys[self.rows, :, self.at] = keys
        row_values[self.rows, :, self.at] = values
        _, heads, size = queries.shape
        if not self.in_order:
            spread = queries.new_zeros(self.height, heads, size)
            spread[self.rows] = queries
            queries = spread
        # Query heads that share a key head are grouped, so keys and values are not repeated in memory.
        grouped = queries.reshape(self.height, keys.shape[1], -1, size)
        seen = functional.scaled_dot_product_attention(
            grouped,
            row_keys[: self.height, :, : self.width],
            row_values[: self.height, :, : self.width],
            attn_mask=self.mask.expand(-1, -1, grouped.shape[2], -1),
            scale=scale,
        ).reshape(self.height, heads, size)
        if not self.in_order:
            seen = seen[self.rows]
        out[slice(len(seen)) if self.places is None else self.places] = seen


class StepAttention:
    """Attention of one step: decoding requests by row length, prompt chunks in groups of similar size."""

    def __init__(self, pool: Tensor, dense: DenseCache, step: Step, size: int) -> None:
        self.pool = pool
        self.decodes = len(step.decodes)
        pages, offsets = _cache_places(step, size)
        self.pages, self.offsets = torch.from_numpy(pages), torch.from_numpy(offsets)
        self.decode_groups = dense.assign(step.decodes)
        at, starts = self.decodes, dict[int, int]()
        for chunk in step.chunks:
            starts[id(chunk)] = at
            at += chunk.end - chunk.start
        self.groups = [PrefillGroup(chunks, starts, size) for chunks in _group_by_size(step.chunks)]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        pool = self.pool[layer]
        pool[0, self.pages, :, self.offsets] = keys
        pool[1, self.pages, :, self.offsets] = values
        out, count = torch.empty_like(queries), self.decodes
        for group in self.decode_groups:
            group.attend(layer, queries[:count], keys[:count], values[:count], out, scale)
        for group in self.groups:
            group.attend(pool, queries, out, scale)
        return out


class PrefillGroup:
    """Prompt chunks of similar size, padded to one block."""

    def __init__(self, chunks: list[Chunk], starts: dict[int, int], size: int) -> None:
        self.chunks = chunks
        self.width = max(chunk.end - chunk.start for chunk in chunks)
        self.length = max(chunk.end for chunk in chunks)
        count = -(-self.length // size)
        self.pages = torch.zeros(len(chunks), count, dtype=torch.long)
        for row, chunk in enumerate(chunks):
            numbers = [page.number for page in chunk.request.pages[: -(-chunk.end // size)]]
            self.pages[row, : len(numbers)] = torch.tensor(numbers)
        # The rows of the chunks' tokens among all tokens of the step.
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


def _cache_places(step: Step, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The page and the offset in it for each token of the step."""
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


def _group_by_size(chunks: list[Chunk]) -> list[list[Chunk]]:
    """Chunks whose sizes are within a factor of two of each other."""
    groups: dict[tuple[int, int], list[Chunk]] = {}
    for chunk in chunks:
        kind = math.ceil(math.log2(chunk.end - chunk.start)), math.ceil(math.log2(chunk.end))
        groups.setdefault(kind, []).append(chunk)
    return list(groups.values())
