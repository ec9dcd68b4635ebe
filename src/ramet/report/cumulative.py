"""What the steps of a training run have cost so far: generated tokens, and seconds."""

# matplotlib's types are partial.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ramet.report.read import as_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOKENS, SECONDS = "tokens", "seconds"
UNITS = ((7200.0, 3600.0, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))  # from so many seconds on


def cumulative_costs(metrics: Sequence[Mapping[str, Any]], cost: str) -> dict[float, float]:
    """The cost of all steps up to and including each step. A step whose cost is not known ends the list.

    A run that was resumed may have logged a step twice: the later record is that of the weights that were kept.

    Example:
        cumulative_costs([{"step": 0, "trees": 8, "tokens": 10.0}, {"step": 1, "trees": 8, "tokens": 20.0}], "tokens")
        # {0.0: 80.0, 1.0: 240.0}
    """
    by_step = {as_number(record.get("step", place)): record for place, record in enumerate(metrics)}
    total = 0.0
    costs: dict[float, float] = {}
    for step, record in sorted((step, record) for step, record in by_step.items() if step is not None):
        own = step_cost(record, cost)
        if own is None:
            break
        total += own
        costs[step] = total
    return costs


def step_cost(record: Mapping[str, Any], cost: str) -> float | None:
    """Tokens that a step generated, replays included, or seconds that it took; None if it was not logged."""
    names = ("trees", "tokens") if cost == TOKENS else ("collect_s", "learn_s")
    first, second = (as_number(record.get(name)) for name in names)
    if first is None or second is None:
        return None
    if cost == SECONDS:
        return first + second
    return first * second + (as_number(record.get("replay_tokens")) or 0.0)


def cost_axis(axes: Axes, cost: str, most: float) -> None:
    """An x axis for a cost: tokens with thousands and millions, time in the unit that suits its length."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    def label(value: float, place: int) -> str:
        del place
        return short_number(value / size)

    times = [(size, name) for least, size, name in UNITS if most >= least]
    size, name = times[0] if cost == SECONDS else (1.0, "generated tokens")
    axes.set_xlabel(name)
    axes.xaxis.set_major_locator(FixedLocator([size * tick for tick in MaxNLocator(6).tick_values(0, most / size)]))
    axes.xaxis.set_major_formatter(FuncFormatter(label))
    axes.set_xlim(-0.03 * most, 1.03 * most)


def short_number(value: float) -> str:
    """A number with k or M.

    Example:
        short_number(1_500_000)  # "1.5M"
        short_number(80_000)     # "80k"
    """
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{sign}"
    return f"{value:.3g}"
