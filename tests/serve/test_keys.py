"""Keys: the file, who is who, and limits that requests at the same time cannot exceed."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.budget import PICO, Budget, Prices
from ramet.engine.scripted import Reply, ScriptedEngine
from ramet.errors import ConfigError
from ramet.serve.errors import RequestError
from ramet.serve.keys import Account, KeyConfig, Keyring, Reservation, read_keys
from ramet.serve.server import read_access
from ramet.serve.settings import ServeConfig, check_address
from ramet.types import Prompt, Usage
from tests.conftest import in_virtual_time
from tests.serve.scripted import call, tree_with

SECRET = "correct-horse-battery"
BUDGET = Budget(tokens=1000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no keys"),
        ("keys = 3", "has no keys"),
        ("[key.alice]", "there is no table 'key'"),
        ("[keys]\nalice = 3", "keys.alice must be a table"),
        ("[keys.alice]", "keys.alice: set either key or sha256"),
        (f'[keys.alice]\nkey = "{SECRET}"\nsha256 = "aa"', "either key or sha256"),
        ('[keys.alice]\nkey = "short"', "at least 16 printable ASCII characters"),
        ('[keys.alice]\nsha256 = "xyz"', "64 hexadecimal digits"),
        (f'[keys.alice]\nkey = "{SECRET}"\nrequest = 3', "did you mean requests?"),
        (f'[keys.alice]\nkey = "{SECRET}"\nrequests = 0', "requests must be a number above 0"),
        (f'[keys.alice]\nkey = "{SECRET}"\ntokens_per_day = "many"', "tokens_per_day"),
        (f'[keys.alice]\nkey = "{SECRET}"\nbudget = {{ token = 3 }}', "did you mean tokens?"),
        (f'[keys.alice]\nkey = "{SECRET}"\n[keys.bob]\nkey = "{SECRET}"', "two names have the same key"),
        (f'[keys.alice]\nkey = "{SECRET}" oops', "is not valid TOML"),
    ],
)
def test_a_wrong_file_of_keys_is_one_line_without_the_key(tmp_path: Path, text: str, message: str):
    file = tmp_path / "keys.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_keys(file)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('key = "a"', "keys.a: its key must have at least 16 printable ASCII characters"),
        ("key = 5", "keys.a: key: input should be a valid string; got ***"),
        (f'key = ["{SECRET}"]', "keys.a: key: input should be a valid string; got ***"),
        (f'key = "{SECRET}"\nrequests = "{SECRET}"', "got ***"),
        (f'key = "{SECRET}"\nbudget = {{ tokens = -5 }}', "keys.a: budget.tokens"),
        (f'key = "{SECRET}"\nbudget = {{ money = 1 }}', "keys.a: budget.money needs prices"),
        (f'key = "{SECRET}"\nmoney_per_day = 1.0', "keys.a: money_per_day needs prices"),
    ],
)
def test_an_error_in_a_key_names_file_and_key_and_is_whole(tmp_path: Path, text: str, message: str):
    file = tmp_path / "keys.toml"
    file.write_text(f"\ufeff[keys.a]\n{text}", encoding="utf-8")  # with a byte order mark
    with pytest.raises(ConfigError) as refused:
        read_access(ServeConfig(keys=str(file), budget=BUDGET))
    assert str(refused.value).startswith(f"{file}: ")
    assert message in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_key_is_known_by_itself_or_by_its_hash(tmp_path: Path):
    file = tmp_path / "keys.toml"
    digest = sha256(b"another-long-random-text").hexdigest()
    file.write_text(f'[keys.alice]\nkey = "{SECRET}"\n[keys.bob]\nsha256 = "{digest}"\nrequests = 2')
    keys = Keyring(read_keys(file), budget=BUDGET)
    assert keys.account(SECRET).name == "alice"
    assert keys.account("another-long-random-text").name == "bob"
    for unknown in (None, "", SECRET[:-1], SECRET + "x", "\udcff"):
        with pytest.raises(RequestError) as refused:
            keys.account(unknown)
        assert refused.value.status == 401
        assert not unknown or unknown not in str(refused.value)


def test_a_daily_sum_of_money_needs_prices():
    with pytest.raises(ConfigError, match="money_per_day needs prices"):
        Keyring({"a": KeyConfig(key=SECRET, money_per_day=1.0)}, budget=BUDGET)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_an_address_that_others_can_reach_needs_keys(host: str):
    with pytest.raises(ConfigError, match="give --keys FILE"):
        check_address(host, has_keys=False)
    check_address(host, has_keys=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost", "LocalHost"])
def test_a_loopback_address_needs_none(host: str):
    check_address(host, has_keys=False)


def account(**limits: object) -> Account:
    return Account(name="a", limits=KeyConfig(key=SECRET, **limits))  # type: ignore[arg-type]


def test_requests_at_once_are_limited():
    alice = account(requests=2)
    running = [alice.reserve(BUDGET), alice.reserve(BUDGET)]
    with pytest.raises(RequestError, match="2 requests running; its limit is 2") as refused:
        alice.reserve(BUDGET)
    assert refused.value.status == 429
    assert refused.value.headers["retry-after"] == "1"
    running[0].settle(tree_with(Usage(tokens=10)))
    alice.reserve(BUDGET)


def test_a_budget_is_lowered_to_what_is_left_of_the_day_and_back_the_next_day():
    now = [datetime(2026, 3, 1, 23, 0, tzinfo=UTC)]
    alice = account(tokens_per_day=1500)
    alice.today = lambda: now[0]
    first = alice.reserve(BUDGET)
    assert alice.reserve(BUDGET).budget.tokens == 500  # the rest is reserved
    first.settle(tree_with(Usage(tokens=900, lost_tokens=100)))
    with pytest.raises(RequestError, match="daily limit of 1,500 tokens") as refused:
        alice.reserve(BUDGET)
    assert refused.value.code == "insufficient_quota"
    now[0] += timedelta(hours=2)
    alice.held_tokens = 0
    assert alice.reserve(BUDGET).budget.tokens == 1000


@pytest.mark.parametrize("clone_prices", [None, Prices(prompt=1.0, generated=100.0)])
def test_a_cancelled_tree_is_charged_as_much_as_its_ledger_paid(clone_prices: Prices | None):
    def say(prompt: Prompt) -> Reply:
        if prompt.depth:
            return Reply(text="word " * 100, seconds=10.0)
        return Reply(text=call("delegate", goals=["a part"]))

    prices = Prices(prompt=1.0, generated=2.0)
    alice = account(money_per_day=0.2)
    request = alice.reserve(Budget(tokens=1000, money=0.1, prices=prices, clone_prices=clone_prices))
    run = TreeRun("q", TreeOptions(engine=ScriptedEngine(say), budget=request.budget))

    async def work() -> None:
        with anyio.move_on_after(5):
            await run.run()

    in_virtual_time(work)
    request.settle(run.tree)
    assert run.tree.nodes[1].usage.lost_tokens > 0
    assert run.ledger.money is not None
    assert alice.cost == int(0.1 * PICO) - run.ledger.money


def test_the_budget_of_a_key_is_below_that_of_the_server():
    assert account(budget={"tokens": 300, "nodes": 99}).reserve(BUDGET).budget == Budget(tokens=300)


@given(st.lists(st.tuples(st.booleans(), st.integers(min_value=0, max_value=1000)), max_size=60))
def test_no_order_of_requests_uses_more_than_a_day_has(steps: list[tuple[bool, int]]):
    prices = Prices(prompt=1.0, generated=1.0)
    alice = account(tokens_per_day=5000, money_per_day=0.003)
    open_requests: list[Reservation] = []
    tokens, cost = 0, 0
    for begin, share in steps:
        if begin:
            with suppress(RequestError):
                open_requests.append(alice.reserve(Budget(tokens=1000, money=0.001, prices=prices)))
        elif open_requests:
            ended = open_requests.pop(share % len(open_requests))
            used = Usage(tokens=ended.budget.tokens * share // 1000, cost=int((ended.budget.money or 0) * PICO))
            tokens, cost = tokens + used.tokens, cost + used.cost
            ended.settle(tree_with(used))
            ended.settle(tree_with(used))  # only once
        assert (alice.tokens, alice.cost) == (tokens, cost)
        assert tokens + alice.held_tokens <= 5000
        assert cost + alice.held_cost <= 0.003 * PICO
