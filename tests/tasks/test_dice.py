"""Random choices: the same everywhere, uniform, and within their limits."""

from __future__ import annotations

import hashlib
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.tasks.dice import Dice, in_eval, seed_of

SEEDS = st.lists(st.one_of(st.integers(), st.text("abc/", max_size=5)), max_size=4)


def test_the_seed_is_its_words_joined_by_slashes() -> None:
    dice, plain = Dice("arithmetic", 0, "train", 17), random.Random("arithmetic/0/train/17")
    assert [dice.below(1000) for _ in range(50)] == [int(plain.random() * 1000) for _ in range(50)]


def test_these_choices_are_the_same_on_every_machine() -> None:
    dice = Dice("pinned", 1)
    made = [
        [dice.below(1000) for _ in range(5)],
        [dice.between(-3, 3) for _ in range(5)],
        [dice.pick("abcdef") for _ in range(5)],
        [dice.weighted("xyz", [1, 2, 7]) for _ in range(5)],
        dice.shuffled(range(8)),
        dice.sample(range(100), 4),
        [dice.chance(0.5) for _ in range(5)],
    ]
    assert hashlib.sha256(repr(made).encode()).hexdigest()[:16] == "2a0efd2c7ff4de1d"


def test_another_seed_gives_other_choices() -> None:
    drawn = {tuple(Dice("a", seed).below(10**9) for _ in range(3)) for seed in range(200)}
    assert len(drawn) == 200


@given(SEEDS, st.integers(1, 2**53))
def test_below_is_below_its_limit(seed: list[object], limit: int) -> None:
    dice = Dice(*seed)
    assert all(0 <= dice.below(limit) < limit for _ in range(20))


@given(SEEDS, st.integers(-(10**6), 10**6), st.integers(0, 10**6))
def test_between_includes_both_ends_and_nothing_beyond(seed: list[object], low: int, width: int) -> None:
    dice = Dice(*seed)
    assert all(low <= dice.between(low, low + width) <= low + width for _ in range(20))


def test_between_reaches_both_ends() -> None:
    dice = Dice("ends")
    assert {dice.between(4, 6) for _ in range(100)} == {4, 5, 6}


def test_below_is_uniform() -> None:
    dice = Dice("even")
    counts = Counter(dice.below(10) for _ in range(20_000))
    assert set(counts) == set(range(10))
    assert all(1800 < count < 2200 for count in counts.values())


@pytest.mark.parametrize(("probability", "low", "high"), [(0.0, 0, 0), (0.3, 5700, 6300), (1.0, 20_000, 20_000)])
def test_chance_is_true_with_its_probability(probability: float, low: int, high: int) -> None:
    dice = Dice("chance")
    assert low <= sum(dice.chance(probability) for _ in range(20_000)) <= high


def test_choices_follow_their_weights() -> None:
    dice = Dice("weights")
    counts = Counter(dice.weighted("+-*", (4.0, 3.0, 6.0)) for _ in range(13_000))
    assert abs(counts["+"] - 4000) < 250
    assert abs(counts["-"] - 3000) < 250
    assert abs(counts["*"] - 6000) < 250


def test_a_choice_of_weight_zero_is_never_taken() -> None:
    dice = Dice("none")
    assert {dice.weighted("abc", (1.0, 0.0, 1.0)) for _ in range(2000)} == {"a", "c"}


@given(SEEDS, st.lists(st.integers(), max_size=30))
def test_a_shuffle_keeps_every_item_and_does_not_change_the_original(seed: list[object], items: list[int]) -> None:
    before = list(items)
    assert sorted(Dice(*seed).shuffled(items)) == sorted(items)
    assert items == before


def test_all_orders_are_equally_likely() -> None:
    dice = Dice("orders")
    counts = Counter(tuple(dice.shuffled("abc")) for _ in range(6000))
    assert len(counts) == 6
    assert all(850 < count < 1150 for count in counts.values())


@given(SEEDS, st.integers(0, 20))
def test_a_sample_has_different_items(seed: list[object], number: int) -> None:
    drawn = Dice(*seed).sample(range(20), number)
    assert len(drawn) == len(set(drawn)) == number


def test_the_hash_of_a_text_decides_its_split() -> None:
    for text in ("3+4", "7*8-2", "été"):
        first = hashlib.sha256(text.encode()).hexdigest()[:8]
        assert in_eval(text) == (int(first, 16) % 10 == 0)
        assert in_eval(text, one_in=1)


@pytest.mark.parametrize("one_in", [2, 4, 10])
def test_one_in_so_many_is_in_evaluation(one_in: int) -> None:
    share = sum(in_eval(f"text {i}", one_in=one_in) for i in range(20_000)) / 20_000
    assert abs(share - 1 / one_in) < 0.012


@pytest.mark.parametrize(
    ("place", "seed"),
    [((0, "sample", 3, 1, 4), 8166594275714710), ((0, "vote@8", 1000, "craft:hard/17", 3), 34063776633778292)],
)
def test_the_seed_of_a_place_is_the_same_on_every_machine(place: tuple[object, ...], seed: int) -> None:
    assert seed_of(*place) == seed


def test_different_places_have_different_seeds() -> None:
    seeds = {seed_of(run, step, member) for run in range(5) for step in range(20) for member in range(20)}
    assert len(seeds) == 2000
    assert max(seeds) < 2**56
