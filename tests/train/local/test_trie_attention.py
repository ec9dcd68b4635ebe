"""The FlexAttention plan, checked without a GPU: which blocks it visits, and what it computes."""

from __future__ import annotations

import random

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from ramet.train.local.packing import Packed, pack
from ramet.train.local.trie_attention import (
    BLOCK,
    VIEWERS,
    BlockAttention,
    SegmentAttention,
    padded_length,
    plan_for,
)
from tests.train.tiny import row

CPU = torch.device("cpu")


def large_trie(seed: int, *, rows: int = 12) -> Packed:
    """A few hundred tokens with branches everywhere, so that blocks of every kind appear."""
    dice = random.Random(seed)
    trunk = [dice.randrange(9) for _ in range(400)]
    made = []
    for node in range(rows):
        own = [dice.randrange(9) for _ in range(dice.randrange(1, 90))]
        made.append(row(*trunk[: dice.randrange(1, 400)], *own, node=node))
    return pack(made)


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_blocks_are_visited_whole_in_part_or_not_at_all_exactly_as_needed(seed: int, spread: bool) -> None:
    plan = BlockAttention(large_trie(seed, rows=70), CPU, kernel=flex_attention, spread=spread)
    place = torch.arange(plan.length)
    seen = (plan.starts[None] <= place[:, None]) & (place[:, None] < plan.stops[None])
    size, keys = plan.length // BLOCK, len(plan.starts) // BLOCK
    assert keys > size if spread else keys == size
    blocks = seen.view(size, BLOCK, keys, BLOCK).transpose(1, 2).flatten(2)
    mask = plan.mask
    assert mask.full_kv_indices is not None
    assert mask.full_kv_num_blocks is not None
    for line in range(size):
        full = set(mask.full_kv_indices[0, 0, line, : mask.full_kv_num_blocks[0, 0, line]].tolist())
        part = set(mask.kv_indices[0, 0, line, : mask.kv_num_blocks[0, 0, line]].tolist())
        assert full == {at for at in range(keys) if bool(blocks[line, at].all())}
        assert part == {at for at in range(keys) if bool(blocks[line, at].any())} - full


def test_no_block_of_keys_is_seen_by_many_blocks_of_queries_if_shared_ones_are_copied() -> None:
    packed = large_trie(0, rows=70)
    viewers = [most_viewers(BlockAttention(packed, CPU, kernel=flex_attention, spread=spread)) for spread in (0, 1)]
    assert viewers[0] == len(packed.token_ids) // BLOCK + 1  # the first block is seen by all
    assert viewers[1] == VIEWERS


def most_viewers(plan: BlockAttention) -> int:
    first = torch.arange(0, plan.length, BLOCK)[:, None]
    seen = (plan.starts[None] < first + BLOCK) & (plan.stops[None] > first)
    return int(seen.view(len(first), -1, BLOCK).any(2).sum(0).max())


def tensors(packed: Packed, plan: BlockAttention, *, seed: int) -> list[torch.Tensor]:
    """Queries, keys and values."""
    torch.manual_seed(seed)
    sizes = [(padded_length(packed, plan), heads, 16) for heads in (3, 1, 1)]
    return [torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in sizes]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("seed", "spread"), [(0, False), (1, False), (2, False), (0, True)])
def test_flex_attention_gives_what_segments_give(seed: int, spread: bool) -> None:
    packed = large_trie(seed, rows=70 if spread else 12)
    blocks, segments = BlockAttention(packed, CPU, kernel=flex_attention, spread=spread), SegmentAttention(packed, CPU)
    assert (blocks.copied is not None) == spread
    given = [one.detach() for one in tensors(packed, blocks, seed=seed)]
    used = len(packed.token_ids)
    found = blocks.attend(0, *given, 0.25)
    assert bool(found.isfinite().all())
    expected = segments.attend(0, *(one[:used] for one in given), 0.25)
    torch.testing.assert_close(found[:used], expected, rtol=0, atol=1e-9)


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, block_mask: BlockMask, scale: float, enable_gqa: bool
) -> torch.Tensor:
    """What FlexAttention computes, with gradients, which it has on a GPU only."""
    query, key = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None]
    seen = block_mask.mask_mod(query, query, query, key)
    return scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=enable_gqa)


def test_gradients_of_copied_keys_are_added_to_those_of_the_keys() -> None:
    packed = large_trie(0, rows=70)
    blocks, segments = BlockAttention(packed, CPU, kernel=dense, spread=True), SegmentAttention(packed, CPU)
    given = tensors(packed, blocks, seed=0)
    used = len(packed.token_ids)
    weights = torch.randn(used, 3, 16, dtype=torch.float64)
    found, expected = (
        torch.autograd.grad((seen[:used] * weights).sum(), given)
        for seen in (blocks.attend(0, *given, 0.25), segments.attend(0, *(one[:used] for one in given), 0.25))
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_plans_say_how_long_a_sequence_they_read() -> None:
    packed = large_trie(0)
    assert padded_length(packed, plan_for(packed, torch.float32, CPU)) == len(packed.token_ids)
    padded = padded_length(packed, BlockAttention(packed, CPU, kernel=flex_attention))
    assert padded % BLOCK == 0
    assert 0 <= padded - len(packed.token_ids) < BLOCK
