"""From logits to tokens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.engine.local.sampling import Draw, choose, uniform


def draw(
    rows: int, *, heat: float = 1.0, top_p: float = 1.0, top_k: int = 0, numbers: list[float] | None = None
) -> Draw:
    return Draw(
        temperature=torch.full((rows,), heat),
        top_p=torch.full((rows,), top_p),
        top_k=torch.full((rows,), top_k),
        uniform=torch.tensor(numbers if numbers is not None else [0.5] * rows),
        filtered=top_p < 1 or top_k > 0,
    )


PROBS = [0.1, 0.4, 0.2, 0.3]


@pytest.mark.parametrize(
    ("number", "token"), [(0.0, 0), (0.09, 0), (0.11, 1), (0.49, 1), (0.51, 2), (0.69, 2), (0.71, 3), (0.999, 3)]
)
def test_a_number_is_looked_up_in_the_cumulative_distribution(number: float, token: int) -> None:
    tokens, logprobs = choose(torch.tensor([PROBS]).log(), draw(1, numbers=[number]))
    assert tokens.tolist() == [token]
    assert logprobs.item() == pytest.approx(math.log(PROBS[token]), abs=1e-6)


@pytest.mark.parametrize(
    ("top_p", "top_k", "kept"),
    [(1.0, 0, {0, 1, 2, 3}), (1.0, 1, {1}), (1.0, 2, {1, 3}), (0.4, 0, {1}), (0.41, 0, {1, 3}), (0.7, 0, {1, 3}),
     (0.71, 0, {1, 2, 3}), (0.5, 2, {1}), (0.6, 2, {1, 3}), (1.0, 9, {0, 1, 2, 3})],
)  # fmt: skip
def test_only_the_likeliest_are_drawn_and_their_shares_add_up_to_one(top_p: float, top_k: int, kept: set[int]) -> None:
    rows = 200
    logits = torch.tensor([PROBS]).log().expand(rows, -1)
    numbers = [(row + 0.5) / rows for row in range(rows)]
    tokens, logprobs = choose(logits, draw(rows, top_p=top_p, top_k=top_k, numbers=numbers))
    assert set(tokens.tolist()) == kept
    whole = sum(PROBS[token] for token in kept)
    for token, logprob in zip(tokens.tolist(), logprobs.tolist(), strict=True):
        assert logprob == pytest.approx(math.log(PROBS[token] / whole), abs=1e-5)


def test_temperature_zero_takes_the_likeliest_and_reports_its_plain_log_prob() -> None:
    tokens, logprobs = choose(torch.tensor([PROBS]).log() * 1.0, draw(1, heat=0.0, numbers=[0.99]))
    assert tokens.tolist() == [1]
    assert logprobs.item() == pytest.approx(math.log(0.4), abs=1e-6)


def test_a_large_vocabulary_is_drawn_from_in_the_right_shares() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 3_001) * 3
    rows = 20_000
    numbers = uniform(range(rows), [0] * rows).tolist()
    tokens, _ = choose(logits.expand(rows, -1), draw(rows, numbers=numbers))
    probs = logits.softmax(-1)[0]
    often = tokens.bincount(minlength=3_001) / rows
    top = probs.topk(20).indices
    # four standard deviations of a share p among 20,000 draws
    assert bool(((often - probs)[top].abs() < 4 * (probs[top] / rows).sqrt()).all())


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    heat=st.floats(0.05, 5),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 400),
    number=st.floats(0, 1, exclude_max=True, width=32),
)
def test_whatever_is_drawn_could_be_drawn(seed: int, heat: float, top_p: float, top_k: int, number: float) -> None:
    logits = torch.randn(1, 300, generator=torch.Generator().manual_seed(seed)) * 5
    tokens, logprobs = choose(logits, draw(1, heat=heat, top_p=top_p, top_k=top_k, numbers=[number]))
    assert math.isfinite(logprobs.item())
    assert logprobs.item() <= 1e-6
    if top_k:
        assert logits[0, tokens.item()] >= logits[0].sort(descending=True).values[min(top_k, 300) - 1]


def test_numbers_depend_on_seed_and_place_and_nothing_else() -> None:
    assert uniform([7, 8, 7], [0, 0, 1]).tolist() == [*uniform([7], [0]).tolist(), *uniform([8, 7], [0, 1]).tolist()]
    assert uniform([-1, 2**70 + 3], [0, 5]).tolist() == [*uniform([2**64 - 1], [0]), *uniform([2**70 % 2**64 + 3], [5])]


def test_numbers_are_even_over_seeds_and_over_places() -> None:
    for numbers in (uniform(range(50_000), [3] * 50_000), uniform([3] * 50_000, range(50_000))):
        shares = torch.histc(torch.from_numpy(numbers), bins=20, min=0, max=1) / 50_000
        assert float((shares - 0.05).abs().max()) < 4 * math.sqrt(0.05 / 50_000)
        assert numbers.min() >= 0
        assert numbers.max() < 1
