"""The FlexAttention plan, checked without a GPU: which blocks it visits, and what it computes."""

from __future__ import annotations

import random

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from ramet.train.local.packing import Packed, pack
from ramet.train.local.trie_attention import BLOCK, BlockAttention, SegmentAttention, padded_length, plan_for
from tests.train.tiny import row

CPU = torch.device("cpu")


def large_trie(seed: int) -> Packed:
    """A few hundred tokens with branches everywhere, so that blocks of every kind appear."""
    dice = random.Random(seed)
    trunk = [dice.randrange(9) for _ in range(400)]
    rows = []
    for node in range(12):
        own = [dice.randrange(9) for _ in range(dice.randrange(1, 90))]
        rows.append(row(*trunk[: dice.randrange(1, 400)], *own, node=node))
    return pack(rows)


@pytest.mark.parametrize("seed", range(5))
def test_blocks_are_visited_whole_in_part_or_not_at_all_exactly_as_needed(seed: int) -> None:
    plan = BlockAttention(large_trie(seed), CPU, kernel=flex_attention)
    place = torch.arange(len(plan.ends))
    seen = (place[None] <= place[:, None]) & (place[:, None] < plan.ends[None])
    size = len(plan.ends) // BLOCK
    blocks = seen.view(size, BLOCK, size, BLOCK).transpose(1, 2).flatten(2)
    mask = plan.mask
    assert mask.full_kv_indices is not None
    assert mask.full_kv_num_blocks is not None
    for line in range(size):
        full = set(mask.full_kv_indices[0, 0, line, : mask.full_kv_num_blocks[0, 0, line]].tolist())
        part = set(mask.kv_indices[0, 0, line, : mask.kv_num_blocks[0, 0, line]].tolist())
        assert full == {at for at in range(size) if bool(blocks[line, at].all())}
        assert part == {at for at in range(size) if bool(blocks[line, at].any())} - full


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("seed", range(3))
def test_flex_attention_gives_what_segments_give(seed: int) -> None:
    packed = large_trie(seed)
    blocks, segments = BlockAttention(packed, CPU, kernel=flex_attention), SegmentAttention(packed, CPU)
    torch.manual_seed(seed)
    sizes = [(padded_length(packed, blocks), heads, 16) for heads in (6, 2, 2)]
    queries, keys, values = (torch.randn(*size, dtype=torch.float64) for size in sizes)
    used = len(packed.token_ids)
    expected = segments.attend(0, queries[:used], keys[:used], values[:used], 0.25)
    found = blocks.attend(0, queries, keys, values, 0.25)
    assert bool(found.isfinite().all())
    torch.testing.assert_close(found[:used], expected, rtol=0, atol=1e-9)


def test_plans_say_how_long_a_sequence_they_read() -> None:
    packed = large_trie(0)
    assert padded_length(packed, plan_for(packed, torch.float32, CPU)) == len(packed.token_ids)
    padded = padded_length(packed, BlockAttention(packed, CPU, kernel=flex_attention))
    assert padded % BLOCK == 0
    assert 0 <= padded - len(packed.token_ids) < BLOCK
