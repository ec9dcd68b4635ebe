"""Rows as a service of the Tinker API takes them: one loss by name, one advantage per token.

Weights, denominators and importance weights fold into the advantages, so that the gradient is that of the local
backend. `route` chooses the way:

- A loss that the service has goes there as it is (ppo, cispo). `plain` is cispo with both bounds at 1.
- Any other loss is computed here from the log-probs of a forward pass; what is sent is its slope, as the advantage of
  `importance_sampling` against these very log-probs, whose ratio is 1. This costs one more forward pass.

Servers reduce token losses in two ways. Where they are summed, advantages are sent as they are. Where they are averaged
(over the tokens of a row, then over all rows since the last step), they are multiplied by these counts first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Literal

import numpy as np

from ramet.engine.tinker.service import Datum, LossName
from ramet.errors import TrainError
from ramet.train.loss import CLIP_BOUNDS, Loss, Totals, share, token_advantages
from ramet.train.rows import Row
from ramet.train.tinker.terms import Numbers, correction, proximal, recorded

Reduction = Literal["sum", "row_mean"]
BATCH = 32  # rows that SkyRL on JAX computes at once, as `ramet backend serve` starts it
EMPTY = Datum(token_ids=(0,), targets=(0,), logprobs=(0.0,), advantages=(0.0,), weights=(0.0,))  # has no gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How a loss is computed on a service."""

    loss: LossName
    bounds: tuple[float, float] | None
    two_passes: bool  # a forward pass first: log-probs are needed before advantages are known


def route(loss: Loss, *, several_updates: bool, cispo_bounds: bool) -> Route:
    """The way of a loss. `several_updates`: rows have the log-probs of the start of the step (`proximal`)."""
    computed_here = Route(loss="importance_sampling", bounds=None, two_passes=True)
    if loss.kl or loss.dual_clip is not None or (loss.ceiling is not None and not several_updates):
        return computed_here
    if loss.kind == "ppo":
        return Route(loss="ppo", bounds=loss.bounds or CLIP_BOUNDS["ppo"], two_passes=False)
    if not cispo_bounds:
        return computed_here
    bounds = (1.0, 1.0) if loss.kind == "plain" else loss.bounds or CLIP_BOUNDS["cispo"]
    return Route(loss="cispo", bounds=bounds, two_passes=False)


def shares(rows: Sequence[Row], counted: Totals, loss: Loss) -> list[float]:
    """The weight of one token of each row in the step."""
    return [share(row, counted, loss) for row in rows]


def native_data(rows: Sequence[Row], counted: Totals, loss: Loss) -> list[Datum]:
    """Rows for a loss that the service has. `counted` are the totals of the step."""
    advantages = token_advantages(rows, loss, counted=counted)
    return [native_datum(row, advantage, loss) for row, advantage in zip(rows, advantages, strict=True)]


def native_datum(row: Row, advantage: float, loss: Loss) -> Datum:
    """A row for a loss that the service has. `advantage` is that of its tokens, with weight and share."""
    anchor = np.zeros(row.num_trained) if loss.kind == "plain" else _known_anchor(row)
    return shifted(row, anchor, advantage * correction(row, anchor, loss))


def sloped_datum(row: Row, share: float, now: Numbers, slope: Numbers) -> Datum:
    """A row whose loss was computed here: its gradient is that of -slope * ratio at ratio 1."""
    return shifted(row, now, -slope * share)


def forward_datum(row: Row) -> Datum:
    """A row to be scored."""
    nothing = np.zeros(row.num_trained)
    return shifted(row, nothing, nothing)


def shifted(row: Row, logprobs: Numbers, advantages: Numbers) -> Datum:
    """Position i predicts token i + 1. Tokens after the last trained one are not sent."""
    end = len(row.read)
    places = np.array(row.trained) - 1
    spread = np.zeros((2, end))
    spread[0, places], spread[1, places] = logprobs, advantages
    return Datum(
        token_ids=row.token_ids[:end],
        targets=row.token_ids[1 : end + 1],
        logprobs=tuple(spread[0].tolist()),
        advantages=tuple(spread[1].tolist()),
        weights=tuple(map(float, row.mask[1 : end + 1])),
    )


def reduced(data: Sequence[Datum], reduction: Reduction, *, num_rows: int) -> list[Datum]:
    """The data such that a service with this reduction sums their token losses. `num_rows`: all that the update sends.

    Where rows are averaged, empty ones are added at the end, as many as `num_sent` says.
    """
    if reduction == "sum":
        return [_with(datum, 1.0, weights=()) for datum in data]
    scaled = [_with(datum, sum(datum.weights) * num_rows, weights=datum.weights) for datum in data]
    return scaled + [EMPTY] * (num_sent(len(data), reduction) - len(data))


def num_sent(number: int, reduction: Reduction) -> int:
    """How many rows are sent for so many: a power of two beside whole batches of the server.

    The server that averages rows, SkyRL on JAX, compiles a program for every size of a batch.

    Example:
        num_sent(37, "row_mean") is 40: a batch of 32, and one of 8 for the other 5.
    """
    whole, rest = divmod(number, BATCH)
    return number if reduction == "sum" else whole * BATCH + (1 << (rest - 1).bit_length() if rest else 0)


def split_by_length(data: Sequence[Datum], reduction: Reduction) -> list[list[int]]:
    """Which data go into which call, as places in `data`. A server that sums takes everything at once.

    SkyRL on JAX pads all rows of a call to its longest one, rounded up (`padded_length`). So data are sorted by length
    and divided into whole batches; those that are padded to the same length share a call.
    """
    places = list(range(len(data)))
    if reduction == "sum":
        return [places]
    places.sort(key=lambda place: -len(data[place].token_ids))
    batches = [places[start : start + BATCH] for start in range(0, len(places), BATCH)]
    same_length = groupby(batches, key=lambda batch: padded_length(len(data[batch[0]].token_ids)))
    return [list(chain.from_iterable(group)) for _, group in same_length]


def padded_length(length: int) -> int:
    """What SkyRL on JAX pads a row to: the next number with at most two binary digits that are not zero in front.

    Example:
        33 to 48 tokens become 48, 49 to 64 become 64; 1,025 to 1,536 become 1,536.
    """
    if length <= 32:
        return 32
    unit = 1 << (length.bit_length() - 2)
    return -(-length // unit) * unit


def _with(datum: Datum, factor: float, *, weights: tuple[float, ...]) -> Datum:
    return Datum(
        token_ids=datum.token_ids,
        targets=datum.targets,
        logprobs=datum.logprobs,
        advantages=tuple(one * factor for one in datum.advantages),
        weights=weights,
    )


def trained_values(row: Row, values: Sequence[float]) -> Numbers:
    """Of what a service returned for a row, the numbers of its trained tokens."""
    if len(values) != len(row.read):
        raise TrainError(f"{row.name}: the server sent {len(values)} log-probs where {len(row.read)} were expected")
    return np.array(values, dtype=np.float64)[np.array(row.trained) - 1]


def _known_anchor(row: Row) -> Numbers:
    before = proximal(row)
    anchor = recorded(row) if before is None else before
    if anchor is None:
        raise TrainError(f"{row.name}: the engine recorded no log-probs, and this loss needs them")
    return anchor
