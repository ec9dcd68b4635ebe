"""Which loss is minimised, and how much every token weighs in a step. Plain numbers: a backend does the rest.

Denominators are counted over the whole optimiser step before its first micro-batch, so neither the split into
micro-batches nor the order of rows can change a result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ramet.errors import ConfigError
from ramet.train.rows import Row

Kind = Literal["ppo", "cispo", "plain"]
Aggregation = Literal["token", "node", "tree", "constant"]
KlGradient = Literal["weighted", "plain"]
CLIP_BOUNDS: Mapping[Kind, tuple[float, float]] = {"ppo": (0.8, 1.2), "cispo": (0.0, 5.0), "plain": (0.0, float("inf"))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A policy-gradient loss and its settings.

    `ppo` drops the gradient of a token whose ratio is out of `bounds`; `cispo` clips the ratio and keeps the gradient;
    `plain` has no ratio (with advantage 1 it is supervised learning). With `ceiling`, tokens of older policies get an
    importance weight of at most that, and the ratio measures only what changed since the update began.

    `kl` pulls towards a reference model, by Schulman's k3 estimator on the sampled tokens. `kl_gradient` is `weighted`:
    the estimate is multiplied by the ratio, so that its gradient is that of KL(policy || reference), without bias; or
    `plain`, as GRPO and SELFCEST have it: the estimate alone, whose gradient is that of KL(reference || policy).

    `aggregation` decides what has equal weight: every `token`; every `node`, whatever its length; every `tree`,
    however many nodes it has; or `constant`: the sum is divided by `divisor`.
    """

    kind: Kind = "cispo"
    bounds: tuple[float, float] | None = None  # of the ratio; None: (0.8, 1.2) for ppo, (0, 5) for cispo
    dual_clip: float | None = None  # ppo: bound on the ratio of tokens with a negative advantage
    ceiling: float | None = None
    kl: float = 0.0  # coefficient of the KL divergence from the reference model
    kl_gradient: KlGradient = "weighted"  # plain: not multiplied by the ratio
    aggregation: Aggregation = "tree"
    divisor: float = 1.0  # of aggregation `constant`

    def __post_init__(self) -> None:
        if self.kind not in CLIP_BOUNDS:
            raise ConfigError(f"loss.kind is one of {', '.join(CLIP_BOUNDS)}; got {self.kind!r}")
        if self.aggregation not in ("token", "node", "tree", "constant"):
            raise ConfigError(f"loss.aggregation is token, node, tree or constant; got {self.aggregation!r}")
        if self.kl_gradient not in ("weighted", "plain"):
            raise ConfigError(f"loss.kl_gradient is weighted or plain; got {self.kl_gradient!r}")
        if not 0 <= self.kl < math.inf:
            raise ConfigError(f"loss.kl is a number from 0 up; got {self.kl}")
        if not 0 < self.divisor < math.inf:
            raise ConfigError(f"loss.divisor is a number above 0; got {self.divisor}")
        self._check_clipping()

    def _check_clipping(self) -> None:
        """Refuse limits that would train in the wrong direction, or not at all."""
        if self.bounds is not None and not 0 <= self.bounds[0] < self.bounds[1]:
            raise ConfigError(f"loss.bounds are two numbers from 0 up, the lower one first; got {list(self.bounds)}")
        if self.ceiling is not None and not self.ceiling > 0:
            raise ConfigError(f"loss.ceiling is a number above 0; got {self.ceiling}")
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise ConfigError(f"loss.dual_clip is a number above 1; got {self.dual_clip}")


def idle_settings(loss: Loss, *, inside: str = "loss.") -> list[str]:
    """A sentence for every setting that has no effect, as where a word replaces the kind of loss of a recipe."""
    kind, aggregation = f"kind={loss.kind}", f"aggregation={loss.aggregation}"
    conditions = {
        "dual_clip": (loss.kind == "ppo", f"{kind}: it is for ppo"),
        "bounds": (loss.kind != "plain", f"{kind}: it is for ppo and cispo"),
        "divisor": (loss.aggregation == "constant", f"{aggregation}: it is for constant"),
        "kl_gradient": (loss.kl > 0, f"kl={loss.kl:g}"),
    }
    return [
        f"{inside}{name} has no effect with {inside}{where}"
        for name, (used, where) in conditions.items()
        if not used and getattr(loss, name) != getattr(Loss(), name)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Denominators of one optimiser step: counts, into which no weight enters."""

    tokens: int
    node_tokens: Mapping[tuple[str, int], int]  # by tree id and node index
    tree_nodes: Mapping[str, int]  # by tree id


def totals(rows: Sequence[Row]) -> Totals:
    """Count the trained tokens of a step. Rows without any are left out."""
    node_tokens: Counter[tuple[str, int]] = Counter()
    for row in rows:
        if trained := row.num_trained:
            node_tokens[row.tree_id, row.node] += trained
    tree_nodes = Counter(tree_id for tree_id, _ in node_tokens)
    return Totals(tokens=node_tokens.total(), node_tokens=node_tokens, tree_nodes=tree_nodes)


def share(row: Row, totals: Totals, loss: Loss) -> float:
    """The weight of one token of `row` in the step. All shares add up to 1, except for `constant`."""
    tokens = totals.node_tokens[row.tree_id, row.node]
    match loss.aggregation:
        case "token":
            return 1 / totals.tokens
        case "node":
            return 1 / (tokens * len(totals.node_tokens))
        case "tree":
            return 1 / (tokens * totals.tree_nodes[row.tree_id] * len(totals.tree_nodes))
        case "constant":
            return 1 / loss.divisor


def rows_to_compute(rows: Sequence[Row], loss: Loss, *, skip_zero_credit: bool = True) -> list[Row]:
    """The rows that can change a gradient. A row whose credit is zero cannot, unless it has a KL term.

    Leave the others out of the forward pass, but not out of `totals`: a share depends on all rows of the step.
    """
    skips = skip_zero_credit and not loss.kl
    return [row for row in rows if True in row.mask and not (skips and row.advantage * row.weight == 0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The rows of an update that can change a gradient, and what is counted over all of its rows."""

    rows: Sequence[Row]
    totals: Totals
    num_rows: int
    num_skipped: int  # rows that are not computed although they have trained tokens
    num_tokens: int  # that a model would read for all rows


def select(rows: Sequence[Row], loss: Loss, *, skip_zero_credit: bool = True) -> Selection:
    """What has to be computed of `rows`. With `skip_zero_credit`, most nodes of an easy step need not be."""
    computed = rows_to_compute(rows, loss, skip_zero_credit=skip_zero_credit)
    return Selection(
        rows=computed,
        totals=totals(rows),
        num_rows=len(rows),
        num_skipped=sum(True in row.mask for row in rows) - len(computed),
        num_tokens=sum(len(row.read) for row in rows),
    )


def token_advantages(rows: Sequence[Row], loss: Loss, *, counted: Totals | None = None) -> list[float]:
    """One advantage per row, the same for each of its tokens, so that the *sum* of token losses is the step's loss.

    For backends that sum token losses and know neither weights nor aggregation. Rows whose advantage is 0 need not be
    sent to them. `counted` are the totals of the step, where these are some of its rows.
    """
    counted = counted or totals(rows)
    return [row.advantage * row.weight * share(row, counted, loss) if row.num_trained else 0.0 for row in rows]
