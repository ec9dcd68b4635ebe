"""Lines of training plots: running means, and how many trees or nodes are behind a point."""

# matplotlib's types are partial.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ramet.report.cumulative import cost_axis
from ramet.report.figures import Picture, legend, make_picture, percent_axis, whole_numbers
from ramet.report.read import as_number
from ramet.report.style import Look, canvas, indexed_look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMOOTH_FROM = 30  # steps; shorter runs are not smoothed
MAX_MARKERS = 25  # longer lines have markers at some points only
FEW = 16  # trees or nodes: points of fewer are drawn pale
Metrics = Sequence[Mapping[str, Any]]
Value = Callable[[Mapping[str, Any]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series of a plot: (step or cost, value) pairs, and how many trees or nodes each of them counts."""

    label: str
    points: tuple[tuple[float, float], ...]
    look: Look
    counts: tuple[float, ...] = ()  # empty: not known


def make_line(metrics: Metrics, value: Value, label: str, place: int, *, count: Value | None = None) -> Line:
    """The values of a metric by step, and how many trees or nodes each of them counts."""
    points: list[tuple[float, float]] = []
    counts: list[float] = []
    for number, record in enumerate(metrics):
        y, step = as_number(value(record)), as_number(record.get("step", number))
        if y is not None and step is not None:
            points.append((step + 1.0, y))
            counts.append(0.0 if count is None else as_number(count(record)) or 0.0)
    look = indexed_look(place, turn=place // 6)
    return Line(label=label, points=tuple(points), look=look, counts=tuple(counts) if any(counts) else ())


def line_picture(
    lines: Sequence[Line], *, name: str, title: str, caption: str, share: bool = False, cost: str | None = None
) -> Picture | None:
    """One plot of several lines; None if no line has a point. Their n is in the legend, or once in the caption."""
    lines = [line for line in lines if line.points]
    if not lines:
        return None
    numbers = {_number(line) for line in lines}
    if len(numbers) > 1:
        lines = [replace(line, label=line.label + _number(line)) for line in lines]
    figure, axes = canvas(height=2.7)
    few = FEW if any(count >= FEW for line in lines for count in line.counts) else 0  # not everything is pale
    for line in lines:
        _draw(axes, line, few)
    if cost is None:
        axes.set_xlabel("step")
        whole_numbers(axes)
    else:
        cost_axis(axes, cost, max(x for line in lines for x, _ in line.points))
    if share:
        percent_axis(axes)
    if len(lines) > 1:
        legend(figure, axes)
    same = numbers.pop() if len(numbers) == 1 else ""
    return make_picture(figure, name=name, title=title, caption=caption + _how_to_read(lines, same, few))


def _number(line: Line) -> str:
    """How many trees or nodes are behind a point, on average."""
    return f" (n={math.fsum(line.counts) / len(line.counts):,.0f})" if line.counts else ""


def _how_to_read(lines: Sequence[Line], same: str, few: int) -> str:
    smooth = any(len(line.points) >= SMOOTH_FROM for line in lines)
    told = " Thin lines are single steps, thick lines a running mean." if smooth else ""
    if any(line.counts for line in lines):
        told += f" n per step: {same[4:-1]}." if same else " n is the mean number per step."
    if any(count < few for line in lines for count in line.counts):
        told += f" Where it is below {few}, lines are pale."
    return told


def _draw(axes: Axes, line: Line, least: int) -> None:
    """A short line with markers; a long one thin, with its running mean on top; pale where n is below `least`."""
    x = [step for step, _ in line.points]
    y = [value for _, value in line.points]
    counts = list(line.counts)
    if len(y) >= SMOOTH_FROM:
        solid = [value if not counts or counts[place] >= least else math.nan for place, value in enumerate(y)]
        axes.plot(x, solid, color=line.look.light, linewidth=0.6, alpha=0.4)
        reach = max(3, len(y) // 15)
        y, counts = running_mean(y, reach, weights=counts), running_mean(counts, reach)
    few = [count < least for count in counts] or [False] * len(y)
    every = 1 if len(y) <= MAX_MARKERS else len(y) // 8
    if any(few):
        near = [few[place] or few[max(0, place - 1)] or few[min(len(few) - 1, place + 1)] for place in range(len(few))]
        pale = [value if near[place] else math.nan for place, value in enumerate(y)]
        axes.plot(x, pale, **line.look.line(linewidth=0.8, alpha=0.4, markersize=2.5, markevery=every))
    shown = [math.nan if few[place] else value for place, value in enumerate(y)]
    axes.plot(x, shown, label=line.label, **line.look.line(markevery=every))


def running_mean(values: Sequence[float], reach: int, *, weights: Sequence[float] = ()) -> list[float]:
    """Each value averaged with up to `reach` neighbours on each side, the same number on both.

    Example:
        running_mean([0.0, 3.0, 6.0, 0.0], 1)  # [0.0, 3.0, 3.0, 0.0]
        running_mean([0.0, 3.0, 6.0], 1, weights=[1.0, 1.0, 2.0])  # [0.0, 3.75, 6.0]
    """
    means: list[float] = []
    for place in range(len(values)):
        near = min(reach, place, len(values) - 1 - place)
        window = slice(place - near, place + near + 1)
        shares = [weight or 1e-9 for weight in weights[window]] or [1.0] * (2 * near + 1)
        products = [value * weight for value, weight in zip(values[window], shares, strict=True)]
        means.append(math.fsum(products) / math.fsum(shares))
    return means
