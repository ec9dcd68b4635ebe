"""No request is given more than the server and its key allow, wherever it names its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ramet.budget import Budget, Prices
from ramet.errors import ConfigError
from ramet.serve import chat
from ramet.serve.budgets import LIMITS, lowest
from ramet.serve.errors import RequestError
from ramet.serve.fields import Fields
from ramet.serve.keys import Account, KeyConfig

ROLES = ("root_tokens", "clone_tokens")
KEY = "a long random text"
NUMBERS = st.integers(min_value=1, max_value=10_000)
SERVER = Budget(tokens=900, nodes=7, depth=2, seconds=20.0, prices=Prices(generated=1.0))
SETTINGS = st.dictionaries(st.sampled_from(LIMITS), NUMBERS)


def allowed(limits: Mapping[str, Any]) -> dict[str, float]:
    """What limits permit: `node_tokens` holds for the roles that have no cap of their own."""
    found = {name: value for name, value in limits.items() if name in LIMITS and value is not None}
    node = dict.fromkeys(ROLES, found["node_tokens"]) if "node_tokens" in found else {}
    return {name: value for name, value in {**node, **found}.items() if name != "node_tokens"}


def permitted(budget: Budget) -> dict[str, float]:
    return allowed({name: getattr(budget, name) for name in LIMITS})


def request(suffix: Mapping[str, Any], field: Mapping[str, Any], most: int | None) -> Any:
    name = "m" + (":" if suffix else "") + ",".join(f"{key}={value}" for key, value in suffix.items())
    body = {"model": name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": most}
    return chat.read(
        Fields({**body, "ramet": {"budget": dict(field)}}), served=("m",), remembered=lambda _: None
    ).limits


@given(server=SETTINGS, key=SETTINGS, suffix=SETTINGS, field=SETTINGS, most=st.none() | NUMBERS)
def test_no_request_is_permitted_more_than_server_key_and_request_say(
    server: dict[str, Any], key: dict[str, Any], suffix: dict[str, Any], field: dict[str, Any], most: int | None
):
    try:
        own = replace(SERVER, **server)
        account = Account(name="a", limits=KeyConfig(key=KEY, budget=key))
        found = permitted(account.reserve(lowest(own, *request(suffix, field, most))).budget)
    except (ConfigError, RequestError):
        return  # a number below the least that is accepted
    for limits in (permitted(own), allowed(key), allowed(suffix), allowed(field), {"tokens": most or 10**6}):
        for name, most_allowed in limits.items():
            assert found[name] <= most_allowed, name


def test_a_cap_of_a_role_cannot_be_used_to_raise_that_of_all_nodes():
    server = Budget(tokens=4000, node_tokens=100)
    asked = {"root_tokens": 4000, "clone_tokens": 4000}
    for limits in (("ramet.budget", asked), ("model", asked)):
        budget = lowest(server, limits)
        assert (budget.own_tokens(root=True), budget.own_tokens(root=False)) == (100, 100)
    alice = Account(name="a", limits=KeyConfig(key=KEY, budget={"node_tokens": 100}))
    budget = alice.reserve(lowest(Budget(tokens=4000), ("ramet.budget", asked))).budget
    assert (budget.own_tokens(root=True), budget.own_tokens(root=False)) == (100, 100)
