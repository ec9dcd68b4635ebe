# pyright: standard
"""The inputs of a step on a GPU: all numbers that describe it, in one array that goes to the device in one transfer.

Needs no GPU. What stays the same while a request decodes (its seed, its temperature) is kept in arrays by slot, so that
a step with hundreds of requests takes a few calls of numpy and not a line of Python for every number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ramet.engine.local.request import Request
from ramet.engine.local.sampling import keys
from ramet.engine.local.scheduler import Chunk, Step

ROWS = 32  # prompt tokens per program in attention
# Sizes that graphs are captured for: rows of steps that only decode, rows of steps with prompt chunks, and tokens
# sampled in these. Steps of trees have many sizes, and a capture costs as much as many steps save, so there are few.
DECODE_SIZES = (1, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
PREFILL_SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
SAMPLE_SIZES = (32, 128, 512)
UPDATE_SIZES = (512, 8192)  # entries of page tables that change: in steps that only decode, and in others
ALIGNED = 4  # inputs begin at multiples of 16 bytes: Triton compiles a kernel again for another alignment
SEED_BITS = (1 << 64) - 1


@dataclass(slots=True)
class Updates:
    """Changed entries of the page tables: their places, and the pages that stand there from now on."""

    places: list[int] = field(default_factory=list[int])
    pages: list[int] = field(default_factory=list[int])

    def __len__(self) -> int:
        return len(self.places)


@dataclass(frozen=True, slots=True)
class Key:
    """The sizes that a graph is captured for."""

    rows: int
    samples: int
    blocks: int
    updates: int
    filtered: bool


def key_of(step: Step, requests: Sequence[Request], updates: int) -> Key:
    """The sizes of a step, rounded up. `requests` are those that sample."""
    decodes, tokens = len(step.decodes), sum(chunk.end - chunk.start for chunk in step.chunks)
    filtered = any(request.filtered for request in requests)
    if not tokens:
        rows = round_up(decodes, DECODE_SIZES)
        return Key(rows, rows, 0, round_up(updates, UPDATE_SIZES), filtered)
    rows = round_up(decodes + tokens, PREFILL_SIZES)
    samples = round_up(max(decodes, len(requests)), SAMPLE_SIZES)
    blocks = sum(-(-(chunk.end - chunk.start) // ROWS) for chunk in step.chunks)
    # A chunk begins at most one block that is not full, and at most one chunk of a step does not sample.
    most = rows // ROWS + samples + 1
    updates = round_up(updates, UPDATE_SIZES[1:])
    return Key(rows, samples, most if blocks <= most else _power_of_two(blocks), updates, filtered)


class Layout:
    """The offsets of the inputs in the array that describes a step."""

    FLOATS = ("temperature", "top_p")

    def __init__(self, key: Key) -> None:
        sizes = {
            "counts": 3, "ids": key.rows, "positions": key.rows, "slots": key.rows, "picks": key.samples,
            "sampled_slots": key.samples, "keys": 2 * key.samples, "temperature": key.samples, "top_p": key.samples,
            "top_k": key.samples, "blocks": 2 * key.blocks, "update_at": key.updates, "update_to": key.updates,
            "copies": 2 * key.blocks,  # a page is copied for a chunk, which has at least one block
        }  # fmt: skip
        self.filtered = key.filtered
        self.spans: dict[str, slice] = {}
        at = 0
        for name, size in sizes.items():
            self.spans[name] = slice(at, at + size)
            at += aligned(size)
        self.size = at

    def parts(self, array: Any) -> dict[str, Any]:
        """Views by name, of a numpy array or a tensor."""
        floats: Any = np.float32
        if not isinstance(array, np.ndarray):
            import torch

            floats = torch.float32
        return {
            name: array[span].view(floats) if name in self.FLOATS else array[span] for name, span in self.spans.items()
        }


class Inputs:
    """Writes the inputs of steps. Remembers, by slot, how the request there is sampled and how far it has come.

    A request is remembered when the last chunk of its prompt is written, which is before its first token is decoded.
    """

    def __init__(self, *, max_batch: int, table_width: int, padding_page: int) -> None:
        self.padding_slot = max_batch  # the slot of padding rows; it has a page of its own
        self.padding_page = padding_page
        self._table_width = table_width
        self._numbers = np.arange(max_batch, dtype=np.int32)
        self._positions = np.zeros(max_batch, dtype=np.int32)  # of the token that is decoded next
        self._draws = np.zeros(max_batch, dtype=np.uint64)  # tokens sampled so far
        self._seeds = np.zeros(max_batch, dtype=np.uint64)
        self._temperature = np.zeros(max_batch, dtype=np.float32)
        self._top_p = np.zeros(max_batch, dtype=np.float32)
        self._top_k = np.zeros(max_batch, dtype=np.int32)

    def updates(self, step: Step) -> Updates:
        """What the page tables lack for this step; counted as written."""
        found = Updates()  # flat lists: objects for every entry would keep the garbage collector busy
        for request in [*step.decodes, *(chunk.request for chunk in step.chunks)]:
            known, all_pages = request.synced, len(request.pages)
            if known < all_pages:
                start = request.slot * self._table_width
                found.places += range(start + known, start + all_pages)
                found.pages += [page.number for page in request.pages[known:]]
                request.synced = all_pages
        return found

    def write(self, step: Step, updates: Updates, layout: Layout, array: np.ndarray) -> None:
        """Write the inputs of a step into an array of this layout; every step is written once, in order."""
        part = layout.parts(array)
        decoded = np.fromiter((request.slot for request in step.decodes), dtype=np.int32, count=len(step.decodes))
        count = len(decoded)
        part["ids"][:count] = -1
        part["positions"][:count] = self._positions[decoded]
        part["slots"][:count] = decoded
        part["picks"][:count] = self._numbers[:count]
        self._positions[decoded] += 1
        blocks, begun = self._write_chunks(step.chunks, part, at=count)
        part["counts"][:] = count, blocks, len(step.copies)
        if step.copies:
            part["copies"][: 2 * len(step.copies)] = np.array(step.copies, dtype=np.int32).reshape(-1)
        self._write_sampling(np.concatenate([decoded, begun]), part, filtered=layout.filtered)
        self._write_updates(updates, part)

    def _write_chunks(self, chunks: Sequence[Chunk], part: dict[str, Any], *, at: int) -> tuple[int, np.ndarray]:
        """Write prompt tokens from row `at` on; the number of their blocks, and the slots of those that sample."""
        blocks: list[int] = []
        picks: list[int] = []
        begun: list[int] = []
        first_pick = at
        for chunk in chunks:
            request, number = chunk.request, chunk.end - chunk.start
            part["ids"][at : at + number] = request.ids[chunk.start : chunk.end]
            part["positions"][at : at + number] = np.arange(chunk.start, chunk.end)
            part["slots"][at : at + number] = request.slot
            for first in range(0, number, ROWS):
                blocks += (at + first, min(ROWS, number - first))
            at += number
            if chunk.samples:
                picks.append(at - 1)
                begun.append(request.slot)
                self._remember(request, position=chunk.end)
        part["blocks"][: len(blocks)] = blocks
        part["picks"][first_pick : first_pick + len(picks)] = picks
        part["picks"][first_pick + len(picks) :] = 0
        part["ids"][at:] = 0
        part["positions"][at:] = 0
        part["slots"][at:] = self.padding_slot
        return len(blocks) // 2, np.array(begun, dtype=np.int32)

    def _remember(self, request: Request, *, position: int) -> None:
        slot, sampling = request.slot, request.sampling
        self._positions[slot] = position
        self._draws[slot] = request.draws - 1  # the one of this step is counted already
        self._seeds[slot] = sampling.seed & SEED_BITS
        self._temperature[slot] = sampling.temperature
        self._top_p[slot] = sampling.top_p
        self._top_k[slot] = sampling.top_k

    def _write_sampling(self, slots: np.ndarray, part: dict[str, Any], *, filtered: bool) -> None:
        count = len(slots)
        part["sampled_slots"][:count] = slots
        part["sampled_slots"][count:] = self.padding_slot
        part["keys"][: 2 * count] = keys(self._seeds[slots], self._draws[slots]).view(np.int32).reshape(-1)
        self._draws[slots] += np.uint64(1)
        part["temperature"][:count] = self._temperature[slots]
        part["temperature"][count:] = 1.0
        if filtered:
            part["top_p"][:count] = self._top_p[slots]
            part["top_p"][count:] = 1.0
            part["top_k"][:count] = self._top_k[slots]
            part["top_k"][count:] = 0

    def _write_updates(self, updates: Updates, part: dict[str, Any]) -> None:
        count = len(updates)
        part["update_at"][:count] = updates.places
        part["update_to"][:count] = updates.pages
        part["update_at"][count:] = self.padding_slot * self._table_width
        part["update_to"][count:] = self.padding_page


def round_up(count: int, sizes: tuple[int, ...]) -> int:
    """The smallest size that is at least `count`; beyond the last one, the next power of two."""
    place = bisect_left(sizes, count)
    return sizes[place] if place < len(sizes) else _power_of_two(count)


def aligned(count: int) -> int:
    """So many numbers of four bytes, rounded up to a multiple of `ALIGNED`."""
    return -(-count // ALIGNED) * ALIGNED


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length() if count > 1 else 1
