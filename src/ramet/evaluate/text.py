"""Tables as text, for whoever reads."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ramet.evaluate.statistics import Difference, Estimate
from ramet.evaluate.tables import Area, Cell, Comparison, Section

Row = TypeVar("Row")
GAP = 2  # columns between columns
SPARE = ("prompt", "items", "nodes", "score", "delegated", "critical\npath")  # left out first where room is short


def as_text(sections: Sequence[Section], *, width: int) -> str:
    """The tables as plain text."""
    sink = io.StringIO()
    Console(file=sink, width=width, highlight=False, markup=False).print(rendered(sections, width=width))
    return sink.getvalue()


def rendered(sections: Sequence[Section], *, width: int) -> Group:
    """The tables as rich shows them; where there is little room, with the columns that matter most."""
    parts: list[RenderableType] = []
    for section in sections:
        if section.title:
            parts += [Text(section.title, style="bold"), Text()]
        parts += [_cell_table(section.cells, width=width), *_beyond_line(section.cells), Text()]
        if section.buckets:
            parts += [_bucket_table(section.buckets), Text()]
        if section.comparisons:
            parts += [_comparison_table(section.comparisons), Text()]
        parts += [_area_line(area) for area in section.areas]
        if section.areas:
            parts.append(Text())
    return Group(*parts[:-1])


def _cell_table(cells: Sequence[Cell], *, width: int) -> Table:
    partly = any(cell.score.value != cell.accuracy.value for cell in cells)
    columns: list[tuple[str, Callable[[Cell], str]]] = [
        ("method", lambda cell: named(cell.method, oracle=cell.oracle)),
        ("budget", lambda cell: tokens(cell.budget)),
        ("items", lambda cell: f"{cell.items:,}"),
        ("accuracy", lambda cell: percent(cell.accuracy)),
        *([("score", lambda cell: f"{cell.score.value:.3f}")] if partly else []),
        ("generated", lambda cell: f"{cell.generated.value:,.0f}"),
        ("critical\npath", lambda cell: f"{cell.critical_path.value:,.0f}"),
        ("prompt", lambda cell: f"{cell.prompt:,.0f}"),
        ("nodes", lambda cell: f"{cell.nodes:.1f}"),
        ("delegated", lambda cell: f"{cell.delegated:.0%}"),
        ("", marks),
    ]
    for spare in SPARE:
        if sum(_width(name, [show(cell) for cell in cells]) for name, show in columns) > width:
            columns = [column for column in columns if column[0] != spare]
    return _table(columns, cells)


def _width(name: str, shown: Sequence[str]) -> int:
    return max(len(line) for text in (name, *shown) for line in text.split("\n")) + GAP


def _beyond_line(cells: Sequence[Cell]) -> list[Text]:
    """Said once for all cells, which have the same items."""
    share = max(cell.beyond for cell in cells)
    return [Text(f"{share:.0%} of the items are beyond what was trained on", style="dim")] if 0 < share < 1 else []


def _bucket_table(cells: Sequence[Cell]) -> Table:
    """A row a bucket and budget, a column a method."""
    methods = list(dict.fromkeys(cell.method for cell in cells))
    rows: dict[tuple[str | None, int | None], dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.bucket, cell.budget), {})[cell.method] = cell
    oracles = {cell.method for cell in cells if cell.oracle}
    columns: list[tuple[str, Callable[[dict[str, Cell]], str]]] = [
        ("size", lambda row: next(iter(row.values())).bucket or ""),
        ("budget", lambda row: tokens(next(iter(row.values())).budget)),
        ("items", lambda row: str(max(cell.items for cell in row.values()))),
        *[(named(method, oracle=method in oracles), _accuracy_of(method)) for method in methods],
        ("", lambda row: beyond(next(iter(row.values())))),
    ]
    return _table(columns, list(rows.values()), left=("size", ""))


def _accuracy_of(method: str) -> Callable[[dict[str, Cell]], str]:
    return lambda row: percent(row[method].accuracy) if method in row else ""


def _comparison_table(comparisons: Sequence[Comparison]) -> Table:
    columns: list[tuple[str, Callable[[Comparison], str]]] = [
        ("compared", lambda one: f"{named(one.method, oracle=one.oracle)} − {one.against}"),
        ("budget", lambda one: tokens(one.budget)),
        ("items", lambda one: f"{one.difference.items:,}"),
        ("points", lambda one: points(one.difference)),
        ("", lambda one: said(one.difference)),
    ]
    return _table(columns, comparisons, left=("compared", ""))


def _area_line(area: Area) -> Text:
    name = named(area.method, oracle=area.oracle)
    return Text(f"area under {name} up to {area.reference:,.0f} tokens: {percent(area.share)}", style="dim")


def _table(
    columns: Sequence[tuple[str, Callable[[Row], str]]], rows: Sequence[Row], *, left: Sequence[str] = ("method", "")
) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for name, _ in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*[Text(show(row)) for _, show in columns])
    return table


def named(method: str, *, oracle: bool) -> str:
    return f"{method} (oracle)" if oracle else method


def tokens(budget: int | None) -> str:
    return "own" if budget is None else f"{budget:,}"


def percent(share: Estimate) -> str:
    """A share with its interval.

    Example:
        percent(Estimate(0.5, 0.25, 0.75))  # "50% [25, 75]"
    """
    return f"{share.value:.0%} [{100 * share.low:.0f}, {100 * share.high:.0f}]"


def points(gap: Difference) -> str:
    return f"{100 * gap.value:+.0f} [{100 * gap.low:+.0f}, {100 * gap.high:+.0f}]"


def said(gap: Difference) -> str:
    """What a comparison comes to, in words."""
    if gap.told_apart:
        return "better" if gap.value > 0 else "worse"
    if gap.needed is None:
        return "cannot tell: no difference seen"
    return f"cannot tell: about {gap.needed:,} items would be needed"


def beyond(cell: Cell) -> str:
    return "beyond" if cell.beyond == 1 else "partly beyond" if cell.beyond else ""


def marks(cell: Cell) -> str:
    found = ["front" if cell.front else "", "beyond" if cell.beyond == 1 else ""]
    return ", ".join(mark for mark in found if mark)
