"""Token losses as numbers: their values, and their slopes with respect to the log-prob of the token.

The same losses as in `train/local/losses.py`, without torch. A server computes gradients; values are needed for the
metrics, and slopes for losses that a server does not have: with slope s, the loss -s * log-prob has the same gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from ramet.errors import TrainError
from ramet.train.loss import CLIP_BOUNDS, Loss
from ramet.train.rows import Row

Numbers = NDArray[np.float64]
MAX_LOG_RATIO = 20.0  # log-ratios are clamped to this, so that no exponential overflows


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """One number per trained token of a row, before its share of the step."""

    loss: Numbers
    slope: Numbers  # of the loss, with respect to the log-prob
    clipped: NDArray[np.bool_]
    kl: Numbers | None = None


def token_terms(row: Row, now: Numbers, loss: Loss, *, reference: Numbers | None = None) -> Terms:
    """The terms of a row whose trained tokens have the log-probs `now`, and `reference` under the reference model."""
    anchor = _anchor(row, now, loss)
    weight = correction(row, anchor, loss)
    log_ratio, inside = _clamped(now - anchor)
    ratio = np.exp(log_ratio)
    ratio_slope = inside * ratio
    gain, gain_slope, clipped = _gain(now, ratio, ratio_slope, row.advantage * row.weight, loss)
    if not loss.kl:
        return Terms(loss=-weight * gain, slope=-weight * gain_slope, clipped=clipped)
    if reference is None:
        raise TrainError("loss.kl needs the log-probs of a reference model")
    kl, kl_slope = _kl(now, reference)
    if loss.kl_gradient == "weighted":
        kl, kl_slope = weight * ratio * kl, weight * (ratio_slope * kl + ratio * kl_slope)
    return Terms(
        loss=loss.kl * kl - weight * gain, slope=loss.kl * kl_slope - weight * gain_slope, clipped=clipped, kl=kl
    )


def recorded(row: Row) -> Numbers | None:
    """The log-probs of the policy that sampled the trained tokens."""
    return None if row.logprobs is None else _trained(row.logprobs, row)


def proximal(row: Row) -> Numbers | None:
    """The log-probs of the weights before the first of several updates."""
    return None if row.proximal is None else _trained(row.proximal, row)


def correction(row: Row, anchor: Numbers, loss: Loss) -> Numbers:
    """Truncated importance weight: the policy at the start of the update over the policy that sampled."""
    behaviour = recorded(row)
    if loss.ceiling is None or behaviour is None:
        return np.ones_like(anchor)
    return np.minimum(np.exp(_clamped(anchor - behaviour)[0]), loss.ceiling)


def _trained(values: Sequence[float], row: Row) -> Numbers:
    return np.array(list(compress(values, row.mask)), dtype=np.float64)


def _anchor(row: Row, now: Numbers, loss: Loss) -> Numbers:
    """Log-probs of the policy in the denominator of the ratio."""
    behaviour, before = recorded(row), proximal(row)
    if before is not None:
        return before
    if loss.kind == "plain" or loss.ceiling is not None:
        return now
    if behaviour is None:
        raise TrainError(f"{row.name}: the engine recorded no log-probs, and this loss needs them")
    return behaviour


def _gain(
    now: Numbers, ratio: Numbers, ratio_slope: Numbers, credit: float, loss: Loss
) -> tuple[Numbers, Numbers, NDArray[np.bool_]]:
    """What the loss is the negative of, its slope, and where clipping changed it."""
    low, high = loss.bounds or CLIP_BOUNDS[loss.kind]
    clamped = np.clip(ratio, low, high)
    if loss.kind == "plain":
        return credit * now, np.full_like(now, credit), np.zeros(now.shape, dtype=np.bool_)
    if loss.kind == "cispo":
        return clamped * credit * now, clamped * credit, (ratio < low) | (ratio > high)
    clipped = ratio > high if credit > 0 else (ratio < low) & (credit < 0)
    gain = np.minimum(ratio * credit, clamped * credit)
    slope = np.where(clipped, 0.0, ratio_slope * credit)
    if loss.dual_clip is not None and credit < 0:
        beyond = gain < loss.dual_clip * credit
        gain, slope = np.maximum(gain, loss.dual_clip * credit), np.where(beyond, 0.0, slope)
        clipped = clipped | beyond
    return gain, slope, clipped


def _kl(now: Numbers, reference: Numbers) -> tuple[Numbers, Numbers]:
    """Schulman's k3 estimator and its slope."""
    gap, inside = _clamped(reference - now)
    return np.exp(gap) - gap - 1, inside * (1 - np.exp(gap))


def _clamped(gap: Numbers) -> tuple[Numbers, Numbers]:
    """A log-ratio within its limits, and the slope of that: 1, or 0 beyond the limits, as torch has it."""
    return np.clip(gap, -MAX_LOG_RATIO, MAX_LOG_RATIO), np.where(np.abs(gap) <= MAX_LOG_RATIO, 1.0, 0.0)
