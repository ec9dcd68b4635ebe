"""A backend small enough for sums by hand: a coin that shows token 1 with probability sigmoid(theta), and plain SGD.

A row is a context of one token and what the coin showed after it. At theta 0 both tokens have probability 1/2. The
gradient of the log-prob of token 1 by theta is 1 - p, that of token 0 is -p.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from math import log

import torch
from torch import Tensor

from ramet.train.local.losses import terms, token_loss
from ramet.train.loss import Loss, rows_to_compute, totals
from ramet.train.metrics import Stats
from ramet.train.rows import Row

CONTEXT = 7


def shown(*tokens: int, **known: object) -> Row:
    """What the coin showed, recorded at theta 0."""
    recorded = (0.0, *(log(0.5) for _ in tokens))
    given = {"logprobs": recorded, "advantage": 1.0, "tree_id": "t", "versions": (0,), **known}
    mask = (False,) + (True,) * len(tokens)
    return Row(token_ids=(CONTEXT, *tokens), mask=mask, **given)  # pyright: ignore[reportArgumentType]


class Coin:
    """Only what updates need. `theta` after every update is in `path`."""

    def __init__(self, *, reference: float = 0.0) -> None:
        self.theta = torch.zeros((), dtype=torch.float64, requires_grad=True)
        self.reference = torch.tensor(reference, dtype=torch.float64)
        self.version = 0
        self.path: list[float] = []
        self.asked = 0  # calls of `logprobs`

    async def forward_backward(self, rows: Sequence[Row], *, loss: Loss, temperature: float) -> Stats:
        computed = rows_to_compute(rows, loss)
        now = _logprobs(self.theta, computed)
        known = terms(computed, totals(rows), loss, like=now)
        term = token_loss(
            now,
            known.behaviour,
            known.credit,
            loss,
            proximal=known.proximal,
            reference=_logprobs(self.reference, computed) if loss.kl else None,
        )
        total = (term.loss * known.share).sum()
        total.backward()
        return Stats(
            loss=float(total.detach()),
            num_rows=len(rows),
            num_skipped=len(rows) - len(computed),
            num_trained=sum(row.num_trained for row in rows),
            num_tokens=0,
            num_read=0,
            num_batches=1,
            clip_fraction=float(term.clipped.double().mean()),
            logprob_gap=None,
            logprob_gap_max=None,
            entropy=None,
            kl=None if term.kl is None else float(term.kl.mean()),
        )

    async def logprobs(self, rows: Sequence[Row], *, temperature: float) -> list[tuple[float, ...]]:
        self.asked += 1
        return [(0.0, *_logprobs(self.theta.detach(), [row]).tolist()) for row in rows]

    async def optim_step(self, *, learning_rate: float, last: bool = True) -> float:
        grad = self.theta.grad
        norm = 0.0 if grad is None else abs(float(grad))
        with torch.no_grad():
            self.theta -= 0.0 if grad is None else learning_rate * grad
        self.version = self.version + 1 if last else self.version
        self.path.append(float(self.theta.detach()))
        await self.discard()
        return norm

    async def discard(self) -> None:
        self.theta.grad = None


def _logprobs(theta: Tensor, rows: Sequence[Row]) -> Tensor:
    tokens = [token for row in rows for token in compress(row.token_ids, row.mask)]
    signs = torch.tensor([1.0 if token == 1 else -1.0 for token in tokens], dtype=torch.float64)
    return torch.nn.functional.logsigmoid(signs * theta)
