"""Gradients of one optimiser step, micro-batch by micro-batch."""

# pyright: standard

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress

import torch
from torch import Tensor

from ramet.train.local.forward import Scores, row_logprobs
from ramet.train.local.losses import Term, terms, token_loss
from ramet.train.local.packing import plan_batches
from ramet.train.local.policy import Policy
from ramet.train.local.transfer import to_device
from ramet.train.loss import Loss, Selection, select
from ramet.train.metrics import Stats
from ramet.train.rows import Row

LogprobFn = Callable[[Sequence[Row]], Tensor]  # log-probs of rows under other weights, in the order of `Scores`


def forward_backward(
    policy: Policy,
    rows: Sequence[Row] | Selection,
    *,
    loss: Loss,
    micro_batch_tokens: int,
    temperature: float = 1.0,
    version: int | None = None,
    entropy: bool = False,
    reference: LogprobFn | None = None,
    after_backward: Callable[[], None] = lambda: None,
) -> Stats:
    """Add the gradient of the whole step's loss to the policy's parameters, one micro-batch at a time.

    All `rows` are computed, or those of a selection; denominators count the others too. With `version`, the gap between
    sampler and learner covers only rows sampled by that version: older ones differ. Rows with `proximal` log-probs have
    none here: the weights may have changed since they were sampled. `after_backward` is called after every micro-batch.
    """
    selected = rows if isinstance(rows, Selection) else select(rows, loss, skip_zero_credit=False)
    batches = plan_batches(selected.rows, tokens=micro_batch_tokens, packed=policy.packs)
    sums = _Sums()
    for batch in batches:
        scores = row_logprobs(policy, batch, temperature=temperature, entropy=entropy)
        known = terms(batch, selected.totals, loss, like=scores.logprobs)
        term = token_loss(
            scores.logprobs,
            known.behaviour,
            known.credit,
            loss,
            proximal=known.proximal,
            reference=_without_gradient(reference, batch) if loss.kl else None,
        )
        weighted = (term.loss * known.share).sum()
        weighted.backward()
        after_backward()
        gaps = None if known.proximal is not None else _gaps(scores.logprobs, known.behaviour, batch, version)
        sums.add(weighted, scores, term, gaps)
    return sums.stats(selected, num_batches=len(batches))


def current_logprobs(
    policy: Policy, rows: Sequence[Row], *, micro_batch_tokens: int, temperature: float
) -> list[tuple[float, ...]]:
    """Log-probs of the trained tokens of each row, in the shape of `Row.logprobs`: 0 where the mask is False."""
    found: dict[int, tuple[float, ...]] = {}
    for batch in plan_batches(rows, tokens=micro_batch_tokens, packed=policy.packs):
        with torch.no_grad():
            values = iter(row_logprobs(policy, batch, temperature=temperature).logprobs.double().tolist())
        for row in batch:
            found[id(row)] = tuple(next(values) if trained else 0.0 for trained in row.mask)
    return [found.get(id(row), (0.0,) * len(row.mask)) for row in rows]


def _without_gradient(logprobs: LogprobFn | None, batch: Sequence[Row]) -> Tensor | None:
    if logprobs is None:
        return None
    with torch.no_grad():
        return logprobs(batch)


def _gaps(logprobs: Tensor, behaviour: Tensor | None, batch: Sequence[Row], version: int | None) -> Tensor | None:
    if behaviour is None:
        return None
    gaps = (logprobs.detach() - behaviour).abs()
    if version is None:
        return gaps
    fresh = [row.versions == (version,) for row in batch for _ in range(row.num_trained)]
    # By index, not by mask: a mask would make the device wait.
    return gaps[to_device(list(compress(range(len(fresh)), fresh)), gaps.device, dtype=torch.long)]


@dataclass(slots=True)
class _Sums:
    """Numbers of the micro-batches so far, on the device until the step is over."""

    losses: list[Tensor] = field(default_factory=list)
    clipped: list[Tensor] = field(default_factory=list)
    gaps: list[Tensor] = field(default_factory=list)
    entropies: list[Tensor] = field(default_factory=list)
    kls: list[Tensor] = field(default_factory=list)
    num_read: int = 0

    def add(self, loss: Tensor, scores: Scores, term: Term, gaps: Tensor | None) -> None:
        self.losses.append(loss.detach()[None])
        self.clipped.append(term.clipped)
        self.gaps += [] if gaps is None else [gaps]
        self.entropies += [] if scores.entropies is None else [scores.entropies]
        self.kls += [] if term.kl is None else [term.kl]
        self.num_read += scores.num_read

    def stats(self, selected: Selection, *, num_batches: int) -> Stats:
        gaps = _joined(self.gaps)
        return Stats(
            loss=float(_joined(self.losses).sum()),
            num_rows=selected.num_rows,
            num_skipped=selected.num_skipped,
            num_trained=selected.totals.tokens,
            num_tokens=selected.num_tokens,
            num_read=self.num_read,
            num_batches=num_batches,
            clip_fraction=_mean(self.clipped),
            logprob_gap=_mean(self.gaps),
            logprob_gap_max=float(gaps.max()) if len(gaps) else None,
            entropy=_mean(self.entropies),
            kl=_mean(self.kls),
        )


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.double() for part in parts]) if parts else torch.zeros(0, dtype=torch.float64)


def _mean(parts: Sequence[Tensor]) -> float | None:
    joined = _joined(parts)
    return float(joined.mean()) if len(joined) else None
