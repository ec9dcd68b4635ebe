"""The budget of a request: the lowest of the server's, the key's and what the request asks for.

A request names limits in three places: `"model": "my-model:tokens=2000,depth=2"`, a field `"ramet": {"budget": {...}}`
(`extra_body` of OpenAI's clients), and `max_tokens`. None of them can raise a limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from ramet.budget import Budget
from ramet.errors import ConfigError, did_you_mean
from ramet.serve.errors import RequestError, wrong
from ramet.serve.fields import Fields, shown
from ramet.serve.settings import ALIAS

# What a client may lower. The others (prices, shares, reserves) belong to the server.
LIMITS = (
    *("tokens", "nodes", "depth", "seconds", "money", "children", "turns", "repeats", "window", "path_tokens"),
    *("node_tokens", "root_tokens", "clone_tokens", "max_calls", "max_result_chars", "result_bytes", "output_bytes"),
)
ROLES = ("root_tokens", "clone_tokens")  # caps that replace `node_tokens` for a role
Limits = Mapping[str, Any]


def split_model(model: str, served: Sequence[str]) -> tuple[str, Limits]:
    """The served model that a request names, and the limits after its name.

    Example:
        split_model("my-model:tokens=2000,depth=2", ["my-model"])  # ("my-model", {"tokens": 2000, "depth": 2})
    """
    for name in sorted(served, key=len, reverse=True):
        if model == name:
            return name, {}
        if model.startswith(f"{name}:"):
            return name, _suffix(model[len(name) + 1 :])
    names = ", ".join(dict.fromkeys(served))
    raise RequestError(404, f"unknown model {shown(model)}; accepted: {names}", param="model", code="model_not_found")


def _suffix(text: str) -> Limits:
    limits: dict[str, Any] = {}
    for word in text.split(","):
        key, equals, value = word.partition("=")
        if not equals:
            raise wrong("model", f"{shown(word)} is not a limit: write {ALIAS}:tokens=2000,depth=2")
        limits[_known(key.strip(), "model")] = _number(value.strip(), key.strip())
    return limits


def _number(text: str, key: str) -> int | float:
    try:
        return float(text) if key in ("seconds", "money") else int(text)
    except ValueError:
        raise wrong("model", f"{key} in the model name must be a number; got {shown(text)}") from None


def _known(key: str, param: str) -> str:
    if key not in LIMITS:
        raise wrong(param, f"unknown limit {shown(key)}: {did_you_mean(key, LIMITS)}")
    return key


def read_limits(fields: Fields | None) -> Limits:
    """The limits in `ramet.budget` of a request."""
    if fields is None:
        return {}
    return {_known(key, fields.path + key): value for key, value in fields.values.items() if value is not None}


def lowest(budget: Budget, *limits: tuple[str, Limits]) -> Budget:
    """The budget lowered by these limits, each with the field it comes from. A limit above the budget has no effect.

    Example:
        lowest(Budget(tokens=4000, depth=3), ("model", {"tokens": 2000, "depth": 9}))  # Budget(tokens=2000, depth=3)
    """
    for param, asked in limits:
        if not asked:
            continue
        lowered = {key: _lower(budget, key, value) for key, value in _by_role(budget, asked).items()}
        try:
            budget = replace(budget, **lowered)
        except (ConfigError, TypeError) as error:
            raise wrong(param, str(error)) from None
    return budget


def _by_role(budget: Budget, asked: Limits) -> Limits:
    """The limits, with `node_tokens` also as the cap of every role that has one in the budget and none in `asked`.

    Such a cap replaces the budget's `node_tokens`, so that lowering `node_tokens` alone would not lower it.
    """
    if "node_tokens" not in asked:
        return asked
    return {**{role: asked["node_tokens"] for role in ROLES if getattr(budget, role) is not None}, **asked}


def _lower(budget: Budget, key: str, value: object) -> object:
    """The lower of the budget's limit and `value`, which `Budget` checks if it is no number."""
    own = budget.own_tokens(root=key == "root_tokens") if key in ROLES else getattr(budget, key)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if own is None or not number else min(own, cast(float, value))
