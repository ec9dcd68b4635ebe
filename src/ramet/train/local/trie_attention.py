"""Attention over a packed trie: every token attends to its own branch from the root down, and to nothing else.

Two plans with the same result. `SegmentAttention` runs everywhere: one call per stretch of tokens, its queries against
the keys of its path, so that work grows with the visible keys and not with the square of the packed length.
`BlockAttention` is one FlexAttention kernel for CUDA. Its gradient has a program for every block of keys, which goes
through all blocks of queries that see it: those of a prefix that all rows share take ten times as long as the others.
With `spread`, such blocks are copied, and every copy is seen by a few blocks of queries.
"""

# pyright: standard

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from ramet.models.attention import Plan
from ramet.train.local.packing import Packed, Span
from ramet.train.local.transfer import to_device

BLOCK = 128  # FlexAttention works in blocks of this many tokens; sequences are padded to whole blocks
VIEWERS = 16  # blocks of queries that see a block of keys, if it is copied for more; on average nine do


def plan_for(packed: Packed, model_dtype: torch.dtype, device: torch.device, *, spread: bool = False) -> Plan:
    """The fastest plan available. FlexAttention has no kernel for doubles."""
    if device.type == "cuda" and model_dtype != torch.float64:
        return BlockAttention(packed, device, spread=spread)
    return SegmentAttention(packed, device)


def padded_length(packed: Packed, plan: Plan) -> int:
    """The length that the packed sequence must be padded to for `plan`."""
    return plan.length if isinstance(plan, BlockAttention) else len(packed.token_ids)


class SegmentAttention:
    """One call per stretch.

    Keys are split once, at every point where rows diverge; a path is then a list of whole segments, and the gradient
    of the split is a single concatenation.
    """

    def __init__(self, packed: Packed, device: torch.device) -> None:
        cuts = sorted({end for stretch in packed.stretches for span in (stretch.span, *stretch.path) for end in span})
        self.lengths = [last - first for first, last in pairwise(cuts)]
        self.stretches = [last - first for first, last in (stretch.span for stretch in packed.stretches)]
        self.paths = [_segments(cuts, (*stretch.path, stretch.span)) for stretch in packed.stretches]
        self.masks = [
            _lower_right(size, sum(self.lengths[segment] for segment in path), device)
            for size, path in zip(self.stretches, self.paths, strict=True)
        ]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        del layer
        q, k, v = _by_head(queries, keys, values)
        key_segments, value_segments = k.split(self.lengths, dim=-2), v.split(self.lengths, dim=-2)
        seen: list[Tensor] = []
        for query, path, mask in zip(q.split(self.stretches, dim=-2), self.paths, self.masks, strict=True):
            key = torch.cat([key_segments[segment] for segment in path], dim=-2)
            value = torch.cat([value_segments[segment] for segment in path], dim=-2)
            causal = mask is None and query.shape[-2] > 1  # square, or a single token that attends to everything
            seen.append(
                F.scaled_dot_product_attention(
                    query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=True
                )
            )
        return torch.cat(seen, dim=-2)[0].transpose(0, 1)


def _segments(cuts: list[int], spans: tuple[Span, ...]) -> list[int]:
    return [index for first, last in spans for index in range(bisect_left(cuts, first), bisect_left(cuts, last))]


def _lower_right(num_queries: int, num_keys: int, device: torch.device) -> Tensor | None:
    """A causal mask aligned to the last query and the last key; None where SDPA needs none."""
    if num_queries in (1, num_keys):
        return None
    seen = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return seen.tril(num_keys - num_queries)


def _by_head(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As (1, heads, tokens, size), in one type: under autocast rotary embeddings leave values behind."""
    q, k, v = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (queries, keys, values))
    return q.to(v.dtype), k.to(v.dtype), v


class BlockAttention:
    """One FlexAttention call: in depth-first order `query` attends to `key` when starts[key] <= query < stops[key].

    Without copies that is from the key itself to the end of its branch. Padding attends to itself only.
    """

    def __init__(
        self, packed: Packed, device: torch.device, kernel: Callable[..., Any] | None = None, *, spread: bool = False
    ) -> None:
        self.length = -(-len(packed.ends) // BLOCK) * BLOCK
        ends = np.array([*packed.ends, *range(len(packed.ends) + 1, self.length + 1)], dtype=np.int32)
        starts, stops, copied = _spread(ends) if spread else (np.arange(self.length, dtype=np.int32), ends, ends[:0])
        self.starts, self.stops = to_device(starts, device), to_device(stops, device)
        self.copied = to_device(copied, device, dtype=torch.long) if len(copied) else None
        self.mask = _block_mask(self.starts, self.stops, self.length)
        self.kernel = kernel or _compiled()

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        del layer
        q, k, v = _by_head(queries, keys, values)
        grouped = q.shape[1] != k.shape[1]
        if self.copied is not None:
            k, v = (_WithCopies.apply(one, self.copied) for one in (k, v))
        seen = self.kernel(q, k, v, block_mask=self.mask, scale=scale, enable_gqa=grouped)
        return seen[0].transpose(0, 1)


def _spread(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Copy blocks of keys that more than `VIEWERS` blocks of queries see, once for every `VIEWERS` more of them.

    Queries that see a key follow it without a gap, so each copy serves a range of queries. Returns the first query
    that sees each key and the one after the last, and which keys are copied to the end.
    """
    starts, stops, copied = [np.arange(len(ends), dtype=np.int32)], [ends.copy()], [np.zeros(0, dtype=np.int32)]
    for first in range(0, len(ends), BLOCK):
        own = slice(first, first + BLOCK)
        served = first + VIEWERS * BLOCK
        stops[0][own] = np.minimum(ends[own], served)
        for start in range(served, int(ends[own].max()), VIEWERS * BLOCK):
            starts.append(np.full(BLOCK, start, dtype=np.int32))
            stops.append(np.minimum(ends[own], start + VIEWERS * BLOCK))
            copied.append(np.arange(first, first + BLOCK, dtype=np.int32))
    return np.concatenate(starts), np.concatenate(stops), np.concatenate(copied)


class _WithCopies(torch.autograd.Function):
    """Tokens, and copies of some of them at the end. Gradients of copies are added up in single precision at least."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, copied: Tensor) -> Tensor:
        ctx.save_for_backward(copied)
        ctx.length = tokens.shape[-2]
        return torch.cat((tokens, tokens.index_select(-2, copied)), dim=-2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (copied,), (grad,) = ctx.saved_tensors, grads
        exact = grad.to(torch.promote_types(grad.dtype, torch.float32))
        own, copies = exact[..., : ctx.length, :], exact[..., ctx.length :, :]
        return own.index_add(-2, copied, copies).to(grad.dtype), None


@cache
def _compiled() -> Callable[..., Any]:
    """Compiled once for all lengths: a kernel per length would cost seconds for every batch."""
    return torch.compile(flex_attention, dynamic=True)


def _block_mask(starts: Tensor, stops: Tensor, length: int) -> BlockMask:
    """The visible blocks, computed without a mask of quadratic size, on the device.

    A block of keys begins to be seen at its first key by the block of queries that it belongs to; later ones may see
    all of its keys. A copy is seen from its first block of queries on.
    """
    first = torch.arange(0, length, BLOCK, device=starts.device)[:, None]  # [query block, key block]
    begin, end = starts.view(-1, BLOCK), stops.view(-1, BLOCK)
    full = (begin.amax(1)[None] <= first) & (end.amin(1)[None] >= first + BLOCK)
    touched = (begin.amin(1)[None] <= first) & (end.amax(1)[None] > first)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < stops[key])

    def sees_copies(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (starts[key] <= query) & (query < stops[key])

    return BlockMask.from_kv_blocks(
        *_ragged(touched & ~full),
        *_ragged(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=sees if len(starts) == length else sees_copies,
        seq_lengths=(length, len(starts)),
    )


def _ragged(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many key blocks each query block attends to, and their indices first."""
    counts = blocks.sum(1, dtype=torch.int32)
    which = blocks.to(torch.int8).argsort(dim=1, descending=True, stable=True).to(torch.int32)
    return counts[None, None], which[None, None]
