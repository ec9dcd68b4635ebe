"""Pictures of evaluations: what accuracy costs, where it holds, and when the model delegates."""

# matplotlib's types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ramet.draw import one_line
from ramet.evaluate.record import Record
from ramet.report.format import method_name
from ramet.report.numbers import SIZE, Cell, Comparison, accuracy_of, bucket_word, is_oracle
from ramet.report.style import WIDTH, Look, canvas, light, looks, svg_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 10  # sizes on one axis; more are put together
CROWDED = 16  # dots a picture of usual width has room for
ROW = 0.17  # inches of a row of names
DODGE = 0.13  # of a bucket's width, between neighbouring series


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A figure as the page and the folder beside it hold it."""

    name: str  # of its file, and of everything in it
    title: str
    caption: str  # one sentence: how to read it
    svg: str
    figure: Figure
    wide: bool = False


def picture(figure: Figure, *, name: str, title: str, caption: str, wide: bool = False) -> Picture:
    """The figure as an element of a page."""
    svg = svg_of(figure, name=name, label=f"{title}. {caption}")
    return Picture(name=name, title=title, caption=caption, svg=svg, figure=figure, wide=wide)


def evaluation_pictures(comparison: Comparison, *, name: str) -> list[Picture]:
    """Everything there is to see of one comparison."""
    found = [
        _accuracy(comparison, critical=False, name=f"{name}accuracy-tokens"),
        _accuracy(comparison, critical=True, name=f"{name}accuracy-critical-path"),
        _buckets(comparison, name=f"{name}buckets"),
        _by_size(comparison, DELEGATION, name=f"{name}delegation"),
        _by_size(comparison, DEPTH, name=f"{name}depth"),
    ]
    return [one for one in found if one is not None]


Series = tuple[str, str]  # run and method


def series_looks(comparison: Comparison) -> dict[Series, Look]:
    """A method keeps its colour and marker; later runs are hollow and drawn with other dashes."""
    by_method = looks(comparison.methods)
    dashes: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 1.5, 1, 1.5)))
    found: dict[Series, Look] = {}
    for cell in comparison.cells:
        look = by_method[cell.method]
        if comparison.several:
            place = [run.name for run in comparison.runs].index(cell.run)
            look = replace(look, dashes=dashes[place % len(dashes)], hollow=place % 2 == 0)
        found[cell.run, cell.method] = look
    return found


def _cells_of(comparison: Comparison, series: Series) -> list[Cell]:
    return [cell for cell in comparison.cells if (cell.run, cell.method) == series]


def _accuracy(comparison: Comparison, *, critical: bool, name: str) -> Picture:
    """Accuracy against what it cost, a line a series, through its budgets."""
    figure, axes = canvas(height=3.1)

    def cost(cell: Cell) -> float:
        return cell.critical_path if critical else cell.generated

    for series, look in series_looks(comparison).items():
        cells = _cells_of(comparison, series)
        label = comparison.label(*series)
        _with_bars(axes, [(cost(cell), cell) for cell in cells], look, label=label, oracle=is_oracle(series[1]))
    _front(axes, [(cost(c), c.accuracy.value) for c in comparison.cells if (c.front_critical if critical else c.front)])
    costs = [cost(cell) for cell in comparison.cells]
    _token_axis(axes, costs)
    axes.set_xlabel("tokens on the critical path, mean per item" if critical else "tokens generated, mean per item")
    shares(axes, "accuracy", most=max(cell.accuracy.high for cell in comparison.cells))
    series_legend(figure, axes, comparison, comparison.methods)
    what = "tokens that had to wait for each other" if critical else "all tokens generated, clones and votes included"
    return picture(
        figure,
        name=name,
        title="Accuracy against the critical path" if critical else "Accuracy against tokens",
        caption=f"Up and to the left is better; a point is one budget, across are {what}, bars are 95 % intervals, and "
        "ringed points on the grey steps are the front: nobody is as good for less.",
    )


def _with_bars(axes: Axes, points: Sequence[tuple[float, Cell]], look: Look, *, label: str, oracle: bool) -> None:
    points = sorted(points, key=lambda one: one[0])
    across = [cost for cost, _ in points]
    up = [cell.accuracy.value for _, cell in points]
    down = [cell.accuracy.value - cell.accuracy.low for _, cell in points]
    over = [cell.accuracy.high - cell.accuracy.value for _, cell in points]
    axes.errorbar(across, up, yerr=[down, over], fmt="none", ecolor=look.light, elinewidth=1, capsize=2, alpha=0.75)
    axes.plot(across, up, label=label, zorder=3, **look.line(linewidth=0.9 if oracle else 1.5))


def _front(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Steps: what the best known method gives for at most so much."""
    points = sorted(set(points))
    across = [cost for cost, _ in points]
    up = [value for _, value in points]
    if len(points) > 1:
        axes.step(across, up, where="post", color=light("muted"), linewidth=0.9, zorder=1)
    axes.plot(
        across, up, "o", markersize=11, markerfacecolor="none", markeredgecolor=light("ink"), markeredgewidth=0.9,
        zorder=4, label="on the front",
    )  # fmt: skip


def overview_picture(comparison: Comparison, *, name: str) -> Picture | None:
    """Several splits beside each other."""
    return _buckets(comparison, name=name, title="Accuracy by split")


def _buckets(comparison: Comparison, *, name: str, title: str | None = None) -> Picture | None:
    """Accuracy by part of the table at the largest budget each series has."""
    word = bucket_word(comparison)
    if len(comparison.buckets) < 2:
        return None
    styles = series_looks(comparison)
    wide = len(styles) * len(comparison.buckets) > CROWDED
    figure, axes = canvas(width=2 * WIDTH if wide else WIDTH, height=3.1)
    shift = min(DODGE, 0.8 / len(styles))
    for number, (series, look) in enumerate(styles.items()):
        cell = _cells_of(comparison, series)[-1]
        offset = (number - (len(styles) - 1) / 2) * shift
        for place, bucket in enumerate(comparison.buckets):
            own = [record for record in cell.records if record.bucket == bucket.name]
            if own:
                _dot(axes, place + offset, own, look, label=comparison.label(*series))
    _shade(axes, comparison)
    names = [one_line(bucket.name, 24) for bucket in comparison.buckets]
    long = sum(map(len, names)) > (90 if wide else 40)
    axes.set_xticks(range(len(names)), names, rotation=25 if long else 0, ha="right" if long else "center")
    if title is None and word == SIZE:
        axes.set_xlabel(word)
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.tick_params(axis="x", length=0)
    shares(axes, "accuracy")
    series_legend(figure, axes, comparison, comparison.methods)
    beyond = any(bucket.beyond for bucket in comparison.buckets)
    return picture(
        figure,
        name=name,
        title=title or f"Accuracy by {word}",
        wide=wide,
        caption=f"Each method {_largest(comparison)}; bars are 95 % intervals"
        + ("; what is shaded lies beyond what the model was trained on." if beyond else "."),
    )


def _largest(comparison: Comparison) -> str:
    largest = {_cells_of(comparison, series)[-1].budget for series in series_looks(comparison)}
    if largest == {None}:
        return "under the budget its task declares"
    if len(largest) == 1:
        return f"at {largest.pop():,} tokens, the largest budget"
    return "at the largest budget it was given"


def _dot(axes: Axes, across: float, records: Sequence[Record], look: Look, *, label: str) -> None:
    found = accuracy_of(records)
    bars = [[found.value - found.low], [found.high - found.value]]
    axes.errorbar([across], [found.value], yerr=bars, fmt="none", ecolor=look.light, elinewidth=1.1, capsize=2)
    axes.plot([across], [found.value], label=label, zorder=3, **look.line(linestyle="none"))


def _shade(axes: Axes, comparison: Comparison) -> None:
    """The ground of buckets beyond training is grey, and says so."""
    places = [place for place, bucket in enumerate(comparison.buckets) if bucket.beyond]
    for place in places:
        axes.axvspan(place - 0.5, place + 0.5, color=light("shade"), zorder=0, linewidth=0)
    if places:
        axes.text(
            places[-1] + 0.45, 1.01, "beyond training", transform=axes.get_xaxis_transform(),
            ha="right", va="bottom", color=light("muted"), fontsize=8,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Trait:
    """Something a tree does more of on bigger problems."""

    title: str
    axis: str
    caption: str
    of: Callable[[Record], float]
    share: bool


DELEGATION = Trait(
    title="Delegation by problem size",
    axis="items answered with clones",
    caption="How many items were split among clones, against how big the problem is",
    of=lambda record: float(record.delegated),
    share=True,
)
DEPTH = Trait(
    title="Depth by problem size",
    axis="levels below the root, mean",
    caption="How many levels of clones stood below the root, against how big the problem is",
    of=lambda record: float(record.depth),
    share=False,
)


def _by_size(comparison: Comparison, trait: Trait, *, name: str) -> Picture | None:
    """A trait against size, for methods that may delegate, at the largest budget of each."""
    figure, axes = canvas(height=2.9)
    drawn: list[str] = []
    for series, look in series_looks(comparison).items():
        if series[1].startswith(("single", "vote@", "best@")):
            continue
        points = grouped(_cells_of(comparison, series)[-1].records, trait.of)
        if points:
            label = comparison.label(*series)
            axes.plot([size for size, _ in points], [value for _, value in points], label=label, **look.line())
            drawn.append(series[1])
    if not drawn:
        return None
    axes.set_xlabel("problem size")
    whole_steps(axes)
    if trait.share:
        shares(axes, trait.axis)
    else:
        axes.set_ylabel(trait.axis)
        axes.set_ylim(bottom=-0.05)
    starts = _beyond_from(comparison)
    if starts is not None:
        axes.axvspan(starts, axes.get_xlim()[1], color=light("shade"), zorder=0, linewidth=0)
        axes.text(
            0.995, 1.01, "beyond training", transform=axes.transAxes, ha="right", va="bottom",
            color=light("muted"), fontsize=8,
        )  # fmt: skip
    series_legend(figure, axes, comparison, list(dict.fromkeys(drawn)))
    return picture(figure, name=name, title=trait.title, caption=f"{trait.caption}; {_largest(comparison)}.")


def _beyond_from(comparison: Comparison) -> float | None:
    """Between the largest size within training and the smallest beyond it, where they are apart."""
    sized = [(r.size, r.beyond) for cell in comparison.cells for r in cell.records if r.size is not None]
    within = [size for size, beyond in sized if not beyond]
    past = [size for size, beyond in sized if beyond]
    if not within or not past or max(within) >= min(past):
        return None
    return (max(within) + min(past)) / 2


def grouped(records: Sequence[Record], of: Callable[[Record], float]) -> list[tuple[float, float]]:
    """Mean of a trait by size; where sizes are many, neighbours are put together.

    Example:
        grouped([], lambda record: 1.0)  # []
    """
    by_size: dict[float, list[float]] = {}
    for record in records:
        if record.size is not None:
            by_size.setdefault(record.size, []).append(of(record))
    sizes = sorted(by_size)
    width = math.ceil(len(sizes) / MOST_POINTS) or 1
    points: list[tuple[float, float]] = []
    for start in range(0, len(sizes), width):
        near = [(size, value) for size in sizes[start : start + width] for value in by_size[size]]
        points.append((math.fsum(size for size, _ in near) / len(near), math.fsum(v for _, v in near) / len(near)))
    return points


def whole_steps(axes: Axes) -> None:
    """No fractions across."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def shares(axes: Axes, label: str = "", *, most: float = 1.0) -> None:
    """From nothing to all, or to the next tenth above `most`, in percent."""
    from matplotlib.ticker import PercentFormatter

    top = min(1.0, math.ceil(10 * most + 0.3) / 10)

    axes.set_ylabel(label)
    axes.set_ylim(-0.03 * top, 1.03 * top)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _token_axis(axes: Axes, costs: Sequence[float]) -> None:
    """Whole numbers across; where the largest is many times the smallest, on a logarithmic axis."""
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    whole_steps(axes)
    low, high = min(costs), max(costs)
    if low > 0 and high / low > 4:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(log_ticks(low, high)))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def log_ticks(low: float, high: float) -> list[float]:
    """Numbers people read, at least four of them where there are so many.

    Example:
        log_ticks(100, 1000)  # [100, 200, 500, 1000]
    """
    shown: list[float] = []
    for digits in ((1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8)):
        if len(shown) < 4:
            every = [digit * 10**power for power in range(9) for digit in digits]
            shown = [tick for tick in every if low / 1.15 <= tick <= high * 1.15]
    return shown


def legend(figure: Figure, axes: Axes) -> None:
    """Names above the picture, each once."""
    handles, labels = axes.get_legend_handles_labels()
    named(figure, dict(zip(labels, handles, strict=True)))


def series_legend(figure: Figure, axes: Axes, comparison: Comparison, methods: Sequence[str]) -> None:
    """With several runs, methods by colour and marker, then runs by line and filling: not every pair of them."""
    handles, labels = axes.get_legend_handles_labels()
    known: dict[str, Any] = dict(zip(labels, handles, strict=True))
    if comparison.several:
        from matplotlib.lines import Line2D

        plain = looks(comparison.methods)
        styles = series_looks(comparison)
        known = {"on the front": known["on the front"]} if "on the front" in known else {}
        colours = {method_name(one): Line2D([], [], **plain[one].line(linestyle="none")) for one in methods}
        runs: dict[str, Any] = {}
        for run in comparison.runs:
            look = next(look for (name, _), look in styles.items() if name == run.name)
            face = light("paper") if look.hollow else light("grey")
            line = look.line(color=light("grey"), marker="o", markerfacecolor=face)
            runs[run.name] = Line2D([], [], **line)
        known = colours | runs | known
    named(figure, known)


def named(figure: Figure, known: dict[str, Any]) -> None:
    """The figure grows by the rows its names take."""
    longest = max(map(len, known), default=1)
    columns = max(1, min(len(known), round(13.2 * figure.get_figwidth()) // (longest + 8)))
    figure.set_figheight(figure.get_figheight() + ROW * -(-len(known) // columns))
    figure.legend(list(known.values()), list(known), loc="outside upper left", ncols=columns, fontsize=8.5)
