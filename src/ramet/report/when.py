"""The picture of when a run learnt to delegate: a row per size, a column per step, a colour per share of trees."""

# matplotlib's types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ramet.evaluate.format import share
from ramet.report.delegation import Counts, Delegation, SizeRow, total
from ramet.report.figures import Picture, make_picture
from ramet.report.learnt import settled
from ramet.report.style import WIDTH, light, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "When it learnt to delegate"
LEVELS = 20  # shades
FEW = 8  # trees: the cell of fewer is drawn low
TALL, LOW = 0.92, 0.4  # of the height of a row
TRAITS = (("delegated", "trees that delegate", "blue"), ("right", "trees that are right", "green"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes of the picture: one for a page, one for a phone."""

    width: float  # inches
    columns: int  # at most; steps are joined
    row: float  # inches
    text: float  # points
    places: tuple[float, ...]  # of the numbers beside a row, in points
    ticks: int


WIDE = Layout(width=2 * WIDTH, columns=60, row=0.3, text=8.5, places=(31, 43, 75, 122), ticks=6)
NARROW = Layout(width=4.0, columns=30, row=0.27, text=7.5, places=(30, 40, 69, 107), ticks=3)


def when_picture(delegation: Delegation, *, name: str) -> Picture:
    """Two maps, sizes by steps: trees that delegate, trees that are right."""
    figure = _draw(delegation, WIDE)
    caption = _caption(delegation)
    narrow = to_svg(_draw(delegation, NARROW), name=f"{name}-narrow", label=f"{TITLE}. {caption}")
    return make_picture(figure, name=name, title=TITLE, caption=caption, wide=True, narrow=narrow)


def _caption(delegation: Delegation) -> str:
    steps = _steps(delegation.end_steps)
    some = any(0 < row.by_step.get(step, Counts()).trees < FEW for row in delegation.rows for step in delegation.steps)
    low = f" Low cells have fewer than {FEW} trees." if some else ""
    return (
        f"A row is a size of the task, a column {_columns_phrase(delegation)}; the stronger the colour, the larger "
        f"the share of trees. On the right: the share in the first {steps} with tasks of that size, and in the last "
        f"{steps}; n is the number of trees in all steps. The mark in a row is the step from which on the "
        f"model delegates that size in at least 90%, or at most 10%, of the trees.{low}"
    )


def _columns_phrase(delegation: Delegation) -> str:
    width = math.ceil(len(delegation.steps) / WIDE.columns)
    return "a training step" if width == 1 else f"{width} training steps"


def _steps(number: int) -> str:
    return "step" if number == 1 else f"{number} steps"


def _draw(delegation: Delegation, layout: Layout) -> Figure:
    from matplotlib.figure import Figure

    rows = len(delegation.rows)
    height = 2 * (rows * layout.row + 0.42) + 0.34
    figure = Figure(figsize=(layout.width, height), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    for axes, (trait, title, colour) in zip(panels, TRAITS, strict=True):
        _draw_map(axes, delegation, layout, trait, colour)
        axes.set_title(f"Share of {title}", loc="left", fontsize=9.5)
    _label_steps(panels[-1], delegation, layout)
    return figure


def _draw_map(axes: Axes, delegation: Delegation, layout: Layout, trait: str, colour: str) -> None:
    rows = list(reversed(delegation.rows))  # the largest on top
    columns = _columns(delegation.steps, layout.columns)
    boxes: dict[int, list[Box]] = {}
    for place, row in enumerate(rows):
        for steps in columns:
            counts = total(row.by_step.get(step, Counts()) for step in steps)
            if counts.trees:
                level = round(LEVELS * counts.share(trait).value)
                boxes.setdefault(level, []).append(_box(place, steps, counts))
    for level, own in sorted(boxes.items()):
        _add_boxes(axes, own, light("shade"))  # also under pale cells, so that none looks empty
        _add_boxes(axes, own, light(colour), alpha=level / LEVELS)
    for place, row in enumerate(rows):
        if trait == "delegated":
            _mark_settled(axes, delegation, row, place)
        _write_ends(axes, delegation, row, place, trait, layout)
    _label_sizes(axes, rows, delegation.unit)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(delegation.steps[0] + 0.5, delegation.steps[-1] + 1.5)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=layout.text)


Box = tuple[float, float, float, float]  # left, right, top, bottom


def _columns(steps: Sequence[int], most: int) -> list[Sequence[int]]:
    """Neighbouring steps that share a column."""
    width = math.ceil(len(steps) / most)
    return [steps[start : start + width] for start in range(0, len(steps), width)]


def _box(place: int, steps: Sequence[int], counts: Counts) -> Box:
    height = LOW if counts.trees < FEW else TALL
    return steps[0] + 0.5, steps[-1] + 1.5, place - height / 2, place + height / 2


def _add_boxes(axes: Axes, boxes: Sequence[Box], colour: str, *, alpha: float = 1.0) -> None:
    """All cells of one shade as one path."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    corners = [corner for left, right, top, bottom in boxes for corner in _corners(left, right, top, bottom)]
    codes: list[Any] = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(boxes)
    axes.add_patch(PathPatch(Path(corners, codes), facecolor=colour, alpha=alpha, linewidth=0))


def _corners(left: float, right: float, top: float, bottom: float) -> Iterator[tuple[float, float]]:
    yield from ((left, top), (right, top), (right, bottom), (left, bottom), (left, top))


def _mark_settled(axes: Axes, delegation: Delegation, row: SizeRow, place: int) -> None:
    step = settled(delegation, row)
    if step is None or step == delegation.steps_of(row)[0]:
        return
    axes.plot([step + 0.5] * 2, [place - 0.46, place + 0.46], color=light("ink"), linewidth=1.6, zorder=4)
    late = step > (delegation.steps[0] + delegation.steps[-1]) / 2
    dark = delegation.first_and_last(row)[1].share("delegated").value >= 0.5 and not late
    axes.annotate(
        f"step {step + 1}", (step + 0.5, place), xytext=(-4 if late else 4, 0), textcoords="offset points",
        ha="right" if late else "left", va="center_baseline", fontsize=7.5, color=light("paper" if dark else "ink"),
        zorder=5,
    )  # fmt: skip


def _write_ends(axes: Axes, delegation: Delegation, row: SizeRow, place: int, trait: str, layout: Layout) -> None:
    """First and last share, and the number of trees, in columns beside the row."""
    first, last = (share(one.share(trait).value) if one.trees else "–" for one in delegation.first_and_last(row))
    trees = total(row.by_step.values()).trees
    cells = [(first, "ink"), ("→", "muted"), (last, "ink")]
    cells += [(f"n={trees:,}", "muted")] if trait == "delegated" else []
    for across, (text, colour) in zip(layout.places, cells, strict=False):
        axes.annotate(
            text, (1, place), xytext=(across, 0), xycoords=axes.get_yaxis_transform(), textcoords="offset points",
            ha="right", va="center_baseline", fontsize=layout.text, color=light(colour), annotation_clip=False,
        )  # fmt: skip


def _label_sizes(axes: Axes, rows: Sequence[SizeRow], unit: str) -> None:
    labels = [f"{row.label} {unit}" if unit else f"size {row.label}" for row in rows]
    axes.set_yticks(range(len(rows)), labels)


def _label_steps(axes: Axes, delegation: Delegation, layout: Layout) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    def label(value: float, place: int) -> str:
        return f"step {value:.0f}" if place == 0 else f"{value:.0f}"

    first, last = delegation.steps[0] + 1, delegation.steps[-1] + 1
    gap = 0.5 * (last - first) / layout.ticks
    between = [
        tick
        for tick in MaxNLocator(layout.ticks, integer=True).tick_values(first, last)
        if first + gap < tick < last - gap
    ]
    axes.xaxis.set_major_locator(FixedLocator([first, *between, last]))
    axes.xaxis.set_major_formatter(FuncFormatter(label))
    axes.tick_params(labelsize=layout.text)
