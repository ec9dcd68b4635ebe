"""Hard budgets.

A `Budget` holds the user's limits. A `Ledger` holds what one subtree may still spend. Three rules keep the real spend
at or below the budget, whatever the model does and however siblings interleave:

1. Pay first. A node reserves its cap before it samples and gets the change back afterwards. A cancelled sample is
   paid for with its whole cap: beyond the tokens that arrived (`tokens`), the server may have generated the rest of
   it (`lost_tokens`).
2. Children spend loans. A loan leaves the parent's ledger before the child starts; the rest returns when it ends.
3. No code computes "limit minus spent": that number is stale as soon as two siblings read it.

All amounts are integers (money in trillionths of a dollar), so nothing is lost to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from types import TracebackType
from typing import Literal

from ramet.errors import BudgetExhausted, ConfigError

LARGEST = 2**62  # run directories store counts in 64 bits
SHARE_UNIT = 1000  # resolution of `parent_share`: thousandths
MAX_PARENT_SHARE = 100
PICO = 10**12  # money is counted in trillionths of a dollar


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars per million tokens.

    Example:
        Prices(prompt=0.15, cached=0.075, generated=0.6)
    """

    prompt: float = 0.0
    cached: float | None = None  # for prompt tokens found in the server's cache; None: the same price as others
    generated: float = 0.0

    def __post_init__(self) -> None:
        for price in (self.prompt, self.cached, self.generated):
            if price is not None and not (_is_number(price) and 0 <= price < 1e6):
                raise ConfigError(f"prices are dollars per million tokens, 0 or more; got {price}")

    @property
    def free(self) -> bool:
        """Whether all prices are 0."""
        return not (self.prompt or self.cached or self.generated)

    @property
    def per_prompt_token(self) -> int:
        """In trillionths of a dollar."""
        return round(self.prompt * PICO / 1e6)

    @property
    def per_cached_token(self) -> int:
        """In trillionths of a dollar."""
        price = self.prompt if self.cached is None else self.cached
        return round(price * PICO / 1e6)

    @property
    def per_generated_token(self) -> int:
        """In trillionths of a dollar."""
        return round(self.generated * PICO / 1e6)

    def cost(self, *, prompt: int, cached: int, generated: int) -> int:
        """The cost of a finished call, in trillionths of a dollar."""
        if self.free:
            return 0
        return (
            (prompt - cached) * self.per_prompt_token
            + cached * self.per_cached_token
            + generated * self.per_generated_token
        )

    def worst(self, *, prompt: int, generated: int) -> int:
        """The most a call can cost: no cache hit, and all allowed tokens generated."""
        if self.free:
            return 0
        dearest = max(self.per_prompt_token, self.per_cached_token)
        return prompt * dearest + generated * self.per_generated_token


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits of one tree. None of them is ever exceeded by what ramet asks for.

    A server that sends more than it was asked for is cut off, and what it sent counts: one event per node at most is
    beyond `tokens`.

    Example:
        Budget(tokens=4000, nodes=16, depth=3, seconds=60)
    """

    tokens: int = 4000  # generated tokens of the whole tree
    nodes: int = 16  # agents in the tree, the root included
    depth: int = 3  # levels below the root
    seconds: float | None = None  # wall clock of the whole tree
    children: int = 8  # clones started by one call
    turns: int = 10  # completions per node, the final answer included
    repeats: int | None = None  # times in a row a node may repeat a turn with the same results; then it must answer
    node_tokens: int | None = None  # generated tokens per node
    root_tokens: int | None = None  # generated tokens of the root itself; None: as node_tokens
    clone_tokens: int | None = None  # generated tokens of every clone itself; None: as node_tokens
    path_tokens: int | None = None  # generated tokens on the critical path: the longest chain of dependent work
    window: int = 8192  # tokens per node, prompt and generated together
    result_bytes: int = 2048  # text returned to a parent, per child
    output_bytes: int = 8192  # text shown to a node by one function call or code cell
    max_result_chars: int | None = None  # characters of results shown to a node by one call, answers of clones included
    max_calls: int | None = None  # calls carried out per turn
    reserve: int | None = None  # tokens each node keeps for its answer; None: derived from `tokens`
    parent_share: float = 1.0  # what a node keeps when it lends, in shares of a clone, besides its reserve
    shares: Literal["equal", "demand"] = (
        "equal"  # nodes of clones, and tokens of those that ask for none: equal, or by the size of their goal
    )
    money: float | None = None  # dollars for the whole tree
    prices: Prices = field(default_factory=Prices)
    clone_prices: Prices | None = None  # of a model that only clones have; None: as prices

    def __post_init__(self) -> None:
        self._check_counts()
        for name in ("seconds", "money"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 < value < LARGEST):
                raise ConfigError(f"budget.{name} is a number above 0 and below 2^62, or left out; got {value!r}")
        for name in ("prices", "clone_prices"):
            prices = getattr(self, name)
            if not isinstance(prices, Prices) and not (prices is None and name == "clone_prices"):
                raise ConfigError(f"budget.{name} is a table of prices; got {prices!r}")
        share = self.parent_share
        if not _is_number(share) or not 0 <= share <= MAX_PARENT_SHARE:
            raise ConfigError(f"budget.parent_share is a number of shares from 0 to {MAX_PARENT_SHARE}; got {share!r}")
        if self.shares not in ("equal", "demand"):
            raise ConfigError(f"budget.shares is equal or demand; got {self.shares!r}")
        if self.money is not None and self.prices.worst(prompt=1, generated=1) == 0:
            raise ConfigError("budget.money needs prices: set prices.prompt and prices.generated")

    def _check_counts(self) -> None:
        """All limits that are whole numbers."""
        least = {"depth": 0, "result_bytes": 32, "output_bytes": 32, "max_result_chars": 32}
        for limit in fields(self):
            value = getattr(self, limit.name)
            if limit.name in ("seconds", "money", "prices", "clone_prices", "parent_share", "shares"):
                continue
            if value is None and limit.default is None:
                continue
            floor = least.get(limit.name, 1)
            if isinstance(value, bool) or not isinstance(value, int) or not floor <= value < LARGEST:
                raise ConfigError(f"budget.{limit.name} is a whole number from {floor} up; got {value!r}")

    @property
    def answer_tokens(self) -> int:
        """Tokens a node keeps so that it can always give an answer."""
        return self.reserve or min(256, max(8, self.tokens // 40))

    @property
    def smallest_grant(self) -> int:
        """The tokens a child needs for one ordinary turn and its answer. With less it is refused."""
        return 2 * self.answer_tokens

    def own_tokens(self, *, root: bool) -> int | None:
        """The most tokens that a node may generate itself: the cap of its role, else `node_tokens`; None: no cap."""
        cap = self.root_tokens if root else self.clone_tokens
        return self.node_tokens if cap is None else cap

    def prices_of(self, *, root: bool) -> Prices:
        """The prices of a node's model."""
        return self.prices if root or self.clone_prices is None else self.clone_prices

    def ledger(self) -> Ledger:
        """The root's ledger. The root is already paid for; where it is the only node, nothing is below it."""
        money = None if self.money is None else int(self.money * PICO)
        depth = self.depth if self.nodes > 1 else 0
        return Ledger(tokens=self.tokens, nodes=self.nodes - 1, depth=depth, money=money)


@dataclass(slots=True, kw_only=True)
class Hold:
    """Tokens and money reserved for one call. A hold that is never settled is spent in full.

    Use it as a context manager, so that cancellation cannot leave it open.
    """

    ledger: Ledger
    tokens: int
    money: int
    settled: bool = False

    def settle(self, *, tokens: int, money: int = 0) -> None:
        """Pay for what was used and return the rest to the ledger."""
        if self.settled:
            raise AssertionError("a hold is settled once")
        if not 0 <= tokens <= self.tokens or not 0 <= money <= self.money:
            raise AssertionError(f"settled for {tokens} tokens, {money} money; held {self.tokens}, {self.money}")
        self.settled = True
        self.ledger.close_hold(tokens=self.tokens - tokens, money=self.money - money)

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.settled:
            self.settle(tokens=self.tokens, money=self.money)


@dataclass(slots=True, kw_only=True)
class Ledger:
    """What one subtree may still spend.

    Example:
        ledger = Ledger(tokens=100, nodes=4, depth=2)
        with ledger.hold(tokens=60) as hold:   # ledger.tokens == 40
            hold.settle(tokens=25)             # ledger.tokens == 75
        loan = ledger.lend(tokens=50, nodes=1) # ledger.tokens == 25, ledger.nodes == 3
        loan.repay()                           # ledger.tokens == 75, ledger.nodes == 3: the child was a node
    """

    tokens: int
    nodes: int = 0
    depth: int = 0
    money: int | None = None
    lender: Ledger | None = None
    open: int = 0  # holds and loans not yet settled
    repaid: bool = False

    def hold(self, *, tokens: int, money: int = 0) -> Hold:
        """Reserve tokens and money, or raise and change nothing. A hold of zero tokens is refused."""
        self._take(tokens=tokens, nodes=0, money=money)
        return Hold(ledger=self, tokens=tokens, money=money)

    def lend(self, *, tokens: int, nodes: int, money: int = 0) -> Ledger:
        """Lend a child its ledger. One of the nodes is the child itself and is spent here."""
        if self.depth < 1 or nodes < 1:
            raise BudgetExhausted(f"no room for a child: depth {self.depth}, {nodes} nodes")
        self._take(tokens=tokens, nodes=nodes, money=money)
        return Ledger(
            tokens=tokens,
            nodes=nodes - 1,
            depth=self.depth - 1,
            money=None if self.money is None else money,
            lender=self,
        )

    def repay(self, *, started: bool = True) -> None:
        """Return what is left to the lender; a child that never started returns its node too. Idempotent.

        A ledger with open holds or loans cannot repay.
        """
        if self.repaid or self.lender is None:
            return
        if self.open:
            raise AssertionError(f"repaid with {self.open} holds or loans open")
        self.repaid = True
        self.lender.open -= 1
        self.lender.tokens += self.tokens
        self.lender.nodes += self.nodes + (0 if started else 1)
        if self.lender.money is not None:
            self.lender.money += self.money or 0
        self.tokens = self.nodes = 0

    def close_hold(self, *, tokens: int, money: int) -> None:
        """Take back the rest of a settled hold."""
        self.open -= 1
        self.tokens += tokens
        if self.money is not None:
            self.money += money

    def charge(self, *, tokens: int, money: int = 0) -> None:
        """Take what was used beyond a hold. What is not there cannot be taken: the rest exceeds the budget."""
        self.tokens -= min(tokens, self.tokens)
        if self.money is not None:
            self.money -= min(money, self.money)

    def _take(self, *, tokens: int, nodes: int, money: int) -> None:
        short = tokens > self.tokens or nodes > self.nodes
        if self.money is not None and money > self.money:
            short = True
        # Without the last test a tree without tokens could hold and lend zero tokens forever.
        if short or min(tokens, nodes, money) < 0 or tokens < 1:
            raise BudgetExhausted(
                f"asked for {tokens} tokens and {nodes} nodes, have {self.tokens} tokens and {self.nodes} nodes"
            )
        self.open += 1
        self.tokens -= tokens
        self.nodes -= nodes
        if self.money is not None:
            self.money -= money


def shares(
    lendable: int,
    asked: Sequence[int | None],
    *,
    least: int,
    parent_share: float = 1.0,
    sizes: Sequence[float] | None = None,
) -> list[int]:
    """Split `lendable` tokens among children: what each asked for, scaled to fit; equal shares for the others.

    With `sizes`, one for each child, the others get the same tokens in all, in proportion to their sizes.

    The parent counts as `parent_share` more children, if every child still gets `least`. A share below `least` becomes
    0: the child is refused. When `least` is too much for all, the first children get it: a few that can answer are
    better than many that cannot.

    Example:
        shares(900, [None, None], least=100)      # [300, 300]
        shares(900, [None, None], least=100, parent_share=0.25)  # [400, 400]
        shares(900, [600, 600], least=100)        # [450, 450]
        shares(900, [5000, None], least=100)      # [800, 100]
        shares(900, [None, None], least=100, sizes=[1, 3])  # [150, 450]
        shares(250, [None] * 4, least=100)        # [125, 125, 0, 0]
    """
    granted = [0] * len(asked)
    candidates = [i for i, tokens in enumerate(asked) if tokens is None or tokens >= least]
    while candidates:
        total = sum(asked[i] or 0 for i in candidates)
        not_asking = sum(1 for i in candidates if asked[i] is None)
        # A child that asks for a huge number cannot starve its siblings.
        for_asking = max(0, min(total, lendable - not_asking * least))
        rest = lendable - for_asking
        equal = rest * SHARE_UNIT // (not_asking * SHARE_UNIT + round(parent_share * SHARE_UNIT)) if not_asking else 0
        if not_asking and equal < least:
            equal = rest // not_asking
        for i in candidates:
            tokens = asked[i]
            granted[i] = equal if tokens is None else tokens * for_asking // total
        if sizes is not None and equal >= least:
            others = [i for i in candidates if asked[i] is None]
            for i, part in zip(
                others, by_size(equal * len(others), [sizes[i] for i in others], least=least), strict=True
            ):
                granted[i] = part
        if min(granted[i] for i in candidates) >= least:
            return granted
        granted[candidates.pop()] = 0
    return granted


def by_size(tokens: int, sizes: Sequence[float], *, least: int) -> list[int]:
    """Split exactly `tokens` in proportion to sizes, with `least` for everyone; that must be possible.

    A part below `least` is raised to it, and the rest is split among the others. What rounding leaves goes, one token
    each, to the parts that lost most by it, the first of equals before the others.

    Example:
        by_size(600, [1, 3], least=100)   # [150, 450]
        by_size(600, [1, 11], least=100)  # [100, 500]
        by_size(100, [1, 1, 1], least=1)  # [34, 33, 33]
    """
    weights = [Fraction(size) for size in sizes]
    if not sum(weights):
        weights = [Fraction(1)] * len(sizes)
    parts = [Fraction(least)] * len(sizes)
    above = list(range(len(sizes)))
    while above:
        rest, total = tokens - least * (len(sizes) - len(above)), sum(weights[i] for i in above)
        small = [i for i in above if rest * weights[i] < least * total]
        if not small:
            for i in above:
                parts[i] = rest * weights[i] / total
            break
        above = [i for i in above if i not in small]
    whole = [int(part) for part in parts]
    by_loss = sorted(range(len(sizes)), key=lambda i: whole[i] - parts[i])
    for i in by_loss[: tokens - sum(whole)]:
        whole[i] += 1
    return whole
