"""A picture of differences: who is better than whom, by how much, and how sure that is."""

# matplotlib's types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from ramet.report.format import short_tokens
from ramet.report.numbers import ALL, Comparison, Versus, is_oracle
from ramet.report.plots import Picture, picture
from ramet.report.style import canvas, light, looks

MOST_ROWS = 24


def gaps_picture(comparison: Comparison, *, name: str) -> Picture | None:
    """Runs against the first where there are several, else methods against each other; None where nothing differs."""
    found = comparison.runs_apart or comparison.methods_apart
    rows = [one for one in found if one.part == ALL and not is_oracle(one.cell[1])]
    if len(rows) > MOST_ROWS:
        rows = [one for one in rows if one.cell[1].startswith("clones")][:MOST_ROWS]
    if not any(one.gap.differing for one in rows):
        return None
    figure, axes = canvas(height=0.85 + 0.23 * len(rows))
    styles = looks(comparison.methods)
    axes.axvline(0, color=light("muted"), linewidth=1.2)
    for place, one in enumerate(rows):
        look, gap = styles[one.cell[1]], one.gap
        axes.plot([100 * gap.low, 100 * gap.high], [place, place], color=look.light, linewidth=1.2)
        face = look.light if one.told else light("paper")
        axes.plot([100 * gap.value], [place], **look.line(markerfacecolor=face, linestyle="none"))
    axes.set_yticks(range(len(rows)), [_label(one) for one in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("points")
    return picture(
        figure,
        name=name,
        title="Differences, item by item",
        caption=f"{_whose(rows[0])} Right of the line is better; lines are 95 % intervals; a hollow point "
        "means that nobody can tell.",
    )


def _label(one: Versus) -> str:
    budget = short_tokens(one.cell[2])
    if one.cell[0] == one.other[0]:
        return f"{one.cell[1]} − {one.other[1]}, {budget}"
    return f"{one.cell[1]}, {one.cell[0]}, {budget}"


def _whose(one: Versus) -> str:
    """What is compared with what."""
    if one.cell[0] == one.other[0]:
        return "One method minus another under the same budget of tokens."
    return f"Each method and budget of tokens minus the same in {one.other[0]}."
