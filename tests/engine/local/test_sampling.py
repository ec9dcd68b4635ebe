"""Sampling tokens from logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.engine.local.sampling import Draw, choose, keys, noise


def draw(rows: int, *, heat: float = 1.0, top_p: float = 1.0, top_k: int = 0, place: int = 0) -> Draw:
    """The same settings for every row; the seed is the row number."""
    return Draw(
        temperature=torch.full((rows,), heat),
        top_p=torch.full((rows,), top_p),
        top_k=torch.full((rows,), top_k),
        keys=keys(range(rows), [place] * rows),
        filtered=top_p < 1 or top_k > 0,
    )


PROBS = [0.1, 0.4, 0.2, 0.3]


def test_the_highest_sum_of_logit_and_noise_is_drawn() -> None:
    logits = torch.tensor([PROBS]).log().expand(50, -1)
    tokens, logprobs = choose(logits, draw(50))
    entries = np.arange(4, dtype=np.uint32)[None]
    sums = logits + torch.from_numpy(noise(keys(range(50), [0] * 50), entries))
    assert tokens.tolist() == sums.argmax(1).tolist()
    assert logprobs.tolist() == pytest.approx([math.log(PROBS[token]) for token in tokens], abs=1e-6)


@pytest.mark.parametrize(
    ("top_p", "top_k", "kept"),
    [(1.0, 0, {0, 1, 2, 3}), (1.0, 1, {1}), (1.0, 2, {1, 3}), (0.4, 0, {1}), (0.41, 0, {1, 3}), (0.7, 0, {1, 3}),
     (0.71, 0, {1, 2, 3}), (0.5, 2, {1}), (0.6, 2, {1, 3}), (1.0, 9, {0, 1, 2, 3})],
)  # fmt: skip
def test_only_the_most_likely_are_drawn_and_their_probabilities_sum_to_one(
    top_p: float, top_k: int, kept: set[int]
) -> None:
    rows = 200
    tokens, logprobs = choose(torch.tensor([PROBS]).log().expand(rows, -1), draw(rows, top_p=top_p, top_k=top_k))
    assert set(tokens.tolist()) == kept
    whole = sum(PROBS[token] for token in kept)
    for token, logprob in zip(tokens.tolist(), logprobs.tolist(), strict=True):
        assert logprob == pytest.approx(math.log(PROBS[token] / whole), abs=1e-5)


def test_temperature_zero_is_greedy_and_reports_the_unscaled_log_prob() -> None:
    tokens, logprobs = choose(torch.tensor([PROBS]).log() * 1.0, draw(1, heat=0.0))
    assert tokens.tolist() == [1]
    assert logprobs.item() == pytest.approx(math.log(0.4), abs=1e-6)


@pytest.mark.parametrize("rows", [4_000, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("heat", [0.5, 1.0])
def test_a_large_vocabulary_is_drawn_with_the_right_frequencies(heat: float, rows: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 3_001) * 2  # three blocks, the last not full
    tokens, _ = choose(logits.expand(rows, -1), draw(rows, heat=heat))
    probs = (logits / heat).softmax(-1)[0]
    often = tokens.bincount(minlength=3_001) / rows
    top = probs.topk(30).indices
    # five standard deviations of each frequency; the rest together
    assert bool(((often - probs)[top].abs() < 5 * (probs[top] / rows).sqrt()).all())
    assert float(often[top].sum()) == pytest.approx(float(probs[top].sum()), abs=5 * math.sqrt(0.25 / rows))


def test_logits_that_differ_in_the_last_bits_rarely_change_a_draw() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4_000, 3_001) * 3
    near = logits * (1 + 1e-6 * torch.randn_like(logits))
    first, second = (choose(rows, draw(4_000))[0] for rows in (logits, near))
    assert int((first != second).sum()) <= 2


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    heat=st.floats(0.05, 5),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 400),
    place=st.integers(0, 10_000),
)
def test_every_drawn_token_has_a_finite_log_prob_and_is_in_the_top_k(
    seed: int, heat: float, top_p: float, top_k: int, place: int
) -> None:
    logits = torch.randn(1, 300, generator=torch.Generator().manual_seed(seed)) * 5
    tokens, logprobs = choose(logits, draw(1, heat=heat, top_p=top_p, top_k=top_k, place=place))
    assert math.isfinite(logprobs.item())
    assert logprobs.item() <= 1e-6
    if top_k:
        assert logits[0, tokens.item()] >= logits[0].sort(descending=True).values[min(top_k, 300) - 1]


def test_noise_depends_only_on_seed_position_and_entry() -> None:
    entries = np.arange(9, dtype=np.uint32)[None]
    together = noise(keys([7, 8, 7], [0, 0, 1]), entries)
    for row, (seed, place) in enumerate([(7, 0), (8, 0), (7, 1)]):
        assert together[row].tolist() == noise(keys([seed], [place]), entries)[0].tolist()
    assert len(set(together.flatten().tolist())) == 27
    assert keys([-1, 2**70 + 3], [0, 5]).tolist() == keys([2**64 - 1, 3], [0, 5]).tolist()


@pytest.mark.parametrize("along", ["seeds", "places", "entries"])
def test_noise_is_uniform_over_seeds_positions_and_entries(along: str) -> None:
    count = 50_000
    seeds, places, entries = range(1), range(1), np.array([[5]], dtype=np.uint32)
    if along == "seeds":
        seeds, places = range(count), [3] * count
    elif along == "places":
        seeds, places = [3] * count, range(count)
    else:
        entries = np.arange(count, dtype=np.uint32)[None]
    values = torch.from_numpy(noise(keys(seeds, places), entries)).flatten().double()
    even = (-(-values).exp()).exp()  # the inverse of the Gumbel transform
    shares = torch.histc(even, bins=20, min=0, max=1) / count
    assert float((shares - 0.05).abs().max()) < 5 * math.sqrt(0.05 / count)
    neighbours = torch.corrcoef(torch.stack([even[:-1], even[1:]]))[0, 1]
    assert abs(float(neighbours)) < 5 / math.sqrt(count)
