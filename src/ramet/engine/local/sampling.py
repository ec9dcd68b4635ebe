# pyright: standard
"""Sample tokens from logits. A request draws the same tokens whatever else is in its batch.

This is the Gumbel-max trick: every entry of the vocabulary gets noise computed from the request's seed, the token's
position and the entry; the entry with the highest sum of logit and noise is a fair draw. Logits that differ in the last
bits, as between batches or devices, change a draw only when two sums are equally close. To compute less noise, the draw
has two stages: a block of the vocabulary by its probability, then an entry inside the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

BLOCK = 1024  # entries of the vocabulary per block
BLOCKS_AT = 1 << 31  # the noise index of the first block, beyond those of entries

UInt32s = npt.NDArray[np.uint32]
UInt64s = npt.NDArray[np.uint64]
SPLITMIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
MIX = (0x7FEB352D, 0x846CA68B)


def keys(seeds: Sequence[int] | UInt64s, places: Sequence[int] | UInt64s) -> UInt32s:
    """Two noise keys for each seed and position (SplitMix64).

    Example:
        keys([7, 7], [0, 1]).tolist()  # [[3098854039, 2125188677], [2790458877, 864995582]]
    """
    if isinstance(seeds, np.ndarray):
        wide = seeds
    else:
        wide = np.fromiter((seed & 0xFFFFFFFFFFFFFFFF for seed in seeds), dtype=np.uint64, count=len(seeds))
    step, first, second = (np.uint64(number) for number in SPLITMIX)

    def mixed(x: UInt64s) -> UInt64s:
        x = x + step
        x = (x ^ (x >> np.uint64(30))) * first
        x = (x ^ (x >> np.uint64(27))) * second
        return x ^ (x >> np.uint64(31))

    mixed_keys = mixed(mixed(wide) + step * np.asarray(places, dtype=np.uint64))
    return np.stack([mixed_keys >> np.uint64(32), mixed_keys & np.uint64(0xFFFFFFFF)], axis=1).astype(np.uint32)


def noise(key: UInt32s, entries: UInt32s) -> npt.NDArray[np.float32]:
    """Gumbel noise for rows of entries, one key per row. The hash is Wellons' lowbias32."""
    x = entries * np.uint32(0x9E3779B9) ^ key[:, :1]
    x = _mixed(_mixed(x) ^ key[:, 1:])
    even = ((x >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) / np.float32(2**23)  # neither 0 nor 1
    return -np.log(-np.log(even))


def _mixed(x: UInt32s) -> UInt32s:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(MIX[0])
    x = (x ^ (x >> np.uint32(15))) * np.uint32(MIX[1])
    return x ^ (x >> np.uint32(16))


@dataclass(slots=True)
class Draw:
    """How to sample from each row of logits."""

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    keys: UInt32s
    filtered: bool  # whether any row uses top_p or top_k


def choose(logits: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
    """Sampled tokens, and their log-probs in the distribution they were sampled from."""
    logits = logits.float()
    greedy = draw.temperature == 0
    scaled = logits / torch.where(greedy, 1.0, draw.temperature).unsqueeze(1)
    if draw.filtered:
        scaled = _filter(scaled, draw)
    norm = scaled.logsumexp(dim=1, keepdim=True)
    tokens = logits.argmax(dim=1) if bool(greedy.all()) else _draw(scaled - norm, draw.keys)
    if bool(greedy.any()):
        tokens = torch.where(greedy, logits.argmax(dim=1), tokens)
    return tokens, (scaled.gather(1, tokens.unsqueeze(1)) - norm).squeeze(1)


def _draw(logprobs: Tensor, key: UInt32s) -> Tensor:
    """Draw a block by its probability, then an entry inside it."""
    rows, size = logprobs.shape
    if size <= BLOCK:
        return (logprobs + torch.from_numpy(noise(key, np.arange(size, dtype=np.uint32)[None]))).argmax(dim=1)
    blocks = torch.nn.functional.pad(logprobs, (0, -size % BLOCK), value=-torch.inf).view(rows, -1, BLOCK)
    numbers = np.arange(blocks.shape[1], dtype=np.uint32)[None] + np.uint32(BLOCKS_AT)
    shares = blocks.exp().sum(dim=2).log()
    block = (shares + torch.from_numpy(noise(key, numbers))).argmax(dim=1, keepdim=True)
    inside = blocks.gather(1, block.unsqueeze(2).expand(-1, -1, BLOCK)).squeeze(1)
    entries = block * BLOCK + torch.arange(BLOCK)
    place = (inside + torch.from_numpy(noise(key, entries.numpy().astype(np.uint32)))).argmax(dim=1, keepdim=True)
    return (block * BLOCK + place).squeeze(1)


def _filter(scaled: Tensor, draw: Draw) -> Tensor:
    """Keep the `top_k` most likely entries, and of those the fewest that reach `top_p`. Ties are kept together."""
    ordered, _ = scaled.sort(dim=1, descending=True)
    last = torch.where(draw.top_k > 0, draw.top_k, scaled.shape[1]).clamp(max=scaled.shape[1]).long() - 1
    ordered = ordered.masked_fill(ordered < ordered.gather(1, last.unsqueeze(1)), -torch.inf)
    probs = ordered.softmax(dim=1)
    top_p = draw.top_p.unsqueeze(1)
    needed = ((probs.cumsum(dim=1) - probs < top_p) | (top_p >= 1)) & (ordered > -torch.inf)
    needed[:, 0] = True
    least = ordered.masked_fill(~needed, torch.inf).amin(dim=1, keepdim=True)
    return scaled.masked_fill(scaled < least, -torch.inf)
