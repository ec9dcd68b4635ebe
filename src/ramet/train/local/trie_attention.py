"""Attention over a packed trie: every token attends to its own branch from the root down, and to nothing else.

Two plans with the same result. `SegmentAttention` runs everywhere: one call per stretch of tokens, its queries against
the keys of its path, so that work grows with the visible keys and not with the square of the packed length.
`BlockAttention` is one FlexAttention kernel for CUDA.
"""

# pyright: standard

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from ramet.models.attention import Plan
from ramet.train.local.packing import Packed, Span
from ramet.train.local.transfer import to_device

BLOCK = 128  # FlexAttention works in blocks of this many tokens; sequences are padded to whole blocks


def plan_for(packed: Packed, model_dtype: torch.dtype, device: torch.device) -> Plan:
    """The fastest plan available. FlexAttention has no kernel for doubles."""
    if device.type == "cuda" and model_dtype != torch.float64:
        return BlockAttention(packed, device)
    return SegmentAttention(packed, device)


def padded_length(packed: Packed, plan: Plan) -> int:
    """The length that the packed sequence must be padded to for `plan`."""
    return len(plan.ends) if isinstance(plan, BlockAttention) else len(packed.token_ids)


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
    """One FlexAttention call: in depth-first order `query` attends to `key` when key <= query < ends[key].

    Padding attends to itself only.
    """

    def __init__(self, packed: Packed, device: torch.device, kernel: Callable[..., Any] | None = None) -> None:
        length = -(-len(packed.ends) // BLOCK) * BLOCK
        ends = [*packed.ends, *range(len(packed.ends) + 1, length + 1)]
        self.ends = to_device(ends, device, dtype=torch.int32)
        self.mask = _block_mask(self.ends)
        self.kernel = kernel or _compiled()

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        del layer
        q, k, v = _by_head(queries, keys, values)
        grouped = q.shape[1] != k.shape[1]
        seen = self.kernel(q, k, v, block_mask=self.mask, scale=scale, enable_gqa=grouped)
        return seen[0].transpose(0, 1)


@cache
def _compiled() -> Callable[..., Any]:
    """Compiled once for all lengths: a kernel per length would cost seconds for every batch."""
    return torch.compile(flex_attention, dynamic=True)


def _block_mask(ends: Tensor) -> BlockMask:
    """The visible blocks, computed from `ends` alone without a mask of quadratic size, on its device."""
    blocks = ends.view(-1, BLOCK)
    first = torch.arange(len(blocks), device=ends.device) * BLOCK
    earlier = first[None, :] < first[:, None]  # [query block, key block]
    full = earlier & (blocks.amin(1)[None, :] >= first[:, None] + BLOCK)
    touched = earlier & (blocks.amax(1)[None, :] > first[:, None]) | (first[None, :] == first[:, None])

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key])

    return BlockMask.from_kv_blocks(
        *_ragged(touched & ~full),
        *_ragged(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(len(ends), len(ends)),
    )


def _ragged(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many key blocks each query block attends to, and their indices first."""
    counts = blocks.sum(1, dtype=torch.int32)
    which = blocks.to(torch.int8).argsort(dim=1, descending=True, stable=True).to(torch.int32)
    return counts[None, None], which[None, None]
