"""The ledger: hand-computed examples, and invariants under any sequence of holds and loans."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.budget import PICO, Budget, Ledger, Prices, by_size, shares
from ramet.errors import BudgetExhausted, ConfigError


def test_a_hold_returns_what_was_not_used():
    ledger = Ledger(tokens=100, nodes=4, depth=2)
    with ledger.hold(tokens=60) as hold:
        assert ledger.tokens == 40
        hold.settle(tokens=25)
    assert ledger.tokens == 75
    assert ledger.open == 0


def test_a_hold_that_is_never_settled_is_spent_in_full():
    ledger = Ledger(tokens=100, money=50)
    with pytest.raises(KeyboardInterrupt), ledger.hold(tokens=60, money=30):
        raise KeyboardInterrupt
    assert (ledger.tokens, ledger.money, ledger.open) == (40, 20, 0)


def test_what_was_used_beyond_a_hold_is_taken_as_far_as_it_is_there():
    ledger = Ledger(tokens=100, money=50)
    ledger.charge(tokens=30, money=20)
    assert (ledger.tokens, ledger.money) == (70, 30)
    ledger.charge(tokens=80, money=40)
    assert (ledger.tokens, ledger.money) == (0, 0)


def test_a_repaid_loan_returns_everything_but_the_started_node():
    ledger = Ledger(tokens=100, nodes=4, depth=2)
    loan = ledger.lend(tokens=50, nodes=3)
    assert (ledger.tokens, ledger.nodes) == (50, 1)
    assert (loan.tokens, loan.nodes, loan.depth) == (50, 2, 1)
    loan.repay()
    loan.repay()
    assert (ledger.tokens, ledger.nodes, ledger.open) == (100, 3, 0)


def test_a_loan_that_never_started_returns_its_node_too():
    ledger = Ledger(tokens=100, nodes=4, depth=2)
    ledger.lend(tokens=50, nodes=3).repay(started=False)
    assert (ledger.tokens, ledger.nodes) == (100, 4)


def test_a_ledger_with_an_open_loan_cannot_repay():
    loan = Ledger(tokens=100, nodes=4, depth=2).lend(tokens=50, nodes=3)
    loan.lend(tokens=10, nodes=1)
    with pytest.raises(AssertionError, match="open"):
        loan.repay()


@pytest.mark.parametrize(
    ("tokens", "nodes", "money"), [(101, 1, 0), (10, 5, 0), (10, 1, 51), (0, 1, 0), (-5, 1, 0), (10, -1, 0)]
)
def test_a_loan_that_cannot_be_paid_is_refused_and_changes_nothing(tokens: int, nodes: int, money: int):
    ledger = Ledger(tokens=100, nodes=4, depth=2, money=50)
    with pytest.raises(BudgetExhausted):
        ledger.lend(tokens=tokens, nodes=nodes, money=money)
    assert (ledger.tokens, ledger.nodes, ledger.money, ledger.open) == (100, 4, 50, 0)


def test_the_last_level_cannot_lend():
    with pytest.raises(BudgetExhausted, match="depth 0"):
        Ledger(tokens=100, nodes=4, depth=0).lend(tokens=10, nodes=1)


def test_hand_computed_shares():
    assert shares(900, [None, None], least=100) == [300, 300]
    assert shares(900, [600, 600], least=100) == [450, 450]
    assert shares(900, [200, 300], least=100) == [200, 300]
    assert shares(900, [5000, None], least=100) == [800, 100]
    assert shares(250, [None] * 4, least=100) == [125, 125, 0, 0]
    assert shares(900, [20, None], least=100) == [0, 450]
    assert shares(99, [None], least=100) == [0]
    assert shares(-50, [None, 70], least=10) == [0, 0]
    assert shares(900, [], least=100) == []


def test_a_parent_keeps_its_parent_share():
    assert shares(900, [None, None], least=100, parent_share=0.0) == [450, 450]
    assert shares(900, [None, None], least=100, parent_share=0.25) == [400, 400]
    assert shares(900, [None], least=100, parent_share=2.0) == [300]
    assert shares(900, [None], least=400, parent_share=2.0) == [
        900
    ]  # keeping its share would leave the child too little
    assert shares(900, [200, None], least=100, parent_share=0.0) == [200, 700]


def test_shares_by_size_lend_the_same_in_all_as_equal_ones():
    assert shares(900, [None, None], least=100, sizes=[1, 3]) == [150, 450]  # two of three shares of 300
    assert shares(900, [None, None], least=100, sizes=[1, 11]) == [100, 500]  # 50 would be too little
    assert shares(900, [None, None], least=100, sizes=[7, 7]) == [300, 300]
    assert shares(900, [None, None], least=100, sizes=[0, 0]) == [300, 300]
    assert shares(900, [None, None], least=100, sizes=[0, 2]) == [100, 500]
    assert shares(900, [None, None], least=100, parent_share=0.25, sizes=[1, 4]) == [160, 640]
    assert shares(900, [300, None, None], least=50, parent_share=0.0, sizes=[9, 1, 2]) == [300, 200, 400]
    assert shares(1000, [None] * 3, least=10, parent_share=0.0, sizes=[1, 1, 2]) == [250, 250, 499]  # 3 x 333 in all
    assert shares(250, [None] * 4, least=100, sizes=[1, 9, 9, 9]) == [100, 150, 0, 0]


def test_by_size_raises_several_small_parts_before_it_splits_the_rest():
    # 10 of 1000 go to size 1, 20 to size 2: both get 100. Of the other 800, 3/8 and 5/8.
    assert by_size(1000, [1, 2, 37.5, 62.5], least=100) == [100, 100, 300, 500]
    # Without the small one, size 3 has 3/13 of 400, which is below 100 too.
    assert by_size(500, [1, 3, 10], least=100) == [100, 100, 300]
    assert by_size(100, [1, 1, 1], least=1) == [34, 33, 33]


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=10), st.integers(1, 300), st.integers(0, 5000))
def test_parts_by_size_are_exact_and_follow_the_order_of_sizes(sizes: list[float], least: int, spare: int):
    tokens = least * len(sizes) + spare
    parts = by_size(tokens, sizes, least=least)
    assert sum(parts) == tokens
    assert min(parts) >= least
    for size, part in zip(sizes, parts, strict=True):
        for other, other_part in zip(sizes, parts, strict=True):
            assert size <= other or part >= other_part - 1


@given(
    st.integers(-100, 10_000),
    st.lists(st.tuples(st.one_of(st.none(), st.integers(1, 20_000)), st.floats(0, 1e6)), max_size=12),
    st.integers(1, 500),
    st.floats(0, 100),
)
def test_sizes_change_neither_the_sum_nor_who_is_refused(
    lendable: int, wanted: list[tuple[int | None, float]], least: int, parent_share: float
):
    asked, sizes = [tokens for tokens, _ in wanted], [size for _, size in wanted]
    equal = shares(lendable, asked, least=least, parent_share=parent_share)
    by_demand = shares(lendable, asked, least=least, parent_share=parent_share, sizes=sizes)
    assert sum(by_demand) == sum(equal)
    assert [grant > 0 for grant in by_demand] == [grant > 0 for grant in equal]
    assert all(grant == 0 or grant >= least for grant in by_demand)
    assert shares(lendable, asked, least=least, parent_share=parent_share, sizes=[3.5] * len(asked)) == equal


def test_the_cap_of_a_role_replaces_that_of_every_node():
    budget = Budget(node_tokens=500, clone_tokens=100)
    assert (budget.own_tokens(root=True), budget.own_tokens(root=False)) == (500, 100)
    budget = Budget(root_tokens=900)
    assert (budget.own_tokens(root=True), budget.own_tokens(root=False)) == (900, None)


@pytest.mark.parametrize("parent_share", [-0.1, 101.0, float("nan"), True])
def test_an_invalid_parent_share_is_refused(parent_share: float):
    with pytest.raises(ConfigError, match=r"budget\.parent_share is a number of shares from 0 to 100"):
        Budget(parent_share=parent_share)


@given(
    st.integers(-100, 10_000),
    st.lists(st.one_of(st.none(), st.integers(1, 20_000)), max_size=12),
    st.integers(1, 500),
    st.floats(0, 100),
)
def test_shares_never_exceed_what_can_be_lent(lendable: int, asked: list[int | None], least: int, parent_share: float):
    granted = shares(lendable, asked, least=least, parent_share=parent_share)
    assert sum(granted) <= max(0, lendable)
    for wanted, grant in zip(asked, granted, strict=True):
        assert grant == 0 or grant >= least
        assert wanted is None or grant <= wanted


@given(st.integers(0, 2**32))
def test_no_sequence_of_holds_and_loans_loses_a_token(seed: int):
    """The tokens in all ledgers plus those spent always equal the budget."""
    dice = random.Random(seed)
    root = Ledger(tokens=1000, nodes=20, depth=5, money=10_000)
    alive, spent, started = [root], 0, 0
    for _ in range(60):
        ledger = dice.choice(alive)
        try:
            if dice.random() < 0.5:
                with ledger.hold(tokens=dice.randint(-2, 300), money=dice.randint(0, 3000)) as hold:
                    used = dice.randint(0, hold.tokens)
                    if dice.random() < 0.7:
                        hold.settle(tokens=used, money=dice.randint(0, hold.money))
                    else:
                        used = hold.tokens
                spent += used
            else:
                loan = ledger.lend(tokens=dice.randint(0, 400), nodes=dice.randint(0, 5), money=dice.randint(0, 3000))
                started += 1
                alive.append(loan)
        except BudgetExhausted:
            pass
        loan = dice.choice(alive)
        if loan is not root and not loan.open and dice.random() < 0.3:
            loan.repay()
            alive.remove(loan)
        assert sum(ledger.tokens for ledger in alive) + spent == 1000
        assert sum(ledger.nodes for ledger in alive) + started == 20
        assert min(min(ledger.tokens, ledger.nodes, ledger.money or 0) for ledger in alive) >= 0
    for loan in reversed(alive[1:]):
        loan.repay()
    assert root.open == 0
    assert root.tokens + spent == 1000


def test_prices_are_dollars_per_million_tokens_counted_without_rounding():
    prices = Prices(prompt=0.15, cached=0.075, generated=0.6)
    cost = prices.cost(prompt=1_000_000, cached=400_000, generated=1_000_000)
    assert cost == round((0.6 * 0.15 + 0.4 * 0.075 + 0.6) * PICO)
    assert prices.worst(prompt=1_000_000, generated=1_000_000) == round(0.75 * PICO)


def test_cached_tokens_cost_the_same_as_others_by_default():
    assert Prices(prompt=2.0).cost(prompt=10, cached=10, generated=0) == Prices(prompt=2.0).cost(
        prompt=10, cached=0, generated=0
    )


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"tokens": 0}, "budget.tokens"),
        ({"tokens": 2.5}, "budget.tokens"),
        ({"nodes": True}, "budget.nodes"),
        ({"depth": -1}, "budget.depth"),
        ({"seconds": 0}, "budget.seconds"),
        ({"seconds": float("nan")}, "budget.seconds"),
        ({"seconds": 10**400}, "budget.seconds"),
        ({"money": -1.0}, "budget.money"),
        ({"money": 1.0}, "prices"),
        ({"result_bytes": 1}, "budget.result_bytes"),
        ({"root_tokens": 0}, "budget.root_tokens"),
        ({"clone_tokens": 1.5}, "budget.clone_tokens"),
        ({"max_result_chars": 31}, "budget.max_result_chars is a whole number from 32 up"),
        ({"max_calls": 0}, "budget.max_calls"),
        ({"shares": "equl"}, "budget.shares is equal or demand; got 'equl'"),
    ],
)
def test_an_invalid_budget_names_the_limit(settings: dict[str, object], names: str):
    with pytest.raises(ConfigError, match=names):
        Budget(**settings)  # pyright: ignore[reportArgumentType]


def test_negative_prices_are_refused():
    with pytest.raises(ConfigError, match="dollars per million"):
        Prices(prompt=-1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"parent_share": None}, {"parent_share": "1"}, {"seconds": "1"}, {"seconds": float("nan")}, {"tokens": None}),
        *(
            {"tokens": 1.5},
            {"tokens": "5"},
            {"prices": None},
            {"money": True},
            {"depth": float("inf")},
            {"nodes": True},
        ),
    ],
)
def test_a_limit_of_the_wrong_type_is_one_line(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^budget\.\w+ is .+\Z"):
        Budget(**wrong)
