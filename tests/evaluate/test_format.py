"""Numbers and verdicts as text."""

from __future__ import annotations

import pytest

from ramet.evaluate.format import budget_label, hundredths, interval, method_label, percent, points, share, verdict
from ramet.evaluate.statistics import Difference, Estimate


def test_a_share_has_no_space_before_the_percent_sign() -> None:
    assert percent(Estimate(0.5, 0.25, 0.75)) == "50% [25, 75]"
    assert share(0.123) == "12%"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123, "12"), (0.004, "0.4"), (0.0004, "0.04"), (0.996, "99.6"), (0.0, "0"), (1e-13, "0"), (1.0, "100")],
)
def test_shares_close_to_an_end_have_decimals(value: float, text: str) -> None:
    assert hundredths(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.985, "99"), (197 / 200, "99"), (0.984, "98"), (0.125, "13"), (0.145, "15"), (-0.125, "-13"), (0.005, "0.5")],
)
def test_a_half_is_rounded_up(value: float, text: str) -> None:
    assert hundredths(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.995, "99.5"), (0.9995, "99.95"), (0.99999, "99.99"), (1e-6, "0.01"), (-0.00001, "-0.01"), (0.9949, "99.5")],
)
def test_less_than_all_is_never_100_and_more_than_none_never_0(value: float, text: str) -> None:
    assert hundredths(value) == text


def test_the_ends_of_an_interval_are_whole_numbers() -> None:
    assert percent(Estimate(0.985, 0.955, 0.996)) == "99% [96, 100]"
    assert percent(Estimate(0.995, 0.9745, 1.0)) == "99.5% [97, 100]"


def test_points_have_signs() -> None:
    assert points(Difference(0.05, -0.02, 0.11, 200, 40, 640)) == "+5 [-2, +11]"
    assert points(Difference(0.0, 0.0, 0.0, 20, 0, None)) == "0 [0, 0]"
    assert interval(-0.004, 0.004) == "[-0.4, +0.4]"


@pytest.mark.parametrize(
    ("difference", "text"),
    [
        (Difference(0.2, 0.1, 0.3, 90, 30, None), "better"),
        (Difference(-0.2, -0.3, -0.1, 90, 30, None), "worse"),
        (Difference(0.1, -0.1, 0.3, 20, 8, 1234), "cannot tell: about 1,234 items needed"),
        (Difference(0.0, -0.1, 0.1, 20, 8, None), "cannot tell: no difference on average"),
        (Difference(0.06, 0.01, 0.11, 100, 8, 140, 0.07), "cannot tell (p = 0.07): about 140 items needed"),
        (Difference(0.0, 0.0, 0.0, 20, 0, None), "no item differs"),
        (Difference(0.1, 0.05, 0.2, 50, 5, 120), "only 5 items differ: about 120 items needed"),
        (Difference(0.05, 0.0, 0.15, 20, 1, 157), "only 1 item differs: about 157 items needed"),
        (Difference(0.0, -0.1, 0.1, 20, 2, None), "only 2 items differ"),
    ],
)
def test_a_comparison_has_a_verdict(difference: Difference, text: str) -> None:
    assert verdict(difference) == text


def test_labels_mark_oracles_and_the_tasks_own_budget() -> None:
    assert (method_label("best@4"), method_label("vote@4")) == ("best@4 (oracle)", "vote@4")
    assert (budget_label(None), budget_label(2000)) == ("task's own", "2,000")
