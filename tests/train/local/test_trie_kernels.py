"""The kernels of attention over a trie, run on a CPU by Triton's interpreter: `make test-kernels`.

On a GPU they are run by `make test-gpu`, in everything that learns there.
"""

from __future__ import annotations

import os

import pytest
import torch

from ramet.train.local import trie_op
from ramet.train.local.trie_attention import SegmentAttention, block_attention, padded_length
from tests.train.local.test_trie_attention import CPU, large_trie

pytestmark = pytest.mark.kernels


@pytest.fixture(scope="module", autouse=True)
def _interpreter() -> None:
    assert os.environ.get("TRITON_INTERPRET") == "1", "the interpreter is chosen before Triton is imported"


@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "size"),
    [(12, 3, 1, 16), (6, 2, 2, 24), (4, 1, 1, 80)],
    ids=["heads share keys", "sizes are padded", "sizes of more than 64"],
)
def test_kernels_give_what_segments_give(rows: int, heads: int, kv_heads: int, size: int) -> None:
    packed = large_trie(rows, rows=rows)
    plan = block_attention(packed, CPU)
    length, used = padded_length(packed, plan), len(packed.ends)
    torch.manual_seed(0)
    # Queries as transformers gives them: heads first in memory.
    queries = torch.randn(heads, length, size).transpose(0, 1).requires_grad_()
    keys, values = (torch.randn(length, kv_heads, size, requires_grad=True) for _ in range(2))
    grads = torch.zeros(length, heads, size)
    grads[:used] = torch.randn(used, heads, size)
    given = queries, keys, values
    expected = SegmentAttention(packed, CPU).attend(0, *(one[:used] for one in given), 0.3)
    gradients = torch.autograd.grad(expected, given, grads[:used])
    with torch.no_grad():
        out, sums = trie_op.attend(*given, plan.lists, plan.items, 0.3)
        found = trie_op.attend_backward(grads, *given, out, sums, plan.lists, plan.items, 0.3)
    for one, other in zip((out[:used], *found), (expected.detach(), *gradients), strict=True):
        assert float((one - other).norm()) < 1e-5 * float(other.norm())
