"""The tables of an evaluation as text."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ramet.evaluate.cells import Cell, Comparison
from ramet.evaluate.format import budget_label, method_label, percent, points, share, verdict
from ramet.evaluate.tables import Area, Section

Row = TypeVar("Row")
Column = tuple[str, Callable[[Row], str]]  # name, and the text for a row
GAP = 2  # spaces between columns
WRAPPED = 16  # characters: narrower columns of words are hard to read
SPARE = ("prompt", "items", "nodes", "score", "delegated", "critical\npath", "generated")  # dropped in this order


def as_text(sections: Sequence[Section], *, width: int) -> str:
    """The tables as plain text."""
    sink = io.StringIO()
    Console(file=sink, width=width, highlight=False, markup=False).print(render_sections(sections, width=width))
    return sink.getvalue()


def render_sections(sections: Sequence[Section], *, width: int) -> Group:
    """The tables for rich; on a narrow terminal with fewer columns."""
    parts: list[RenderableType] = []
    for section in sections:
        if section.title:
            parts += [Text(section.title, style="bold"), Text()]
        parts += [_cell_table(section.cells, width=width), *_beyond_line(section.cells), Text()]
        if len(section.buckets) > 1:
            parts += [_bucket_table(section.bucket_cells(), width=width), Text()]
        if section.baseline_comparisons:
            parts += [_comparison_table(section.baseline_comparisons, width=width), Text()]
        parts += [_area_line(area) for area in section.areas]
        if section.areas:
            parts.append(Text())
    return Group(*parts[:-1])


def _cell_table(cells: Sequence[Cell], *, width: int) -> Table:
    partly = any(cell.partly_right for cell in cells)
    columns: list[Column[Cell]] = [
        ("method", lambda cell: method_label(cell.method)),
        ("budget", lambda cell: budget_label(cell.budget)),
        ("items", lambda cell: f"{cell.items:,}"),
        ("accuracy", lambda cell: percent(cell.accuracy)),
        *([("score", lambda cell: f"{cell.score:.3f}")] if partly else []),
        ("generated", lambda cell: f"{cell.generated:,.0f}"),
        ("critical\npath", lambda cell: f"{cell.critical_path:,.0f}"),
        ("prompt", lambda cell: f"{cell.mean(lambda record: record.prompt):,.0f}"),
        ("nodes", lambda cell: f"{cell.mean(lambda record: record.nodes):.1f}"),
        ("delegated", lambda cell: share(cell.delegated)),
        ("", _marks),
    ]
    return fitted_table(columns, cells, spare=SPARE, width=width)


def _marks(cell: Cell) -> str:
    marks = ["front" if cell.front else "", "beyond training" if cell.beyond == 1 else ""]
    return ", ".join(mark for mark in marks if mark)


def _beyond_line(cells: Sequence[Cell]) -> list[Text]:
    """One line for all cells: they have the same items."""
    beyond = max(cell.beyond for cell in cells)
    return [Text(f"{share(beyond)} of the items are beyond training", style="dim")] if 0 < beyond < 1 else []


def _bucket_table(cells: Sequence[Cell], *, width: int) -> Table:
    """A row per bucket and budget, a column per method."""
    methods = list(dict.fromkeys(cell.method for cell in cells))
    rows: dict[tuple[str | None, int | None], dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.bucket, cell.budget), {})[cell.method] = cell
    columns: list[Column[dict[str, Cell]]] = [
        ("size", lambda row: next(iter(row.values())).bucket or ""),
        ("budget", lambda row: budget_label(next(iter(row.values())).budget)),
        ("items", lambda row: str(max(cell.items for cell in row.values()))),
        *[(method_label(method), _accuracy_column(method)) for method in methods],
        ("", lambda row: _beyond_mark(next(iter(row.values())))),
    ]
    spare = ("items", "budget") if len({cell.budget for cell in cells}) == 1 else ("items",)
    return fitted_table(columns, list(rows.values()), spare=spare, width=width, words=("size", ""))


def _accuracy_column(method: str) -> Callable[[dict[str, Cell]], str]:
    return lambda row: percent(row[method].accuracy) if method in row else ""


def _beyond_mark(cell: Cell) -> str:
    return "beyond training" if cell.beyond == 1 else "partly beyond training" if cell.beyond else ""


def _comparison_table(comparisons: Sequence[Comparison], *, width: int) -> Table:
    columns: list[Column[Comparison]] = [
        ("compared", lambda comparison: f"{method_label(comparison.cell[1])} − {comparison.other[1]}"),
        ("budget", lambda comparison: budget_label(comparison.budget)),
        ("items", lambda comparison: f"{comparison.difference.items:,}"),
        ("points", lambda comparison: points(comparison.difference)),
        ("", lambda comparison: verdict(comparison.difference)),
    ]
    return fitted_table(columns, comparisons, spare=("items",), width=width, words=("compared", ""))


def _area_line(area: Area) -> Text:
    name = method_label(area.method)
    return Text(f"area under {name} up to {area.reference:,.0f} tokens: {percent(area.share)}", style="dim")


def fitted_table(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    *,
    spare: Sequence[str],
    width: int,
    words: Sequence[str] = ("method", ""),
) -> Table:
    """A table of this width: spare columns are dropped in their order, words are wrapped, and no number is cut."""
    shown = [(name, [show(row) for row in rows]) for name, show in columns]
    for dropped in spare:
        if sum(_least_width(name, texts, wraps=name in words) + GAP for name, texts in shown) > width:
            shown = [column for column in shown if column[0] != dropped]
    fits = sum(_full_width(name, texts) + GAP for name, texts in shown) <= width
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for name, texts in shown:
        if name in words:
            table.add_column(name, overflow="fold")
        else:
            fixed = _full_width(name, texts) if fits else _least_width(name, texts, wraps=False)
            table.add_column(name, justify="right", width=fixed)
    for cells in zip(*(texts for _, texts in shown), strict=True):
        table.add_row(*map(Text, cells))
    return table


def _full_width(name: str, texts: Sequence[str]) -> int:
    return max(len(line) for text in (name, *texts) for line in text.split("\n"))


def _least_width(name: str, texts: Sequence[str], *, wraps: bool) -> int:
    """The width of a column whose name is wrapped, and whose texts are if they are words."""
    longest = max(map(len, texts), default=0)
    parts = [part for text in ((name, *texts) if wraps else (name,)) for part in text.split()]
    return max(min(longest, WRAPPED) if wraps else longest, *map(len, parts), 0)
