"""Notice when a run has failed: its success has collapsed, or there has been nothing to learn for long.

A run whose trees have ceased to delegate goes on, because that may be what pays; a note gives the numbers.

Decisions follow from the logged metrics alone, so a resumed run decides as one that was never interrupted. A run that
stopped and is resumed starts with a clean record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ramet import plugins
from ramet.errors import ConfigError
from ramet.train.settings import StopConfig

STOPPED = "stopped"  # the metric of the last step: why the run stopped
CEASED = "delegation_note"  # the metric of the step at which trees have ceased to delegate
OFTEN, HARDLY = 0.1, 0.01  # shares of trees that delegate
Record = Mapping[str, Any]
StopRule = Callable[[Sequence[Record]], object]


def stop_rule(stop: StopConfig) -> StopRule | None:
    """The user's own function of `stop.when`; None without one."""
    return plugins.load(stop.when, "function") if stop.when else None


def stop_reason(records: Sequence[Record], stop: StopConfig, own: StopRule | None = None) -> str | None:
    """Why a run with these metrics stops after the last of them, as one sentence; None: it goes on."""
    stops = [place for place, record in enumerate(records) if STOPPED in record]
    recent = records[stops[-1] + 1 :] if stops else records
    return _without_signal(recent, stop) or _collapsed(recent, stop) or (_own_reason(recent, own) if own else None)


def _own_reason(records: Sequence[Record], own: StopRule) -> str | None:
    reason = own(records)
    if reason is not None and not isinstance(reason, str):
        raise ConfigError(f"stop.when must return a text, the reason to stop, or None; got {reason!r}")
    return reason or None


def _without_signal(records: Sequence[Record], stop: StopConfig) -> str | None:
    wanted = stop.no_signal_steps
    if not wanted or len(records) < wanted or not all(map(_is_flat, records[-wanted:])):
        return None
    return f"no signal in {wanted} steps: all trees of each group earned the same"


def _is_flat(record: Record) -> bool:
    return "groups" in record and record["groups"] == record["flat"]


def _collapsed(records: Sequence[Record], stop: StopConfig) -> str | None:
    means = moving_means([record.get("success") for record in records], stop.window)
    best = max(means, default=0.0)
    if not means or best < stop.least or means[-1] >= stop.fraction * best:
        return None
    return f"success fell to {means[-1]:.1%} over the last {stop.window} steps, from {best:.1%} at its best"


def delegation_note(records: Sequence[Record], window: int) -> str | None:
    """One sentence at the step at which trees have ceased to delegate; None at every other step."""
    means = moving_means([record.get("delegated") for record in records], window)
    if len(means) < 2 or means[0] < OFTEN or not means[-1] < HARDLY <= min(means[:-1]):
        return None
    early = [record for record in records if record.get("delegated") is not None][:window]
    return (
        f"trees have ceased to delegate: {means[-1]:.1%} over the last {window} steps, {means[0]:.0%} over the first. "
        f"Of those first trees, {_right(early, delegated=True)} that delegated were right, "
        f"and {_right(early, delegated=False)} of the others"
    )


def _right(records: Sequence[Record], *, delegated: bool) -> str:
    """The share of right trees among those of the steps that delegated, or did not."""
    right = trees = 0.0
    for record in records:
        share = record.get("success_delegated" if delegated else "success_alone")
        with_clones = record.get("trees_delegated", 0)
        number = with_clones if delegated else record.get("trees", 0) - with_clones
        if share is not None:
            right, trees = right + share * number, trees + number
    return f"{right / trees:.0%}" if trees else "none"


def moving_means(values: Sequence[float | None], window: int) -> list[float]:
    """The mean of each value and those before it, `window` in all. Steps without a value are left out.

    Example:
        moving_means([0.0, 0.5, None, 1.0], 2)  # [0.25, 0.75]
    """
    known = [value for value in values if value is not None]
    return [math.fsum(known[end - window : end]) / window for end in range(window, len(known) + 1)]


def evaluation_value(record: Record) -> float | None:
    """The number that the best model is chosen by; None where no evaluation was due."""
    value = record.get("eval_success")
    return record.get("eval_score") if value is None else value
