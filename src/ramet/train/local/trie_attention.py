"""Attention over a packed trie: every token attends to its own branch from the root down, and to nothing else.

Two plans with the same result. `SegmentAttention` runs everywhere: one call per stretch of tokens, its queries against
the keys of its path, so that work grows with the visible keys and not with the square of the packed length.
`BlockAttention` runs kernels of its own on a GPU, over the blocks of keys that a block of queries sees.
"""

# pyright: standard

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ramet.models.attention import Plan
from ramet.train.local.packing import Packed, Span
from ramet.train.local.transfer import to_device
from ramet.train.local.trie_op import BLOCK, trie_attention

VIEWERS = 16  # blocks of queries in one item of the gradient; on average nine see a block of keys


def plan_for(packed: Packed, model_dtype: torch.dtype, device: torch.device) -> Plan:
    """The fastest plan available. Kernels have no doubles."""
    if device.type == "cuda" and model_dtype != torch.float64:
        return block_attention(packed, device)
    return SegmentAttention(packed, device)


def padded_length(packed: Packed, plan: Plan) -> int:
    """The length that the packed sequence must be padded to for `plan`."""
    return _whole_blocks(len(packed.ends)) if isinstance(plan, BlockAttention) else len(packed.ends)


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


class BlockAttention(NamedTuple):
    """Kernels over blocks: in depth-first order `query` attends to `key` when key <= query < ends[key].

    Tensors only, so that a layer is compiled once for all plans. Padding attends to itself only.
    """

    lists: Tensor  # `trie_op.Lists`, one after the other
    items: Tensor  # (number, 3): a block of keys, the first block of queries that sees it, the one after the last

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        del layer
        kind = values.dtype  # under autocast rotary embeddings leave values behind
        return trie_attention(queries.to(kind), keys.to(kind), values, self.lists, self.items, scale)[0]


def block_attention(packed: Packed, device: torch.device) -> BlockAttention:
    ends = np.concatenate((packed.ends, np.arange(len(packed.ends), _whole_blocks(len(packed.ends))) + 1))
    lists, items = block_lists(ends)
    return BlockAttention(to_device(lists, device), to_device(items, device))


def _whole_blocks(length: int) -> int:
    return -(-length // BLOCK) * BLOCK


def block_lists(ends: np.ndarray, *, viewers: int = VIEWERS) -> tuple[np.ndarray, np.ndarray]:
    """The lists and items of `BlockAttention`.

    Blocks of queries that see a block of keys follow it without a gap. An item has at most `viewers` of them: a prefix
    that all rows share is seen by all, and the gradient of its keys would take ten times as long as that of others.
    """
    lowest, highest = (find(ends.reshape(-1, BLOCK), axis=1) for find in (np.min, np.max))
    block = np.arange(len(lowest))
    before = block[None] < block[:, None]  # [block of queries, block of keys]
    full = before & (lowest[None] >= (block[:, None] + 1) * BLOCK)
    seen = (before & (highest[None] > block[:, None] * BLOCK)) | np.eye(len(block), dtype=bool)
    queries, keys = np.nonzero(seen)
    order = np.lexsort((~full[queries, keys], queries))  # stable: keys stay in ascending order
    last = -(-highest // BLOCK)
    numbers = -(-(last - block) // viewers)
    slots = _offsets(numbers)
    owner = np.repeat(block, numbers)
    first = owner + (np.arange(slots[-1]) - slots[owner]) * viewers
    items = np.stack((owner, first, np.minimum(first + viewers, last[owner])), axis=1)
    lists = (ends, _offsets(seen.sum(1)), full.sum(1), lowest // BLOCK, slots, keys[order])
    return np.concatenate(lists).astype(np.int32), items.astype(np.int32)


def _offsets(numbers: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(numbers)))
