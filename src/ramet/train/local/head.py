"""Log-probs of chosen tokens without materialising all logits.

A vocabulary is up to a hundred times wider than a hidden state, so logits are computed for a few positions at a time,
dropped, and recomputed for the gradient. Only one number per position is kept. On a GPU, kernels read them in place, so
that they stay in the precision of the model.
"""

# pyright: standard

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK_ELEMENTS = 2**25  # logits held at once: 128 MiB in float32
FUSED_CHUNKS = 4  # times as many in kernels, which need no copies of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Which tokens to score, and at which of the given hidden states; ordered by `slots`."""

    slots: Tensor
    tokens: Tensor
    counts: tuple[int, ...]  # targets per slot

    def chunks(self, size: int) -> Iterator[tuple[slice, slice]]:
        """Slots and targets of each chunk."""
        done = 0
        for first in range(0, len(self.counts), size):
            here = sum(self.counts[first : first + size])
            yield slice(first, first + size), slice(done, done + here)
            done += here


def token_logprobs(
    hidden: Tensor,
    head: nn.Linear,
    targets: Targets,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
    fused: bool | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-prob of every target and, with `entropy`, that of its distribution (without gradient).

    `fused`: whether kernels of Triton compute them; None: on a GPU, except in double precision.
    """
    weight, bias = head.weight, head.bias
    if torch.is_autocast_enabled(hidden.device.type):
        kind = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(kind), weight.to(kind)
        bias = None if bias is None else bias.to(kind)
    if fused is None:
        fused = hidden.is_cuda and hidden.dtype != torch.float64
    size = max(1, chunk_elements * (FUSED_CHUNKS if fused else 1) // weight.shape[0])
    logprobs, entropies = _Chunked.apply(hidden, weight, bias, targets, temperature, size, entropy, fused)
    return logprobs, entropies[targets.slots] if entropy else None


def pick(logits: Tensor, targets: Targets, *, temperature: float, entropy: bool) -> tuple[Tensor, Tensor | None]:
    """The same from existing logits."""
    scaled = logits.to(_exact(logits.dtype)) / temperature
    total = scaled.logsumexp(-1)
    logprobs = scaled[targets.slots, targets.tokens] - total[targets.slots]
    return logprobs, _entropy(scaled.detach(), total.detach())[targets.slots] if entropy else None


def _exact(kind: torch.dtype) -> torch.dtype:
    """Sums over a vocabulary use single precision at least."""
    return torch.promote_types(kind, torch.float32)


def _cooled(values: Tensor, temperature: float) -> Tensor:
    """Divided in place. Almost all training is at temperature 1, where a pass over all logits is saved."""
    return values if temperature == 1 else values.div_(temperature)


def _entropy(scaled: Tensor, total: Tensor) -> Tensor:
    probs = (scaled - total[:, None]).exp_()
    return total - probs.mul_(scaled).sum(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """What the gradient of the logits needs beside them."""

    targets: Targets
    grads: Tensor  # per target
    slopes: Tensor  # per slot: the sum of those of its targets
    totals: Tensor  # per slot: the logarithm of the sum of its exponentials
    logprobs: Tensor  # per target
    temperature: float


def _kernels() -> Any:
    """Triton is there where a GPU is."""
    from ramet.train.local import head_kernels

    return head_kernels


def _gradient(logits: Tensor, upstream: Upstream, slots: slice, chosen: slice) -> Tensor:
    """d logprob / d logits = (one at the target) - softmax, all over the temperature."""
    targets, temperature = upstream.targets, upstream.temperature
    scaled = _cooled(logits.to(upstream.totals.dtype), temperature)
    step = scaled.sub_(upstream.totals[slots, None]).exp_().mul_(-upstream.slopes[slots, None])
    at = targets.slots[chosen] - slots.start
    step.index_put_((at, targets.tokens[chosen]), upstream.grads[chosen], accumulate=True)
    return _cooled(step, temperature).to(logits.dtype)


class _Chunked(torch.autograd.Function):
    """log softmax(hidden @ weight.T / temperature) at the targets."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Targets,
        temperature: float,
        size: int,
        entropy: bool,
        fused: bool,
    ) -> tuple[Tensor, Tensor]:
        kind = _exact(hidden.dtype)
        total = hidden.new_empty(len(hidden), dtype=kind)
        logprobs = hidden.new_empty(len(targets.tokens), dtype=kind)
        entropies = torch.zeros_like(total)
        for slots, chosen in targets.chunks(size):
            logits = F.linear(hidden[slots], weight, bias)
            at = targets.slots[chosen]
            asked = at - slots.start, targets.tokens[chosen]
            if fused:
                total[slots], entropies[slots] = _kernels().sum_up(logits, temperature)
                logprobs[chosen] = _cooled(logits[asked].to(kind), temperature) - total[at]
                continue
            scaled = _cooled(logits.to(kind), temperature)
            total[slots] = scaled.logsumexp(-1)
            logprobs[chosen] = scaled[asked] - total[at]
            if entropy:
                entropies[slots] = _entropy(scaled, total[slots])
        ctx.save_for_backward(hidden, weight, bias, total, logprobs)
        ctx.settings = targets, temperature, size, fused
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden, weight, bias, total, logprobs = ctx.saved_tensors
        targets, temperature, size, fused = ctx.settings
        wanted = [*ctx.needs_input_grad[:3]]
        grad_hidden = torch.empty_like(hidden) if wanted[0] else None
        grad_weight = torch.zeros_like(weight, dtype=_exact(weight.dtype)) if wanted[1] else None
        grad_bias = torch.zeros_like(bias, dtype=_exact(bias.dtype)) if wanted[2] else None
        upstream = Upstream(
            targets=targets,
            grads=grad.contiguous(),
            slopes=torch.zeros_like(total).index_add_(0, targets.slots, grad),
            totals=total,
            logprobs=logprobs,
            temperature=temperature,
        )
        gradient = _kernels().to_gradient if fused else _gradient
        for slots, chosen in targets.chunks(size):
            step = gradient(F.linear(hidden[slots], weight, bias), upstream, slots, chosen)
            if grad_hidden is not None:
                grad_hidden[slots] = step @ weight
            if grad_weight is not None:
                grad_weight += step.T @ hidden[slots]
            if grad_bias is not None:
                grad_bias += step.sum(0)
        grad_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        grad_bias = None if grad_bias is None else grad_bias.to(weight.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None, None
