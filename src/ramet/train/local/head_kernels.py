# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
"""Triton kernels for log-probs over a vocabulary: logits are read once for the values and once for the gradient.

In torch, the same is a dozen passes over logits in single precision. Logits are (slots, SIZE); `scale` is one over the
temperature.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from ramet.train.local.head import Upstream

BLOCK = 4096  # logits that a program reads at a time
NEIGHBOURS = 16  # targets of a slot that are compared at a time
LOWEST = tl.constexpr(-1e30)  # instead of minus infinity, whose difference from itself is not a number


@triton.jit
def _sum_up(logits, totals, entropies, scale, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """The logarithm of the sum of exponentials of a slot, and its entropy. One program per slot."""
    slot = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], LOWEST, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    moment = tl.zeros([BLOCK], tl.float32)  # the sum of exponential times logit
    for start in range(0, SIZE, BLOCK):
        raw = tl.load(logits + slot * SIZE + start + at, mask=start + at < SIZE, other=LOWEST)
        value = tl.maximum(raw.to(tl.float32) * scale, LOWEST)
        higher = tl.maximum(best, value)
        shrink, weight = tl.exp(best - higher), tl.exp(value - higher)
        total = total * shrink + weight
        moment = moment * shrink + weight * value
        best = higher
    top = tl.max(best, 0)
    weight = tl.exp(best - top)
    norm = tl.sum(total * weight, 0)
    logarithm = top + tl.log(norm)
    tl.store(totals + slot, logarithm)
    tl.store(entropies + slot, logarithm - tl.sum(moment * weight, 0) / norm)


@triton.jit
def _spread(logits, totals, slopes, scale, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Replace the logits of a slot by what its probabilities contribute to their gradient."""
    slot = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    where = logits + slot * SIZE + at
    raw = tl.load(where, mask=at < SIZE, other=0.0).to(tl.float32)
    probability = tl.exp(raw * scale - tl.load(totals + slot))
    step = -probability * tl.load(slopes + slot) * scale
    tl.store(where, step.to(logits.dtype.element_ty), mask=at < SIZE)


@triton.jit(do_not_specialize=["first_target", "first_slot"])
def _mark(
    logits, slots, tokens, logprobs, grads, slopes, offsets, first_target, first_slot, scale,
    SIZE: tl.constexpr, NEIGHBOURS: tl.constexpr,
):  # fmt: skip
    """Put the whole gradient where a target is, which may be the same as others of its slot. One program per target."""
    target = first_target + tl.program_id(0)
    slot = tl.load(slots + target)
    token = tl.load(tokens + target)
    asked = tl.zeros([NEIGHBOURS], tl.float32)
    last = tl.load(offsets + slot + 1)
    for start in range(tl.load(offsets + slot), last, NEIGHBOURS):
        one = start + tl.arange(0, NEIGHBOURS)
        same = (one < last) & (tl.load(tokens + one, mask=one < last, other=-1) == token)
        asked += tl.where(same, tl.load(grads + one, mask=one < last, other=0.0), 0.0)
    step = (tl.sum(asked, 0) - tl.exp(tl.load(logprobs + target)) * tl.load(slopes + slot)) * scale
    tl.store(logits + (slot - first_slot).to(tl.int64) * SIZE + token, step.to(logits.dtype.element_ty))


def sum_up(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Of every slot: the logarithm of the sum of its exponentials, and its entropy."""
    count, size = logits.shape
    totals, entropies = torch.empty((2, count), dtype=torch.float32, device=logits.device)
    with torch.cuda.device_of(logits):  # Triton runs kernels on the current device
        _sum_up[(count,)](logits, totals, entropies, 1 / temperature, SIZE=size, BLOCK=BLOCK, num_warps=8)
    return totals, entropies


def to_gradient(logits: Tensor, upstream: Upstream, slots: slice, chosen: slice) -> Tensor:
    """Overwrite the logits of these slots by their gradient."""
    count, size = logits.shape
    number, scale = chosen.stop - chosen.start, 1 / upstream.temperature
    targets, slopes = upstream.targets, upstream.slopes
    every = torch.arange(len(slopes) + 1, device=logits.device)
    offsets = torch.searchsorted(targets.slots, every)  # per slot: its first target
    with torch.cuda.device_of(logits):
        _spread[(count, triton.cdiv(size, BLOCK))](
            logits, upstream.totals[slots], slopes[slots], scale, SIZE=size, BLOCK=BLOCK, num_warps=8
        )
        if number:
            _mark[(number,)](
                logits, targets.slots, targets.tokens, upstream.logprobs, upstream.grads, slopes, offsets,
                chosen.start, slots.start, scale, SIZE=size, NEIGHBOURS=NEIGHBOURS, num_warps=1,
            )  # fmt: skip
    return logits
