"""What is minimised: one term per sampled token, and how the terms are added up.

Everything multiplies and nothing decides: credit comes in as advantage times weight, denominators are counted over the
whole optimiser step before its first micro-batch, so that neither the split nor the order of rows can change a result.
"""

# pyright: standard

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Literal

import torch
from torch import Tensor

from ramet.errors import ConfigError, TrainError
from ramet.train.rows import Row

Kind = Literal["ppo", "cispo", "plain"]
Aggregation = Literal["token", "node", "tree", "constant"]
BOUNDS: Mapping[Kind, tuple[float, float]] = {"ppo": (0.8, 1.2), "cispo": (0.0, 5.0), "plain": (0.0, float("inf"))}
FAR = 20.0  # log-ratios beyond this are cut off, so that no exponential overflows


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A loss, by its knobs.

    `ppo` stops pushing a token whose ratio has left `bounds`; `cispo` goes on pushing it with the ratio at the bound;
    `plain` has no ratio (with advantage 1 it is supervised learning). With `ceiling`, tokens of older policies get an
    importance weight of at most that, and only what changed since the update began counts as ratio.

    `aggregation` says what weighs the same: every `token`; every `node`, whatever it said; every `tree`, however many
    nodes it has; or a `constant` by which the plain sum is divided.
    """

    kind: Kind = "cispo"
    bounds: tuple[float, float] | None = None  # of the ratio; None: (0.8, 1.2) for ppo, (0, 5) for cispo
    dual_clip: float | None = None  # ppo: a token that earned a loss is pushed down at most this many times
    ceiling: float | None = None
    kl: float = 0.0  # towards a reference
    aggregation: Aggregation = "tree"
    divisor: float = 1.0  # of aggregation `constant`

    def __post_init__(self) -> None:
        if self.kind not in BOUNDS:
            raise ConfigError(f"loss is one of {', '.join(BOUNDS)}; got {self.kind!r}")
        if self.aggregation not in ("token", "node", "tree", "constant"):
            raise ConfigError(f"aggregation is token, node, tree or constant; got {self.aggregation!r}")
        if self.divisor <= 0:
            raise ConfigError(f"divisor is more than 0; got {self.divisor}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Denominators of one optimiser step. They count; weights never enter them."""

    tokens: int
    tokens_of: Mapping[tuple[str, int], int]  # by node
    nodes_of: Mapping[str, int]  # by tree


def totals(rows: Sequence[Row]) -> Totals:
    """Count everything that will be trained in this step. Rows without a trained token do not exist here."""
    tokens_of: Counter[tuple[str, int]] = Counter()
    for row in rows:
        if row.num_trained:
            tokens_of[row.tree_id, row.node] += row.num_trained
    nodes_of = Counter(tree_id for tree_id, _ in tokens_of)
    return Totals(tokens=tokens_of.total(), tokens_of=tokens_of, nodes_of=nodes_of)


def share(row: Row, totals: Totals, loss: Loss) -> float:
    """What one token of `row` weighs in the step. Shares of all tokens add up to 1, except for `constant`."""
    tokens = totals.tokens_of[row.tree_id, row.node]
    match loss.aggregation:
        case "token":
            return 1 / totals.tokens
        case "node":
            return 1 / (tokens * len(totals.tokens_of))
        case "tree":
            return 1 / (tokens * totals.nodes_of[row.tree_id] * len(totals.nodes_of))
        case "constant":
            return 1 / loss.divisor


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is known about each trained token, in the order of `Scores.logprobs`."""

    behaviour: Tensor | None  # log-prob when it was sampled; None: not recorded
    credit: Tensor  # advantage times weight
    share: Tensor


def terms(rows: Sequence[Row], totals: Totals, loss: Loss, *, like: Tensor) -> Terms:
    """Lay rows out token by token, each row's numbers on its own tokens, in the type and place of `like`."""
    counts = torch.tensor([row.num_trained for row in rows])

    def spread(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).repeat_interleave(counts).to(like)

    return Terms(
        behaviour=_behaviour(rows, loss, like=like),
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
    return torch.tensor(recorded, dtype=torch.float64).to(like)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """The loss of every token before it is weighed, and what happened to it."""

    loss: Tensor
    clipped: Tensor  # ratio out of bounds, where that made a difference
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

    `proximal` are log-probs of the policy with which this update began, for a second pass over the same rows;
    `reference` those of the model that KL pulls towards.
    """
    anchor = _anchor(logprobs, behaviour, loss, proximal)
    ratio = _exp(logprobs - anchor)
    correction = _correction(anchor, behaviour, loss)
    gain, clipped = _gain(logprobs, ratio, credit, loss)
    if not loss.kl:
        return Term(loss=-correction * gain, clipped=clipped, kl=None)
    if reference is None:
        raise ConfigError("KL needs the log-probs of a reference")
    kl = correction * ratio * k3(logprobs, reference)
    return Term(loss=loss.kl * kl - correction * gain, clipped=clipped, kl=kl.detach())


def _anchor(logprobs: Tensor, behaviour: Tensor | None, loss: Loss, proximal: Tensor | None) -> Tensor:
    """The policy that ratios are taken against."""
    if proximal is not None:
        return proximal
    if behaviour is None or loss.kind == "plain" or loss.ceiling is not None:
        return logprobs.detach()
    return behaviour


def _correction(anchor: Tensor, behaviour: Tensor | None, loss: Loss) -> Tensor:
    """How much likelier the token was when the update began than when it was sampled, truncated."""
    if loss.ceiling is None or behaviour is None:
        return torch.ones_like(anchor)
    return _exp(anchor - behaviour).clamp(max=loss.ceiling).detach()


def _gain(logprobs: Tensor, ratio: Tensor, credit: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    low, high = loss.bounds or BOUNDS[loss.kind]
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
    """The third of Schulman's estimators of KL, never negative. Its gradient is unbiased only times the ratio."""
    gap = (reference - logprobs).clamp(-FAR, FAR)
    return gap.exp() - gap - 1


def _exp(gap: Tensor) -> Tensor:
    return gap.clamp(-FAR, FAR).exp()
