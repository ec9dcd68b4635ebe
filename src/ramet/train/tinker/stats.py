"""The numbers of an update, from the log-probs that a server sends back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ramet.train.loss import totals
from ramet.train.metrics import Stats
from ramet.train.rows import Row
from ramet.train.tinker.terms import Numbers, Terms, recorded

Computed = tuple[Row, Numbers, Terms, float]  # a row, its log-probs now, its terms, and its share of the step


def make_stats(rows: Sequence[Row], computed: Sequence[Computed], *, version: int) -> Stats:
    """As the local backend counts them. The entropy of a whole distribution is not known here."""
    terms = [term for _, _, term, _ in computed]
    gaps = _joined([gap for row, now, _, _ in computed if (gap := _gap(row, now, version)) is not None])
    kls = [term.kl for term in terms if term.kl is not None]
    return Stats(
        loss=math.fsum(float(np.sum(term.loss)) * share for _, _, term, share in computed),
        num_rows=len(rows),
        num_skipped=sum(row.num_trained > 0 for row in rows) - len(computed),
        num_trained=totals(rows).tokens,
        num_tokens=sum(len(row.read) for row in rows),
        num_read=sum(len(row.read) for row, _, _, _ in computed),
        num_batches=1 if computed else 0,
        clip_fraction=_mean(_joined([term.clipped for term in terms])),
        logprob_gap=_mean(gaps),
        logprob_gap_max=float(np.max(gaps)) if len(gaps) else None,
        entropy=None,
        kl=_mean(_joined(kls)),
    )


def _gap(row: Row, now: Numbers, version: int) -> Numbers | None:
    """How far sampler and learner are apart, on a row that this version sampled."""
    then = recorded(row)
    return None if then is None or row.proximal is not None or row.versions != (version,) else np.abs(now - then)


def _joined(parts: Sequence[Any]) -> Numbers:
    return np.concatenate([np.asarray(part, dtype=np.float64) for part in parts]) if parts else np.zeros(0)


def _mean(values: Numbers) -> float | None:
    return float(np.mean(values)) if len(values) else None
