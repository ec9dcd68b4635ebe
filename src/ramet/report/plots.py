"""Plots of evaluations: accuracy against cost, accuracy by bucket, delegation by problem size."""

# matplotlib's types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ramet.draw import one_line
from ramet.evaluate.cells import Cell, accuracy_rate, on_front
from ramet.evaluate.format import method_label
from ramet.evaluate.methods import is_oracle
from ramet.evaluate.record import Record
from ramet.evaluate.tables import Section
from ramet.report.figures import Picture, add_legend, make_picture, percent_axis, token_axis, whole_numbers
from ramet.report.grouping import SIZE, bucket_word
from ramet.report.style import WIDTH, Fill, Look, canvas, light, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_POINTS = 10  # sizes on one axis; more are merged
CROWDED = 16  # points that fit into a plot of the usual width
FEW = 10  # items: points of fewer are drawn pale
LOG_FROM = 8  # largest over smallest size from which on the axis is logarithmic
PALE: Mapping[str, Any] = {"alpha": 0.4}
DODGE = 0.13  # distance between neighbouring series, in bucket widths
READING = 10  # times as many tokens read as generated, from which on reading is a cost of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAxis:
    """What accuracy is plotted against."""

    name: str
    title: str
    label: str
    counts: str  # what the axis counts, for the caption
    cost: Callable[[Cell], float]


GENERATED = CostAxis(
    name="accuracy-tokens",
    title="Accuracy against tokens",
    label="tokens generated, mean per item",
    counts="all generated tokens, including clones and votes",
    cost=lambda cell: cell.generated,
)
PROCESSED = CostAxis(
    name="accuracy-processed",
    title="Accuracy against tokens read and generated",
    label="tokens read and generated, mean per item",
    counts="all tokens that are read, cached ones included, and generated",
    cost=lambda cell: cell.processed,
)
CRITICAL_PATH = CostAxis(
    name="accuracy-critical-path",
    title="Accuracy against the critical path",
    label="tokens on the critical path, mean per item",
    counts="tokens on the critical path",
    cost=lambda cell: cell.critical_path,
)


def evaluation_pictures(section: Section, *, name: str) -> list[Picture]:
    """All plots of one section."""
    reads = any(cell.processed > (1 + READING) * cell.generated for cell in section.cells)
    axes = [GENERATED, PROCESSED, CRITICAL_PATH] if reads else [GENERATED, CRITICAL_PATH]
    pictures = [
        *(_accuracy(section, axis, name=f"{name}{axis.name}") for axis in axes),
        _buckets(section, name=f"{name}buckets"),
        _by_size(section, DELEGATION, name=f"{name}delegation"),
        _by_size(section, DEPTH, name=f"{name}depth"),
    ]
    return [picture for picture in pictures if picture is not None]


Series = tuple[str, str]  # run and method


def series_looks(section: Section) -> dict[Series, Look]:
    """Colour and marker show the method; dashes and filling show the run."""
    by_method = looks(section.methods)
    dashes: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 1.5, 1, 1.5)))
    fills: tuple[Fill, ...] = ("none", "full", "left", "bottom")
    styles: dict[Series, Look] = {}
    for cell in section.cells:
        look = by_method[cell.method]
        if section.several_runs:
            place = section.runs.index(cell.run)
            look = replace(look, dashes=dashes[place % len(dashes)], fill=fills[place % len(fills)])
        styles[cell.run, cell.method] = look
    return styles


def _series_cells(section: Section, series: Series) -> list[Cell]:
    return [cell for cell in section.cells if (cell.run, cell.method) == series]


def _accuracy(section: Section, axis: CostAxis, *, name: str) -> Picture:
    """Accuracy against cost, a line per series through its budgets."""
    figure, axes = canvas(height=3.1)
    cost = axis.cost
    for series, look in series_looks(section).items():
        cells = _series_cells(section, series)
        label = section.label(*series)
        _with_bars(axes, [(cost(cell), cell) for cell in cells], look, label=label, oracle=is_oracle(series[1]))
    ringed = on_front(section.cells, cost)
    _front(axes, [(cost(cell), cell.accuracy.value) for cell in section.cells if cell.key in ringed])
    token_axis(axes, [cost(cell) for cell in section.cells])
    axes.set_xlabel(axis.label)
    percent_axis(axes, "accuracy", most=max(cell.accuracy.high for cell in section.cells))
    series_legend(figure, axes, section, section.methods)
    counts = [cell.items for cell in section.cells]
    return make_picture(
        figure,
        name=name,
        title=axis.title,
        caption=f"Up and to the left is better. A point is one budget, {number_label(counts)}; the x axis counts "
        f"{axis.counts}; bars are 95% intervals. Ringed points on the grey steps are the front: no cheaper point is as "
        "accurate.",
    )


def _with_bars(axes: Axes, points: Sequence[tuple[float, Cell]], look: Look, *, label: str, oracle: bool) -> None:
    points = sorted(points, key=lambda point: point[0])
    across = [cost for cost, _ in points]
    up = [cell.accuracy.value for _, cell in points]
    down = [cell.accuracy.value - cell.accuracy.low for _, cell in points]
    over = [cell.accuracy.high - cell.accuracy.value for _, cell in points]
    axes.errorbar(across, up, yerr=[down, over], fmt="none", ecolor=look.light, elinewidth=1, capsize=2, alpha=0.75)
    axes.plot(across, up, label=label, zorder=3, **look.line(linewidth=0.9 if oracle else 1.5))


def _front(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Steps: the best accuracy for at most this cost."""
    points = sorted(set(points))
    across = [cost for cost, _ in points]
    up = [value for _, value in points]
    if len(points) > 1:
        axes.step(across, up, where="post", color=light("muted"), linewidth=0.9, zorder=1)
    axes.plot(
        across, up, "o", markersize=11, markerfacecolor="none", markeredgecolor=light("ink"), markeredgewidth=0.9,
        zorder=4, label="on the front",
    )  # fmt: skip


def overview_picture(section: Section, *, name: str) -> Picture | None:
    """Accuracy of several splits."""
    return _buckets(section, name=name, title="Accuracy by split")


def _buckets(section: Section, *, name: str, title: str | None = None) -> Picture | None:
    """Accuracy by bucket, at the largest budget of each series."""
    word = bucket_word(section)
    if len(section.buckets) < 2:
        return None
    styles = series_looks(section)
    wide = len(styles) * len(section.buckets) > CROWDED
    figure, axes = canvas(width=2 * WIDTH if wide else WIDTH, height=3.1)
    shift = min(DODGE, 0.8 / len(styles))
    for number, (series, look) in enumerate(styles.items()):
        cell = _series_cells(section, series)[-1]
        offset = (number - (len(styles) - 1) / 2) * shift
        for place, bucket in enumerate(section.buckets):
            own = [record for record in cell.records if record.bucket == bucket.name]
            if own:
                _dot(axes, place + offset, own, look, label=section.label(*series))
    _shade(axes, section)
    names = [one_line(bucket.name, 24) for bucket in section.buckets]
    long = sum(map(len, names)) > (90 if wide else 40)
    numbers = [_items(section, bucket.name) for bucket in section.buckets]
    names = [f"{own}, {number}" if long else f"{own}\n{number}" for own, number in zip(names, numbers, strict=True)]
    axes.set_xticks(range(len(names)), names, rotation=25 if long else 0, ha="right" if long else "center")
    if title is None and word == SIZE:
        axes.set_xlabel(word)
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.tick_params(axis="x", length=0)
    percent_axis(axes, "accuracy")
    series_legend(figure, axes, section, section.methods)
    return make_picture(
        figure,
        name=name,
        title=title or f"Accuracy by {word}",
        wide=wide,
        caption=f"Each method {_largest(section)}; bars are 95% intervals{_shaded(section)}.",
    )


def _shaded(section: Section) -> str:
    """What the shaded area is, where there is one: runs may differ in what they were trained on."""
    shaded = {bucket.name for bucket in section.buckets if bucket.beyond}
    records = [record for cell in section.cells for record in cell.records if record.bucket in shaded]
    if not records:
        return ""
    whose = "training" if all(record.beyond for record in records) else "the training of some runs"
    return f"; the shaded area is beyond {whose}"


def _items(section: Section, bucket: str) -> str:
    """How many items are behind the points of a bucket."""
    counts = {
        number
        for series in series_looks(section)
        if (number := sum(record.bucket == bucket for record in _series_cells(section, series)[-1].records))
    }
    return number_label(counts)


def number_label(counts: Iterable[int]) -> str:
    """The number of items behind points at the same place.

    Example:
        number_label([40, 40])  # "n=40"
        number_label([12, 40])  # "n=12-40"
    """
    low, high = min(counts, default=0), max(counts, default=0)
    return f"n={low:,}" if low == high else f"n={low:,}-{high:,}"


def _largest(section: Section) -> str:
    largest = {_series_cells(section, series)[-1].budget for series in series_looks(section)}
    if largest == {None}:
        return "under the task's own budget"
    if len(largest) == 1:
        return f"at {largest.pop():,} tokens, the largest budget"
    return "at its largest budget"


def _dot(axes: Axes, across: float, records: Sequence[Record], look: Look, *, label: str) -> None:
    accuracy = accuracy_rate(records)
    value, bars = accuracy.value, [[accuracy.value - accuracy.low], [accuracy.high - accuracy.value]]
    pale = PALE if len(records) < FEW else {}
    axes.errorbar([across], [value], yerr=bars, fmt="none", ecolor=look.light, elinewidth=1.1, capsize=2, **pale)
    axes.plot([across], [value], label=label, zorder=3, **look.line(linestyle="none", **pale))


def _shade(axes: Axes, section: Section) -> None:
    """Shade and label the buckets beyond training."""
    places = [place for place, bucket in enumerate(section.buckets) if bucket.beyond]
    for place in places:
        axes.axvspan(place - 0.5, place + 0.5, color=light("shade"), zorder=0, linewidth=0)
    if places:
        axes.text(
            places[-1] + 0.45, 1.01, "beyond training", transform=axes.get_xaxis_transform(),
            ha="right", va="bottom", color=light("muted"), fontsize=8,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Trait:
    """A property of a tree that may depend on the problem size."""

    title: str
    axis: str
    caption: str
    of: Callable[[Record], float]
    share: bool


DELEGATION = Trait(
    title="Delegation by problem size",
    axis="items split among clones",
    caption="Share of items that were split among clones, by problem size",
    of=lambda record: float(record.delegated),
    share=True,
)
DEPTH = Trait(
    title="Depth by problem size",
    axis="levels below the root, mean",
    caption="Levels of clones below the root, by problem size",
    of=lambda record: float(record.depth),
    share=False,
)


def _by_size(section: Section, trait: Trait, *, name: str) -> Picture | None:
    """A trait by size, for methods that can delegate, at the largest budget of each."""
    figure, axes = canvas(height=2.9)
    drawn: list[str] = []
    numbers: dict[float, list[int]] = {}
    for series, look in series_looks(section).items():
        if series[1].startswith(("single", "vote@", "best@", "split@", "chain")):
            continue
        points = mean_by_size(_series_cells(section, series)[-1].records, trait.of)
        if points:
            _size_line(axes, points, look, label=section.label(*series))
            drawn.append(series[1])
            for size, _, number in points:
                numbers.setdefault(size, []).append(number)
    if not drawn:
        return None
    axes.set_xlabel("problem size")
    _size_axis(axes, numbers)
    if trait.share:
        percent_axis(axes, trait.axis)
    else:
        axes.set_ylabel(trait.axis)
        axes.set_ylim(-0.05, max(1.05, axes.get_ylim()[1]))
    starts = _beyond_from(section)
    if starts is not None:
        axes.axvspan(starts, axes.get_xlim()[1], color=light("shade"), zorder=0, linewidth=0)
        axes.text(
            0.995, 1.01, "beyond training", transform=axes.transAxes, ha="right", va="bottom",
            color=light("muted"), fontsize=8,
        )  # fmt: skip
    series_legend(figure, axes, section, list(dict.fromkeys(drawn)))
    return make_picture(figure, name=name, title=trait.title, caption=f"{trait.caption}; {_largest(section)}.")


def _size_line(axes: Axes, points: Sequence[Point], look: Look, *, label: str) -> None:
    """A line through all points; those of few items are pale."""
    across = [size for size, _, _ in points]
    axes.plot(across, [value for _, value, _ in points], label=label, **look.line(marker=""))
    for size, value, number in points:
        axes.plot([size], [value], **look.line(linestyle="none", **(PALE if number < FEW else {})))
    axes.lines[-1].set_label(label)


def _size_axis(axes: Axes, numbers: Mapping[float, Sequence[int]]) -> None:
    """A tick for each size, with its number of items; logarithmic if sizes differ much."""
    from matplotlib.ticker import NullLocator

    sizes = sorted(numbers)
    if sizes[0] > 0 and sizes[-1] / sizes[0] >= LOG_FROM:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    if len(sizes) > MAX_POINTS:
        return whole_numbers(axes)
    axes.set_xticks(sizes, [f"{size:.3g}\n{number_label(numbers[size])}" for size in sizes])
    return axes.tick_params(axis="x", labelsize=8)


def _beyond_from(section: Section) -> float | None:
    """Halfway between the largest size within training and the smallest beyond it; None if they overlap."""
    sized = [(r.size, r.beyond) for cell in section.cells for r in cell.records if r.size is not None]
    within = [size for size, beyond in sized if not beyond]
    past = [size for size, beyond in sized if beyond]
    if not within or not past or max(within) >= min(past):
        return None
    return (max(within) + min(past)) / 2


Point = tuple[float, float, int]  # size, mean, number of items


def mean_by_size(records: Sequence[Record], of: Callable[[Record], float]) -> list[Point]:
    """The mean of a trait by size, and the number of items; neighbouring sizes are merged if there are many.

    Example:
        mean_by_size([], lambda record: 1.0)  # []
    """
    by_size: dict[float, list[float]] = {}
    for record in records:
        if record.size is not None:
            by_size.setdefault(record.size, []).append(of(record))
    sizes = sorted(by_size)
    width = math.ceil(len(sizes) / MAX_POINTS) or 1
    points: list[Point] = []
    for start in range(0, len(sizes), width):
        near = [(size, value) for size in sizes[start : start + width] for value in by_size[size]]
        size, value = (math.fsum(pair[place] for pair in near) / len(near) for place in (0, 1))
        points.append((size, value, len(near)))
    return points


def series_legend(figure: Figure, axes: Axes, section: Section, methods: Sequence[str]) -> None:
    """Every series; or, if these are more, methods by colour and marker, then runs by line and filling."""
    handles, labels = axes.get_legend_handles_labels()
    known: dict[str, Any] = dict(zip(labels, handles, strict=True))
    styles = series_looks(section)
    if section.several_runs and len(styles) > len(methods) + len(section.runs):
        from matplotlib.lines import Line2D

        plain = looks(section.methods)
        known = {"on the front": known["on the front"]} if "on the front" in known else {}
        colours = {method_label(method): Line2D([], [], **plain[method].line(linestyle="none")) for method in methods}
        runs: dict[str, Any] = {}
        for run in section.runs:
            look = next(look for (name, _), look in styles.items() if name == run)
            face = light("paper") if look.hollow else light("grey")
            line = look.line(color=light("grey"), marker="o", markerfacecolor=face)
            runs[f"run {run}" if run in colours else run] = Line2D([], [], **line)
        known = colours | runs | known
    add_legend(figure, known)
