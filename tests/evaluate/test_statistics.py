"""Intervals, differences, fronts and areas: worked examples, then properties of any numbers."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.errors import ConfigError
from ramet.evaluate.statistics import (
    RESAMPLES,
    Difference,
    difference,
    front,
    hypervolume,
    hypervolume_estimate,
    items_needed,
    mean,
    rate,
    sign_flip_test,
)

SCORES = st.lists(st.sampled_from([0.0, 0.2, 0.5, 1.0]), min_size=1, max_size=40)
POINTS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10).map(lambda ten: ten / 10)), max_size=12)


# Rates.


@pytest.mark.parametrize(
    ("hits", "items", "low", "high"),
    # From Wilson's formula: (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n).
    [(0, 50, 0.0, 0.0713), (50, 50, 0.9287, 1.0), (10, 40, 0.1419, 0.4019), (1, 1, 0.2065, 1.0)],
)
def test_a_rate_has_wilson_s_interval(hits: int, items: int, low: float, high: float) -> None:
    estimate = rate(hits, items)
    assert estimate.value == hits / items
    assert (estimate.low, estimate.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


@pytest.mark.parametrize(("hits", "items"), [(0, 0), (3, 2), (-1, 4)])
def test_a_rate_of_nothing_is_refused(hits: int, items: int) -> None:
    with pytest.raises(ConfigError, match="hits out of items"):
        rate(hits, items)


@given(st.integers(1, 300), st.data())
def test_a_rate_s_interval_holds_the_rate_and_narrows_with_more_items(items: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, items))
    estimate, more = rate(hits, items), rate(4 * hits, 4 * items)
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    assert estimate.high - estimate.low > more.high - more.low


# Means.


def test_a_bootstrap_interval_has_the_width_of_the_resampled_mean() -> None:
    # Two items, 0 and 1: the mean of two draws is 0 or 1 in a quarter of cases each.
    assert mean([0.0, 1.0]) == mean([0.0, 1.0], seed=0)
    assert (mean([0.0, 1.0]).low, mean([0.0, 1.0]).high) == (0.0, 1.0)
    # Of 100 items half are 1: the mean of 100 draws has a standard deviation of 0.05.
    estimate = mean([0.0, 1.0] * 50)
    assert (estimate.low, estimate.high) == (pytest.approx(0.4, abs=0.011), pytest.approx(0.6, abs=0.011))


def test_the_same_seed_gives_the_same_digits_and_another_seed_others() -> None:
    values = [0.1 * number for number in range(30)]
    assert mean(values, seed=1) == mean(values, seed=1)
    assert mean(values, seed=1) != mean(values, seed=2)


def test_intervals_do_not_depend_on_the_order_of_the_items() -> None:
    """An evaluation lists its items as they were finished, a report by task: both must print the same interval."""
    won = {str(item): float(item % 4 == 0) for item in range(60)}
    lost = {str(item): float(item % 30 == 1) for item in range(60)}
    scores = [0.2 * (item % 6) for item in range(40)]
    costs, values = [[100.0 + 7 * item for item in range(40)], [400.0] * 40], [scores, scores[::-1]]
    turned = [[list(reversed(row)) for row in rows] for rows in (costs, values)]
    assert difference(dict(reversed(won.items())), lost) == difference(won, lost)
    assert mean(scores[::-1]) == mean(scores)
    assert hypervolume_estimate(*turned, reference=500) == hypervolume_estimate(costs, values, reference=500)


def test_many_items_are_resampled_in_blocks() -> None:
    many = [float(number % 2) for number in range(4 * 2_000_000 // RESAMPLES)]
    estimate = mean(many)
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * 0.5 / len(many) ** 0.5, rel=0.1)


@settings(max_examples=50)
@given(SCORES)
def test_an_interval_contains_its_mean_and_stays_within_the_values(values: list[float]) -> None:
    estimate = mean(values)
    assert estimate.low <= estimate.value <= estimate.high
    assert min(values) - 1e-9 <= estimate.low
    assert estimate.high <= max(values) + 1e-9


def test_a_mean_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        mean([])


# Differences.


def test_methods_are_compared_on_the_items_that_both_have() -> None:
    estimate = difference({"a": 1.0, "b": 1.0, "c": 0.0}, {"b": 0.0, "c": 0.0, "d": 1.0})
    assert estimate is not None
    assert (estimate.value, estimate.items, estimate.differing) == (0.5, 2, 1)
    assert difference({"a": 1.0}, {"b": 1.0}) is None


def test_a_clear_difference_is_significant() -> None:
    first = {str(item): 1.0 for item in range(40)}
    second = {str(item): float(item < 20) for item in range(40)}
    estimate = difference(first, second)
    assert estimate is not None
    assert (estimate.value, estimate.significant, estimate.needed) == (0.5, True, None)
    swapped = difference(second, first)
    assert swapped is not None
    assert (swapped.value, swapped.significant) == (-0.5, True)


def test_pairing_finds_a_difference_where_two_separate_intervals_overlap() -> None:
    # 20% against 30% of 100 items: Wilson's intervals overlap. But the ten items are all on one side.
    second = {str(item): float(item < 20) for item in range(100)}
    first = {str(item): float(item < 30) for item in range(100)}
    assert rate(30, 100).low < rate(20, 100).high
    estimate = difference(first, second)
    assert estimate is not None
    assert estimate.significant


def test_five_differing_items_are_never_significant() -> None:
    estimate = difference({str(item): 1.0 for item in range(5)}, {str(item): 0.0 for item in range(5)})
    assert estimate is not None
    assert (estimate.low, estimate.high, estimate.significant, estimate.needed) == (1.0, 1.0, False, 6)


@pytest.mark.parametrize(("won", "lost", "items"), [(8, 2, 50), (12, 4, 150), (18, 8, 90)])
def test_an_interval_that_ends_at_zero_is_not_significant(won: int, lost: int, items: int) -> None:
    """Also when rounding moves its end away from zero by 1e-18."""
    gaps = [1.0] * won + [-1.0] * lost + [0.0] * (items - won - lost)
    estimate = difference(
        {str(i): max(gap, 0.0) for i, gap in enumerate(gaps)}, {str(i): max(-gap, 0.0) for i, gap in enumerate(gaps)}
    )
    assert estimate is not None
    assert estimate.low == 0.0
    assert not estimate.significant


def won_and_lost(won: int, lost: int, items: int) -> Difference:
    """The difference where the first method is right and the second wrong on `won` items, and the other way round."""
    first = {str(item): float(item < won) for item in range(items)}
    second = {str(item): float(won <= item < won + lost) for item in range(items)}
    estimate = difference(first, second)
    assert estimate is not None
    return estimate


@pytest.mark.parametrize(
    ("won", "lost", "items", "p"),
    [(6, 1, 10, 16 / 128), (7, 1, 100, 18 / 256), (9, 2, 30, 134 / 2048), (10, 3, 20, 756 / 8192)],
)
def test_few_differing_items_need_more_than_an_interval_above_zero(won: int, lost: int, items: int, p: float) -> None:
    # 6 of 7 coins alike: 2 * (7 + 1) of 128. 7 of 8: 2 * (8 + 1) of 256. 9 of 11: 2 * (55 + 11 + 1) of 2048.
    estimate = won_and_lost(won, lost, items)
    assert estimate.low > 0
    assert estimate.p == pytest.approx(p)
    assert not estimate.significant
    assert estimate.needed is not None


@pytest.mark.parametrize("items", [8, 12, 20, 50, 100])
def test_two_equal_methods_are_told_apart_in_at_most_one_of_twenty_evaluations(items: int) -> None:
    for differing in range(1, min(items, 14) + 1):
        found = [won_and_lost(won, differing - won, items).significant for won in range(differing + 1)]
        chance = sum(math.comb(differing, won) for won, yes in enumerate(found) if yes) / 2**differing
        assert chance <= 0.05


def test_flipping_signs_of_scores_in_between_is_as_rare_as_counting_all_flips_says() -> None:
    gaps = [0.9, 0.5, 0.4, 0.7, 0.3, 0.8, -0.2, 0.1]
    sums = [
        sum(size * sign for size, sign in zip(gaps, signs, strict=True))
        for signs in itertools.product((1, -1), repeat=8)
    ]
    exact = sum(abs(total) >= sum(gaps) - 1e-9 for total in sums) / len(sums)
    assert sign_flip_test(gaps) == pytest.approx(exact, abs=0.005)
    assert sign_flip_test(gaps) == sign_flip_test([-gap for gap in gaps])
    assert sign_flip_test([]) == sign_flip_test([0.0, 0.0]) == sign_flip_test([1e-17] * 201) == 1.0


def test_the_chance_of_a_difference_of_many_items_is_that_of_a_normal_distribution() -> None:
    # 25 more of 495: 25 / sqrt(495) = 1.124 standard deviations. 29 more of 201: 29 / sqrt(201) = 2.045.
    estimate = won_and_lost(260, 235, 1000)
    assert estimate.p == pytest.approx(0.2612, abs=1e-4)
    assert not estimate.significant
    assert won_and_lost(115, 86, 1000).p == pytest.approx(0.0408, abs=1e-4)
    exact = sign_flip_test([1.0] * 115 + [-1.0] * 85)  # of 200: 30 / sqrt(200) = 2.121, 0.0339 without a correction
    assert exact == pytest.approx(0.0400, abs=1e-4)


def test_without_a_difference_no_number_of_items_is_given() -> None:
    estimate = difference({"a": 1.0, "b": 0.0}, {"a": 1.0, "b": 0.0})
    assert estimate is not None
    assert (estimate.value, estimate.significant, estimate.needed) == (0.0, False, None)


def test_the_number_of_items_needed_is_right() -> None:
    # Gaps 1, -1, 1, 1: mean 1/2, variance ((1/2)² * 3 + (3/2)²) / 3 = 1. (1.96 + 0.84)² * 1 / (1/4) = 31.4.
    assert items_needed([1.0, -1.0, 1.0, 1.0]) == 32
    assert items_needed([1.0, -1.0]) is None
    assert items_needed([1.0] * 3) == 6


@settings(max_examples=50)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=40))
def test_a_difference_that_is_not_significant_needs_more_items(pairs: list[tuple[bool, bool]]) -> None:
    first = {str(i): float(one) for i, (one, _) in enumerate(pairs)}
    second = {str(i): float(other) for i, (_, other) in enumerate(pairs)}
    estimate, swapped = difference(first, second), difference(second, first)
    assert estimate is not None
    assert swapped is not None
    assert estimate.low <= estimate.value <= estimate.high
    assert estimate.value == pytest.approx(-swapped.value)
    if estimate.significant:
        assert estimate.needed is None
    elif estimate.value:
        assert estimate.needed is not None
        assert estimate.needed > len(pairs)


# Fronts.


def test_the_front_holds_the_points_that_no_other_point_beats() -> None:
    points = [(100, 0.5), (200, 0.5), (150, 0.4), (300, 0.9), (300, 0.9), (400, 0.1), (100, 0.2)]
    assert front(points) == [0, 3, 4]
    assert front([]) == []


def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[0] and one[1] >= other[1] and one != other


@given(POINTS)
def test_the_front_is_undominated_and_everything_else_is_dominated(points: list[tuple[float, float]]) -> None:
    kept = front(points)
    assert not any(beats(one, points[i]) for i in kept for one in points)
    for i in set(range(len(points))) - set(kept):
        assert any(beats(points[j], points[i]) for j in kept)
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in itertools.pairwise(points[i] for i in kept))


# Areas.


def test_the_area_under_a_front_is_right() -> None:
    # Nothing below 100, a half up to 300, nine tenths up to 500; the point at 200 is under the front.
    assert hypervolume([(300, 0.9), (200, 0.3), (100, 0.5)], reference=500) == pytest.approx(0.5 * 200 + 0.9 * 200)
    assert hypervolume([(600, 1.0)], reference=500) == 0.0
    assert hypervolume([], reference=500) == 0.0


@given(POINTS, st.tuples(st.integers(0, 50), st.sampled_from([0.0, 0.3, 1.0])), st.integers(1, 60))
def test_another_point_never_makes_the_area_smaller(
    points: list[tuple[float, float]], more: tuple[float, float], reference: int
) -> None:
    before, after = (hypervolume(some, reference=reference) for some in (points, [*points, more]))
    assert after >= before - 1e-9
    assert before == pytest.approx(hypervolume([points[i] for i in front(points)], reference=reference))
    assert 0 <= after <= reference


def test_the_area_of_cells_is_computed_from_their_means() -> None:
    costs, values = [[90.0, 110.0], [300.0, 300.0]], [[0.0, 1.0], [1.0, 1.0]]
    estimate = hypervolume_estimate(costs, values, reference=500)
    assert estimate.value == pytest.approx(0.5 * 200 + 1.0 * 200)
    # Drawn twice, the first item makes 0 * 210 + 200, the second 1 * 190 + 200.
    assert (estimate.low, estimate.high) == (pytest.approx(200), pytest.approx(390))


def test_cells_of_unequal_length_have_no_area() -> None:
    with pytest.raises(ConfigError, match="same items"):
        hypervolume_estimate([[1.0]], [[1.0, 2.0]], reference=3)
