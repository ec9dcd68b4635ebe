"""What the demo is compared with, from the same supervised start: the credit rule as published, and a single agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from ramet.demo.effects import LARGE, SMALL
from ramet.evaluate.format import percent
from ramet.evaluate.record import Record
from ramet.evaluate.statistics import mean, rate
from ramet.train.settings import TrainConfig
from ramet.train.variants import published_variant, single_variant

OURS = "same goal, price per clone (the recipe)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One more training, and the method by which it is evaluated."""

    name: str  # of its folder
    title: str
    method: str
    change: Callable[[TrainConfig], TrainConfig]


VARIANTS = (
    Variant(name="published", title="rule as published", method="clones", change=published_variant),
    Variant(name="single", title="single agent", method="single", change=single_variant),
)


def comparison_table(records: Mapping[str, Sequence[Record]]) -> Table:
    """A column for each training, a row for each number, with 95% intervals."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    own = {title: _of_best_method(some) for title, some in records.items()}
    for title in own:
        table.add_column(Text(title), justify="right")
    for label, of in ROWS:
        table.add_row(label, *(of(some) for some in own.values()))
    return table


def _of_best_method(records: Sequence[Record]) -> list[Record]:
    """Of a model that was evaluated both ways, its records with clones."""
    clones = [record for record in records if record.method == "clones"]
    return clones or list(records)


def _share(records: Sequence[Record], holds: Callable[[Record], bool]) -> str:
    return percent(rate(sum(map(holds, records)), len(records))) if records else "–"


def _within(records: Sequence[Record], least: float = 0, most: float = float("inf")) -> list[Record]:
    return [one for one in records if not one.beyond and least <= (one.size or 0) <= most]


def _tokens(records: Sequence[Record]) -> str:
    if not records:
        return "–"
    spent = mean([float(record.generated) for record in records])
    return f"{spent.value:.0f} [{spent.low:.0f}, {spent.high:.0f}]"


ROWS: Sequence[tuple[str, Callable[[Sequence[Record]], str]]] = (
    (f"delegated, up to {SMALL} codes", lambda some: _share(_within(some, most=SMALL), lambda one: one.delegated)),
    (f"delegated, {LARGE} codes and more", lambda some: _share(_within(some, least=LARGE), lambda one: one.delegated)),
    ("right, all sizes of training", lambda some: _share(_within(some), lambda one: one.is_right)),
    (f"right, {LARGE} codes and more", lambda some: _share(_within(some, least=LARGE), lambda one: one.is_right)),
    (
        "right, beyond training",
        lambda some: _share([one for one in some if one.beyond], lambda one: one.is_right),
    ),
    ("tokens per task, sizes of training", lambda some: _tokens(_within(some))),
)
