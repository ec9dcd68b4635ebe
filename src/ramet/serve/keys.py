"""API keys and their limits: a TOML file, checked before the server starts.

    [keys.alice]
    key = "a long random text"      # or sha256 = "...": its SHA-256 in hexadecimal, so that the file holds no secret
    requests = 8                    # at once
    tokens_per_day = 1_000_000      # generated; days begin at midnight UTC
    money_per_day = 5.0             # dollars; needs prices in the server's budget
    budget = { tokens = 2000 }      # of every request

What a request may use is reserved before its tree starts and settled when it has ended, so no limit is exceeded by
requests that run at the same time.
"""

from __future__ import annotations

import hmac
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from ramet.budget import PICO, Budget
from ramet.config import build
from ramet.errors import ConfigError, did_you_mean
from ramet.serve.budgets import LIMITS, lowest
from ramet.serve.errors import RequestError
from ramet.types import Tree

SHORTEST_KEY = 16  # characters
SMALLEST_TREE = 64  # tokens; a key with fewer left today gets no tree
DIGEST = re.compile(r"[0-9a-f]{64}")
BUSY_RETRY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyConfig:
    """One key of the file."""

    key: str = ""
    sha256: str = ""
    requests: int | None = None
    tokens_per_day: int | None = None
    money_per_day: float | None = None
    budget: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if bool(self.key) == bool(self.sha256):
            raise ConfigError("set either key or sha256")
        if self.key and (len(self.key) < SHORTEST_KEY or not self.key.isascii() or not self.key.isprintable()):
            raise ConfigError(f"its key must have at least {SHORTEST_KEY} printable ASCII characters")
        if self.sha256 and not DIGEST.fullmatch(self.sha256.lower()):
            raise ConfigError("its sha256 must have 64 hexadecimal digits")
        for name in ("requests", "tokens_per_day", "money_per_day"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not 0 < value < float("inf")):
                raise ConfigError(f"its {name} must be a number above 0; got {value!r}")
        for name in self.budget:
            if name not in LIMITS:
                raise ConfigError(f"unknown limit budget.{name}: {did_you_mean(name, LIMITS)}")

    @property
    def digest(self) -> bytes:
        return sha256(self.key.encode()).digest() if self.key else bytes.fromhex(self.sha256)


@dataclass(slots=True, kw_only=True)
class Account:
    """What one key has used today and holds for requests that run."""

    name: str
    limits: KeyConfig | None = None  # None: a server without keys
    today: Callable[[], datetime] = field(default=lambda: datetime.now(UTC), repr=False)
    day: str = ""
    tokens: int = 0
    cost: int = 0  # trillionths of a dollar
    held_tokens: int = 0
    held_cost: int = 0
    started_tokens: int = 0  # held for trees that have started, and so may be used
    started_cost: int = 0
    running: int = 0

    def reserve(self, budget: Budget) -> Reservation:
        """Lower a budget to what the key has left and reserve it; a 429 if that is too little."""
        limits = self.limits
        self._begin_day()
        if limits is None:
            self.running += 1
            return Reservation(account=self, budget=budget)
        if limits.requests is not None and self.running >= limits.requests:
            raise RequestError(
                429,
                f"this key has {self.running} requests running; its limit is {limits.requests}",
                code="rate_limit_exceeded",
                retry_after_s=BUSY_RETRY_S,
            )
        asked = lowest(budget, ("key", limits.budget))
        budget = self._within_day(asked, limits)
        held = 0 if budget.money is None else int(budget.money * PICO)
        self.running += 1
        self.held_tokens += budget.tokens
        self.held_cost += held
        rest = budget.money != asked.money
        return Reservation(account=self, budget=budget, tokens=budget.tokens, cost=held, rest_of_money=rest)

    def _within_day(self, budget: Budget, limits: KeyConfig) -> Budget:
        if limits.tokens_per_day is not None:
            left = limits.tokens_per_day - self.tokens - self.held_tokens
            if left < min(SMALLEST_TREE, budget.tokens):
                raise self._used_up(f"{limits.tokens_per_day:,} tokens")
            budget = replace(budget, tokens=min(budget.tokens, left))
        if limits.money_per_day is not None:
            left = int(limits.money_per_day * PICO) - self.cost - self.held_cost
            if left <= 0:
                raise self.money_used_up()
            budget = replace(budget, money=min(left / PICO, float("inf") if budget.money is None else budget.money))
        return budget

    def money_used_up(self) -> RequestError:
        """The error when what is left of the day's money pays for no tree."""
        most = None if self.limits is None else self.limits.money_per_day
        return self._used_up(f"${most or 0.0:g}")

    def _used_up(self, what: str) -> RequestError:
        now = self.today()
        tomorrow = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
        return RequestError(
            429,
            f"this key's daily limit of {what} is used up or reserved by running requests",
            code="insufficient_quota",
            retry_after_s=BUSY_RETRY_S if self.running else (tomorrow - now).total_seconds(),
            retry=bool(self.running),
        )

    def charge(self, day: str, tokens: int, cost: int) -> None:
        """Add what was used on a day: the day of the account, or a later one, which it then begins."""
        if day > self.day:
            self.day, self.tokens, self.cost = day, 0, 0
        if day == self.day:
            self.tokens += tokens
            self.cost += cost

    def _begin_day(self) -> None:
        day = self.today().date().isoformat()
        if day != self.day:
            self.day, self.tokens, self.cost = day, 0, 0


@dataclass(slots=True, kw_only=True)
class Reservation:
    """What one request may use. A reservation is settled once, for what its tree has used."""

    account: Account
    budget: Budget
    tokens: int = 0
    cost: int = 0
    rest_of_money: bool = False  # the budget's money is what is left of the key's day
    started: bool = False
    settled: bool = False

    def start(self) -> None:
        """The tree starts: from now on tokens may be generated."""
        self.started = True
        self.account.started_tokens += self.tokens
        self.account.started_cost += self.cost

    def settle(self, tree: Tree | None) -> None:
        """Charge what a tree has used and give the rest back. None: no tree was started."""
        if self.settled:
            return
        self.settled = True
        account = self.account
        account._begin_day()  # pyright: ignore[reportPrivateUsage]
        account.running -= 1
        account.held_tokens -= self.tokens
        account.held_cost -= self.cost
        if self.started:
            account.started_tokens -= self.tokens
            account.started_cost -= self.cost
        if tree is not None:
            used = tree.usage
            account.tokens += used.tokens + used.lost_tokens
            account.cost += used.cost + _lost_cost(tree)


def _lost_cost(tree: Tree) -> int:
    """The price of lost tokens, in trillionths of a dollar: the server may have generated them."""
    cost = 0
    for node in tree.nodes:
        prices = tree.budget.prices_of(root=node.parent is None)
        cost += prices.cost(prompt=0, cached=0, generated=node.usage.lost_tokens)
    return cost


class Keyring:
    """All keys of a server. Without any, every request is that of one account without limits."""

    def __init__(self, keys: Mapping[str, KeyConfig], *, budget: Budget) -> None:
        for name, key in keys.items():
            if key.money_per_day is not None and budget.prices.free:
                raise ConfigError(f"keys.{name}: money_per_day needs prices: set budget.prices.prompt and generated")
            _check_budget(name, key, budget)
        self.accounts = {name: Account(name=name, limits=key) for name, key in keys.items()}
        self.anonymous = Account(name="")
        self._digests = [(key.digest, self.accounts[name]) for name, key in keys.items()]

    @property
    def needed(self) -> bool:
        return bool(self.accounts)

    def account(self, key: str | None) -> Account:
        """The account of a key. All keys are compared, each in constant time."""
        if not self.needed:
            return self.anonymous
        found: Account | None = None
        digest = sha256((key or "").encode(errors="replace")).digest()
        for known, account in self._digests:
            if hmac.compare_digest(known, digest):
                found = account
        if found is None:
            why = "no API key was sent" if key is None else "this API key is not known"
            raise RequestError(401, f"{why}: send the header Authorization: Bearer KEY", code="invalid_api_key")
        return found

    @property
    def has_days(self) -> bool:
        """Whether any limit is one of a day."""
        limits = [account.limits for account in self.accounts.values() if account.limits is not None]
        return any(key.tokens_per_day is not None or key.money_per_day is not None for key in limits)


def _check_budget(name: str, key: KeyConfig, budget: Budget) -> None:
    try:
        lowest(budget, ("budget", key.budget))
    except RequestError as error:
        raise ConfigError(f"keys.{name}: {error}") from None


def read_keys(file: Path) -> dict[str, KeyConfig]:
    """The keys of a file. An error names the key's table, never the key."""
    try:
        settings: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError):  # the message of the parser may quote a key
        raise ConfigError(f"{file} is not valid TOML") from None
    tables = settings.pop("keys", None)
    if settings:
        raise ConfigError(f"{file}: there is no table {next(iter(settings))!r}; keys are tables like [keys.alice]")
    if not isinstance(tables, dict) or not tables:
        raise ConfigError(f"{file} has no keys: write a table like [keys.alice] with a key in it")
    return _read_tables(file, cast(dict[str, object], tables))


def _read_tables(file: Path, tables: Mapping[str, object]) -> dict[str, KeyConfig]:
    keys: dict[str, KeyConfig] = {}
    known = [setting.name for setting in fields(KeyConfig)]
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{file}: keys.{name} must be a table: write [keys.{name}]")
        for setting in cast(dict[str, object], table):
            if setting not in known:
                raise ConfigError(f"{file}: keys.{name} has no setting {setting!r}: {did_you_mean(setting, known)}")
        try:
            keys[name] = build(KeyConfig, cast(dict[str, Any], table))
        except ConfigError as error:
            found = _without(str(error), cast(dict[str, object], table).get("key"))
            raise ConfigError(f"{file}: keys.{name}: {found}") from None
    if len({key.digest for key in keys.values()}) < len(keys):
        raise ConfigError(f"{file}: two names have the same key")
    return keys


def _without(text: str, key: object) -> str:
    """An error without the key, wherever it quotes one. A key that is no string is quoted after `got` only."""
    return text.replace(repr(key), "***") if isinstance(key, str) else text.replace(f"got {key!r}", "got ***")
