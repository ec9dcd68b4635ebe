"""Parts that all plots share: the finished picture, axes and legends."""

# matplotlib's types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ramet.report.style import to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEGEND_ROW = 0.17  # inches


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A plot: as SVG for the page, as a figure for the PNG file."""

    name: str  # of its file, and a prefix of all ids in it
    title: str
    caption: str  # one sentence: how to read it
    svg: str
    figure: Figure
    wide: bool = False
    narrow: str = ""  # another SVG for narrow screens


def make_picture(
    figure: Figure, *, name: str, title: str, caption: str, wide: bool = False, narrow: str = ""
) -> Picture:
    """A figure with its title and caption, and as SVG."""
    svg = to_svg(figure, name=name, label=f"{title}. {caption}")
    return Picture(name=name, title=title, caption=caption, svg=svg, figure=figure, wide=wide, narrow=narrow)


def whole_numbers(axes: Axes) -> None:
    """Only whole numbers on the x axis."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def percent_axis(axes: Axes, label: str = "", *, most: float = 1.0) -> None:
    """A y axis in percent, from 0 to 100 or to the next ten above `most`."""
    from matplotlib.ticker import PercentFormatter

    top = min(1.0, math.ceil(10 * most + 0.3) / 10)
    axes.set_ylabel(label)
    axes.set_ylim(-0.03 * top, 1.03 * top)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def token_axis(axes: Axes, costs: Sequence[float]) -> None:
    """Whole numbers on the x axis, logarithmic if the largest is many times the smallest."""
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    whole_numbers(axes)
    low, high = min(costs), max(costs)
    if low > 0 and high / low > 4:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(log_ticks(low, high)))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers for a logarithmic axis, at least four if the range holds so many.

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
    """A legend above the plot, each name once."""
    handles, labels = axes.get_legend_handles_labels()
    add_legend(figure, dict(zip(labels, handles, strict=True)))


def add_legend(figure: Figure, known: dict[str, Any]) -> None:
    """The figure grows by the rows of the legend."""
    longest = max(map(len, known), default=1)
    columns = max(1, min(len(known), round(13.2 * figure.get_figwidth()) // (longest + 8)))
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * -(-len(known) // columns))
    figure.legend(list(known.values()), list(known), loc="outside upper left", ncols=columns, fontsize=8.5)
