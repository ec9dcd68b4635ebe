# pyright: standard
"""From logits to tokens: the same request draws the same numbers, whoever is in the batch beside it.

One uniform number per token comes from the request's seed and the token's place, and is looked up in the cumulative
distribution, so one seed gives one text on every device, as far as its logits agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

BLOCK = 256  # entries of the vocabulary that are summed together

ODD = tuple(np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
SHIFTS = tuple(np.uint64(number) for number in (30, 27, 31))


def uniform(seeds: Sequence[int], places: Sequence[int]) -> npt.NDArray[np.float32]:
    """Numbers in [0, 1), one for each seed and place. The mixing is SplitMix64's, and its 24 bits are exact in float32.

    Example:
        uniform([7, 7], [0, 1]).tolist()  # [0.7215081453323364, 0.6497042775154114]
    """
    wide = np.fromiter((seed & 0xFFFFFFFFFFFFFFFF for seed in seeds), dtype=np.uint64, count=len(seeds))
    mixed = _mix(_mix(wide) + ODD[0] * np.asarray(places, dtype=np.uint64))
    return ((mixed >> np.uint64(40)).astype(np.float64) / 2**24).astype(np.float32)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = x + ODD[0]
    x = (x ^ (x >> SHIFTS[0])) * ODD[1]
    x = (x ^ (x >> SHIFTS[1])) * ODD[2]
    return x ^ (x >> SHIFTS[2])


@dataclass(slots=True)
class Draw:
    """How each row of logits is to be drawn from."""

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    uniform: Tensor
    filtered: bool  # whether any row has a top_p or top_k at all


def choose(logits: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
    """Tokens and their log-probs in the distribution they were drawn from."""
    logits = logits.float()
    greedy = draw.temperature == 0
    scaled = logits / torch.where(greedy, 1.0, draw.temperature).unsqueeze(1)
    if draw.filtered:
        scaled = _filter(scaled, draw)
    norm = scaled.logsumexp(dim=1, keepdim=True)
    tokens = _look_up((scaled - norm).exp(), draw.uniform)
    if bool(greedy.any()):
        tokens = torch.where(greedy, logits.argmax(dim=1), tokens)
    return tokens, (scaled.gather(1, tokens.unsqueeze(1)) - norm).squeeze(1)


def _look_up(probs: Tensor, uniform: Tensor) -> Tensor:
    """The first entry whose cumulative probability exceeds the number: by blocks, then inside one."""
    rows, size = probs.shape
    padded = torch.nn.functional.pad(probs, (0, -size % BLOCK)).view(rows, -1, BLOCK)
    sums = padded.sum(dim=2)
    ends = sums.cumsum(dim=1)
    wanted = (uniform * ends[:, -1]).unsqueeze(1)
    block = (ends <= wanted).sum(dim=1, keepdim=True).clamp(max=sums.shape[1] - 1)
    inside = padded.gather(1, block.unsqueeze(2).expand(-1, -1, BLOCK)).squeeze(1)
    rest = wanted - (ends - sums).gather(1, block)
    place = (inside.cumsum(dim=1) <= rest).sum(dim=1, keepdim=True).clamp(max=BLOCK - 1)
    # Rounding may point past the last entry that can be drawn: then take the likeliest of the block.
    place = torch.where(inside.gather(1, place) > 0, place, inside.argmax(dim=1, keepdim=True))
    return (block * BLOCK + place).squeeze(1)


def _filter(scaled: Tensor, draw: Draw) -> Tensor:
    """Only the likeliest: `top_k` of them, and of those as many as make up `top_p`. Equals stay together."""
    ordered, _ = scaled.sort(dim=1, descending=True)
    last = torch.where(draw.top_k > 0, draw.top_k, scaled.shape[1]).clamp(max=scaled.shape[1]).long() - 1
    ordered = ordered.masked_fill(ordered < ordered.gather(1, last.unsqueeze(1)), -torch.inf)
    probs = ordered.softmax(dim=1)
    top_p = draw.top_p.unsqueeze(1)
    needed = ((probs.cumsum(dim=1) - probs < top_p) | (top_p >= 1)) & (ordered > -torch.inf)
    needed[:, 0] = True
    least = ordered.masked_fill(~needed, torch.inf).amin(dim=1, keepdim=True)
    return scaled.masked_fill(scaled < least, -torch.inf)
