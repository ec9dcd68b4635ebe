"""Limits of training trees: set, drawn between two numbers, and with prices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ramet.budget import Budget, Prices
from ramet.errors import ConfigError
from ramet.train.bounds import draw_budget, parse_bounds


def test_limits_are_laid_over_the_task_s_own() -> None:
    own = Budget(tokens=700, nodes=5)
    assert draw_budget(own, parse_bounds({"depth": 1}), seed=3) == replace(own, depth=1)
    assert draw_budget(own, {}, seed=3) == own


def test_a_limit_with_two_bounds_is_drawn_between_them_from_the_seed() -> None:
    bounds = parse_bounds({"tokens": [200, 900], "nodes": [3, 3]})
    drawn = [draw_budget(Budget(), bounds, seed=seed) for seed in range(200)]
    assert drawn == [draw_budget(Budget(), bounds, seed=seed) for seed in range(200)]
    assert {budget.nodes for budget in drawn} == {3}
    assert 200 <= min(budget.tokens for budget in drawn) < 250
    assert 850 < max(budget.tokens for budget in drawn) <= 900


def test_money_is_a_limit_of_training_trees_where_there_are_prices() -> None:
    bounds = parse_bounds({"money": 0.01, "prices": {"prompt": 0.1, "generated": 0.4}, "tokens": [200, 900]})
    budget = draw_budget(Budget(), bounds, seed=0)
    assert (budget.money, budget.prices) == (0.01, Prices(prompt=0.1, generated=0.4))
    with pytest.raises(ConfigError, match=r"budget\.money needs prices"):
        parse_bounds({"money": 0.01})


@pytest.mark.parametrize("limit", [[9, 3], [1, 2, 3], [1.5, 2], ["a", "b"], [True, 3]])
def test_two_bounds_are_whole_numbers_the_lower_one_first(limit: list[object]) -> None:
    with pytest.raises(ConfigError, match=r"^budget\.nodes"):
        parse_bounds({"nodes": limit})
