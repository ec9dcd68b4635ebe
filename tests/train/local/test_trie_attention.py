"""Attention over a packed trie by blocks: which blocks are visited, and what it comes to without a GPU.

The kernels themselves are run by `make test-kernels` in Triton's interpreter, and by `make test-gpu`.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from ramet.models.attention import compile_plans, planned
from ramet.train.local import trie_op
from ramet.train.local.packing import Packed, pack
from ramet.train.local.policy import Policy, prepare
from ramet.train.local.trie_attention import (
    BLOCK,
    BlockAttention,
    SegmentAttention,
    block_attention,
    block_lists,
    padded_length,
    plan_for,
)
from tests.engine.local.models import KINDS, make
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


def padded_ends(packed: Packed) -> np.ndarray:
    """Where the branch of each token ends; padding is a branch of its own."""
    length = -(-len(packed.ends) // BLOCK) * BLOCK
    return np.array([*packed.ends, *range(len(packed.ends) + 1, length + 1)])


def visible(ends: np.ndarray) -> np.ndarray:
    """[query, key]"""
    place = np.arange(len(ends))
    return (place[None] <= place[:, None]) & (place[:, None] < ends[None])


def by_block(seen: np.ndarray) -> np.ndarray:
    """[block of queries, block of keys, pairs]"""
    size = len(seen) // BLOCK
    return seen.reshape(size, BLOCK, size, BLOCK).transpose(0, 2, 1, 3).reshape(size, size, -1)


@pytest.mark.parametrize("seed", range(5))
def test_blocks_of_queries_list_what_they_see_whole_then_what_they_see_in_part(seed: int) -> None:
    ends = padded_ends(large_trie(seed, rows=70))
    blocks = by_block(visible(ends))
    joint, _ = block_lists(ends)
    lists = trie_op.split_lists(torch.from_numpy(joint), len(ends))
    for query in range(len(blocks)):
        listed = lists.blocks[lists.offsets[query] : lists.offsets[query + 1]].tolist()
        full, part = listed[: lists.fulls[query]], listed[lists.fulls[query] :]
        assert full == [key for key in range(len(blocks)) if blocks[query, key].all()]
        assert part == [key for key in range(len(blocks)) if blocks[query, key].any() and key not in full]


@pytest.mark.parametrize("viewers", [1, 3, 16])
@pytest.mark.parametrize("seed", range(3))
def test_items_cover_every_block_that_sees_a_block_of_keys_once(seed: int, viewers: int) -> None:
    ends = padded_ends(large_trie(seed, rows=70))
    blocks = by_block(visible(ends))
    joint, items = block_lists(ends, viewers=viewers)
    lists = trie_op.split_lists(torch.from_numpy(joint), len(ends))
    for key in range(len(blocks)):
        own = items[lists.slots[key] : lists.slots[key + 1]]
        assert set(own[:, 0]) == {key}
        assert (own[:, 2] - own[:, 1]).max() <= viewers
        covered = [query for _, first, last in own for query in range(first, last)]
        assert covered == [query for query in range(len(blocks)) if blocks[query, key].any()]
        whole = [query for query in covered if query > key and query < lists.whole[key]]
        assert whole == [query for query in covered if blocks[query, key].all()]


def test_a_prefix_that_all_rows_share_has_several_items() -> None:
    trunk = list(range(BLOCK))
    packed = pack([row(*trunk, *[node] * (BLOCK + 1), node=node) for node in range(40)])
    ends = padded_ends(packed)
    _, items = block_lists(ends)
    assert [item.tolist() for item in items[:4]] == [[0, 0, 16], [0, 16, 32], [0, 32, 41], [1, 1, 2]]


def test_plans_say_how_long_a_sequence_they_read() -> None:
    packed = large_trie(0)
    assert padded_length(packed, plan_for(packed, torch.float32, CPU)) == len(packed.token_ids)
    padded = padded_length(packed, block_attention(packed, CPU))
    assert padded % BLOCK == 0
    assert 0 <= padded - len(packed.token_ids) < BLOCK


# What a GPU's kernels compute, written with dense masks, so that everything around them runs here.


def _scores(queries: Tensor, keys: Tensor, joint: Tensor, scale: float) -> Tensor:
    """(heads, queries, keys), minus infinity where a key is not visible."""
    seen = torch.from_numpy(visible(trie_op.split_lists(joint, len(queries)).ends.numpy()))
    scores = torch.einsum("qhd,khd->hqk", queries, keys) * scale
    return scores.masked_fill(~seen, float("-inf"))


def _for_all_heads(queries: Tensor, *tensors: Tensor) -> list[Tensor]:
    return [one.repeat_interleave(queries.shape[1] // one.shape[1], 1) for one in tensors]


def dense(q: Tensor, k: Tensor, v: Tensor, joint: Tensor, items: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    del items
    keys, values = _for_all_heads(q, k, v)
    scores = _scores(q, keys, joint, scale)
    out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
    return out.contiguous(), scores.logsumexp(-1) * trie_op.LOG2_E


def dense_backward(
    grads: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    sums: Tensor,
    joint: Tensor,
    items: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    del items
    keys, values = _for_all_heads(q, k, v)
    weights = torch.exp2(_scores(q, keys, joint, scale) * trie_op.LOG2_E - sums[:, :, None])
    rises = torch.einsum("qhd,khd->hqk", grads, values) - (grads * out).sum(-1).T[:, :, None]
    steps = weights * rises * scale
    shared = (len(k), k.shape[1], -1, k.shape[2])
    return (
        torch.einsum("hqk,khd->qhd", steps, keys).contiguous(),
        torch.einsum("hqk,qhd->khd", steps, q).reshape(shared).sum(2),
        torch.einsum("hqk,qhd->khd", weights, grads).reshape(shared).sum(2),
    )


@pytest.fixture(scope="module", autouse=True)
def _without_a_gpu() -> None:
    trie_op.trie_attention.register_kernel("cpu")(dense)
    trie_op.trie_attention_backward.register_kernel("cpu")(dense_backward)


def tensors(packed: Packed, plan: BlockAttention, *, seed: int) -> list[Tensor]:
    """Queries, keys and values."""
    torch.manual_seed(seed)
    sizes = [(padded_length(packed, plan), heads, 16) for heads in (3, 1, 1)]
    return [torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in sizes]


@pytest.mark.parametrize("seed", range(3))
def test_blocks_and_segments_have_the_same_outputs_and_gradients(seed: int) -> None:
    packed = large_trie(seed)
    blocks, segments = block_attention(packed, CPU), SegmentAttention(packed, CPU)
    given = tensors(packed, blocks, seed=seed)
    used = len(packed.token_ids)
    found, expected = blocks.attend(0, *given, 0.25), segments.attend(0, *(one[:used] for one in given), 0.25)
    torch.testing.assert_close(found[:used], expected, rtol=0, atol=1e-9)
    weights = torch.randn(used, 3, 16, dtype=torch.float64)
    for one, other in zip(
        torch.autograd.grad((found[:used] * weights).sum(), given),
        torch.autograd.grad((expected * weights).sum(), given),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def gradient(policy: Policy, packed: Packed, plan: BlockAttention | SegmentAttention) -> Tensor:
    """All gradients of a loss over the hidden states of a trie, in one piece."""
    policy.model.zero_grad(set_to_none=True)
    padding = (0,) * (padded_length(packed, plan) - len(packed.token_ids))
    ids, places = (torch.tensor([one + padding]) for one in (packed.token_ids, packed.depths))
    states = policy.decoder(input_ids=ids, position_ids=places, **planned(plan)).last_hidden_state[0]
    states[: len(packed.token_ids)].square().sum().backward()
    return torch.cat([one.grad.flatten() for one in policy.trained if one.grad is not None])


@pytest.mark.parametrize("checkpointing", [False, True], ids=["layers kept", "layers computed again"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_model_has_the_same_gradients_by_blocks_and_by_segments(kind: str, checkpointing: bool) -> None:
    policy = prepare(make(kind, max_position_embeddings=1024), checkpointing=checkpointing)
    packed = large_trie(0)
    found = gradient(policy, packed, block_attention(packed, CPU))
    expected = gradient(policy, packed, SegmentAttention(packed, CPU))
    assert float((found - expected).norm()) < 1e-4 * float(expected.norm())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:::torch")
def test_layers_are_compiled_whole_and_once_for_tries_of_all_sizes() -> None:
    plain, policy = (
        prepare(make("qwen3", max_position_embeddings=1024)),
        prepare(make("qwen3", max_position_embeddings=1024)),
    )
    compile_plans(whole=True)  # as on a GPU
    for layer in policy.decoder.layers:
        layer.forward = torch.compile(layer.forward, dynamic=True, fullgraph=True)
    for seed, rows in enumerate((12, 3, 30)):
        packed = large_trie(seed, rows=rows)
        with torch.compiler.set_stance("fail_on_recompile" if seed == 2 else "default"):
            found = gradient(policy, packed, block_attention(packed, CPU))
        expected = gradient(plain, packed, SegmentAttention(packed, CPU))
        assert float((found - expected).norm()) < 1e-4 * float(expected.norm())
