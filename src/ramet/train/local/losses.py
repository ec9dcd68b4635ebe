"""Token losses as tensors: one term per sampled token, weighted by its share of the step."""

# pyright: standard

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import torch
from torch import Tensor

from ramet.errors import ConfigError, TrainError
from ramet.train.local.transfer import to_device
from ramet.train.loss import CLIP_BOUNDS, Loss, Totals, share
from ramet.train.rows import Row

MAX_LOG_RATIO = 20.0  # log-ratios are clamped to this, so that no exponential overflows


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Inputs of the loss for each trained token, in the order of `Scores.logprobs`."""

    behaviour: Tensor | None  # log-prob under the policy that sampled it; None: not recorded
    proximal: Tensor | None  # under the policy before the first of several updates; None: this is the only one
    credit: Tensor  # advantage times weight
    share: Tensor


def terms(rows: Sequence[Row], totals: Totals, loss: Loss, *, like: Tensor) -> Terms:
    """Repeat every row's numbers for each of its trained tokens, with the dtype and device of `like`."""
    counts = np.array([row.num_trained for row in rows], dtype=np.int64)

    def spread(values: Sequence[float]) -> Tensor:
        return _as_values(np.repeat(np.array(values, dtype=np.float64), counts), like=like)

    return Terms(
        behaviour=_behaviour(rows, loss, like=like),
        proximal=_proximal(rows, like=like),
        credit=spread([row.advantage * row.weight for row in rows]),
        share=spread([share(row, totals, loss) if row.num_trained else 0.0 for row in rows]),
    )


def _behaviour(rows: Sequence[Row], loss: Loss, *, like: Tensor) -> Tensor | None:
    recorded: list[float] = []
    for row in rows:
        if row.logprobs is None:
            if loss.kind != "plain" or loss.ceiling is not None:
                raise TrainError(f"{row.name}: the engine recorded no log-probs, and this loss needs them")
            return None
        recorded += compress(row.logprobs, row.mask)
    return _as_values(recorded, like=like)


def _proximal(rows: Sequence[Row], *, like: Tensor) -> Tensor | None:
    if not rows or rows[0].proximal is None:
        return None
    recorded: list[float] = []
    for row in rows:
        if row.proximal is None:
            raise TrainError(f"{row.name}: other rows have log-probs of the start of the step, and it has none")
        recorded += compress(row.proximal, row.mask)
    return _as_values(recorded, like=like)


def _as_values(values: Sequence[float] | np.ndarray, *, like: Tensor) -> Tensor:
    """One number per token, rounded from doubles to the dtype of `like`."""
    return to_device(torch.from_numpy(np.asarray(values, dtype=np.float64)).to(like.dtype), like.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """The loss of every token before weighting."""

    loss: Tensor
    clipped: Tensor  # whether clipping changed the term
    kl: Tensor | None


def token_loss(
    logprobs: Tensor,
    behaviour: Tensor | None,
    credit: Tensor,
    loss: Loss,
    *,
    proximal: Tensor | None = None,
    reference: Tensor | None = None,
) -> Term:
    """One term per token.

    `proximal` are log-probs of the policy before the first of several updates, against which the ratio is taken;
    `reference` those of the model that the KL term pulls towards.
    """
    anchor = _anchor(logprobs, behaviour, loss, proximal)
    ratio = _exp(logprobs - anchor)
    correction = _correction(anchor, behaviour, loss)
    gain, clipped = _gain(logprobs, ratio, credit, loss)
    if not loss.kl:
        return Term(loss=-correction * gain, clipped=clipped, kl=None)
    if reference is None:
        raise ConfigError("loss.kl needs the log-probs of a reference model")
    kl = k3(logprobs, reference)
    if loss.kl_gradient == "weighted":
        kl = correction * ratio * kl
    return Term(loss=loss.kl * kl - correction * gain, clipped=clipped, kl=kl.detach())


def _anchor(logprobs: Tensor, behaviour: Tensor | None, loss: Loss, proximal: Tensor | None) -> Tensor:
    """Log-probs of the policy in the denominator of the ratio."""
    if proximal is not None:
        return proximal
    if behaviour is None or loss.kind == "plain" or loss.ceiling is not None:
        return logprobs.detach()
    return behaviour


def _correction(anchor: Tensor, behaviour: Tensor | None, loss: Loss) -> Tensor:
    """Truncated importance weight: the policy at the start of the update over the policy that sampled."""
    if loss.ceiling is None or behaviour is None:
        return torch.ones_like(anchor)
    return _exp(anchor - behaviour).clamp(max=loss.ceiling).detach()


def _gain(logprobs: Tensor, ratio: Tensor, credit: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    low, high = loss.bounds or CLIP_BOUNDS[loss.kind]
    if loss.kind == "plain":
        return credit * logprobs, torch.zeros_like(credit, dtype=torch.bool)
    if loss.kind == "cispo":
        return ratio.clamp(low, high).detach() * credit * logprobs, (ratio < low) | (ratio > high)
    gain = torch.minimum(ratio * credit, ratio.clamp(low, high) * credit)
    clipped = torch.where(credit > 0, ratio > high, (ratio < low) & (credit < 0))
    if loss.dual_clip is not None:
        least = loss.dual_clip * credit
        clipped = clipped | ((credit < 0) & (gain < least))
        gain = torch.where(credit < 0, torch.maximum(gain, least), gain)
    return gain, clipped


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Schulman's k3 estimator of KL(policy || reference), never negative.

    Its gradient is that of KL(policy || reference) only if it is multiplied by the ratio. By itself it is 1 minus
    exp(reference - log-prob), whose mean over samples of the policy is the gradient of KL(reference || policy).
    """
    gap = (reference - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return gap.exp() - gap - 1


def _exp(gap: Tensor) -> Tensor:
    return gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
