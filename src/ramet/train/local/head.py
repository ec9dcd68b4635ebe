"""Log-probs of chosen tokens without materialising all logits.

A vocabulary is up to a hundred times wider than a hidden state, so logits are computed for a few positions at a time,
dropped, and recomputed for the gradient. Only one number per position is kept.
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
) -> tuple[Tensor, Tensor | None]:
    """Log-prob of every target and, with `entropy`, that of its distribution (without gradient)."""
    weight, bias = head.weight, head.bias
    if torch.is_autocast_enabled(hidden.device.type):
        kind = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(kind), weight.to(kind)
        bias = None if bias is None else bias.to(kind)
    size = max(1, chunk_elements // weight.shape[0])
    logprobs, entropies = _Chunked.apply(hidden, weight, bias, targets, temperature, size, entropy)
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


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = F.linear(hidden, weight, bias)
    logits = logits.to(_exact(logits.dtype))
    return _cooled(logits, temperature)


def _cooled(values: Tensor, temperature: float) -> Tensor:
    """Divided in place. Almost all training is at temperature 1, where a pass over all logits is saved."""
    return values if temperature == 1 else values.div_(temperature)


def _entropy(scaled: Tensor, total: Tensor) -> Tensor:
    probs = (scaled - total[:, None]).exp_()
    return total - probs.mul_(scaled).sum(-1)


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
    ) -> tuple[Tensor, Tensor]:
        kind = _exact(hidden.dtype)
        total = hidden.new_empty(len(hidden), dtype=kind)
        logprobs = hidden.new_empty(len(targets.tokens), dtype=kind)
        entropies = torch.zeros_like(total)
        for slots, chosen in targets.chunks(size):
            scaled = _logits(hidden[slots], weight, bias, temperature)
            total[slots] = scaled.logsumexp(-1)
            at = targets.slots[chosen]
            logprobs[chosen] = scaled[at - slots.start, targets.tokens[chosen]] - total[at]
            if entropy:
                entropies[slots] = _entropy(scaled, total[slots])
        ctx.save_for_backward(hidden, weight, bias, total)
        ctx.settings = targets, temperature, size
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden, weight, bias, total = ctx.saved_tensors
        targets, temperature, size = ctx.settings
        wanted = [*ctx.needs_input_grad[:3]]
        grad_hidden = torch.empty_like(hidden) if wanted[0] else None
        grad_weight = torch.zeros_like(weight, dtype=_exact(weight.dtype)) if wanted[1] else None
        grad_bias = torch.zeros_like(bias, dtype=_exact(bias.dtype)) if wanted[2] else None
        per_slot = torch.zeros_like(total).index_add_(0, targets.slots, grad)
        for slots, chosen in targets.chunks(size):
            # d logprob / d logits = (one at the target) - softmax, all over the temperature.
            scaled = _logits(hidden[slots], weight, bias, temperature)
            step = scaled.sub_(total[slots, None]).exp_().mul_(-per_slot[slots, None])
            at = targets.slots[chosen] - slots.start
            step.index_put_((at, targets.tokens[chosen]), grad[chosen], accumulate=True)
            step = _cooled(step, temperature).to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[slots] = step @ weight
            if grad_weight is not None:
                grad_weight += step.T @ hidden[slots]
            if grad_bias is not None:
                grad_bias += step.sum(0)
        grad_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        grad_bias = None if grad_bias is None else grad_bias.to(weight.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None
