"""A plot of differences between methods or runs, with their intervals."""

# matplotlib's types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from ramet.evaluate.cells import ALL, Comparison
from ramet.evaluate.format import budget_label
from ramet.evaluate.methods import is_oracle
from ramet.evaluate.statistics import MIN_DIFFERING
from ramet.evaluate.tables import Section
from ramet.report.figures import Picture, make_picture
from ramet.report.style import canvas, light, looks

MAX_ROWS = 24
MAX_LABEL = 44  # characters per line: wider labels leave no room for the plot


def difference_picture(section: Section, *, name: str) -> Picture | None:
    """Runs against each other if there are several, else methods; None if no item differs."""
    comparisons = (*section.run_comparisons, *section.control_comparisons) or section.method_comparisons
    rows = [one for one in comparisons if one.part == ALL and not is_oracle(one.cell[1])]
    if len(rows) > MAX_ROWS:
        rows = [one for one in rows if one.cell[1].startswith("clones")][:MAX_ROWS]
    if not any(one.difference.differing for one in rows):
        return None
    labels = [_label(section, comparison) for comparison in rows]
    lines = 1 + max(label.count("\n") for label in labels)
    figure, axes = canvas(height=0.85 + (0.09 + 0.14 * lines) * len(rows))
    styles = looks(section.methods)
    axes.axvline(0, color=light("muted"), linewidth=1.2)
    for place, comparison in enumerate(rows):
        look, gap = styles[comparison.cell[1]], comparison.difference
        axes.plot([100 * gap.low, 100 * gap.high], [place, place], color=look.light, linewidth=1.2)
        face = look.light if gap.direction else light("paper")
        axes.plot([100 * gap.value], [place], **look.line(markerfacecolor=face, linestyle="none"))
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("points")
    return make_picture(
        figure,
        name=name,
        title="Differences, item by item",
        caption=f"{_explain(rows)} Right of the line is better; bars are 95% intervals; a hollow point means: "
        f"cannot tell, or fewer than {MIN_DIFFERING} items differ. n: items, and of these those that differ.",
    )


def _label(section: Section, comparison: Comparison) -> str:
    (run, method, _), (other_run, other, _) = comparison.cell, comparison.other
    budget = budget_label(comparison.budget)
    gap = comparison.difference
    number = f"n={gap.items:,}, {gap.differing:,} differ"
    if run == other_run:
        pair = f"{method} − {other}"
    elif method == other:
        pair = f"{method}, {run}"
    else:
        pair = f"{section.label(run, method)} − {section.label(other_run, other)}"
    label = f"{pair}, {budget} ({number})"
    if len(label) <= MAX_LABEL:
        return label
    return f"{fill(f'{pair}, {budget}', MAX_LABEL, break_on_hyphens=False)}\n({number})"


def _explain(rows: Sequence[Comparison]) -> str:
    same = [one.other[0] for one in rows if one.across_runs and one.cell[1] == one.other[1]]
    sentences = [f"Each method and token budget minus the same in {same[0]}."] if same else []
    if len(same) < len(rows):
        sentences.append("One method minus another under the same token budget.")
    return " ".join(sentences)
