"""Cells and comparisons: what a method reaches and costs under a budget, and how two cells differ item by item."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ramet.evaluate.methods import is_oracle
from ramet.evaluate.record import Record
from ramet.evaluate.statistics import Difference, Estimate, difference, front, mean, rate

ALL, WITHIN, BEYOND = "all items", "within training", "beyond training"

Key = tuple[str, str, int | None]  # run, method, budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The records of one method under one budget in one run."""

    run: str  # "" if there is only one run
    method: str
    budget: int | None
    bucket: str | None = None  # None: all items
    records: tuple[Record, ...]
    accuracy: Estimate  # share of items that are right
    front: bool = False  # no cheaper cell is as accurate, by generated tokens
    front_critical_path: bool = False  # the same, by critical path

    @property
    def key(self) -> Key:
        return self.run, self.method, self.budget

    @property
    def oracle(self) -> bool:
        return is_oracle(self.method)

    @property
    def items(self) -> int:
        return len(self.records)

    def mean(self, of: Callable[[Record], float]) -> float:
        """The mean over the items."""
        return math.fsum(map(of, self.records)) / len(self.records)

    def estimate(self, of: Callable[[Record], float]) -> Estimate:
        """The mean over the items with a bootstrap interval."""
        return mean([of(record) for record in self.records])

    @property
    def score(self) -> float:
        return self.mean(lambda record: record.score)

    @property
    def partly_right(self) -> bool:
        """Whether some answers are neither right nor completely wrong."""
        return any(record.score > 0 and not record.is_right for record in self.records)

    @property
    def generated(self) -> float:
        return self.mean(lambda record: record.generated)

    @property
    def processed(self) -> float:
        """Tokens read and generated, those served from a cache included."""
        return self.mean(lambda record: record.prompt + record.generated)

    @property
    def critical_path(self) -> float:
        return self.mean(lambda record: record.critical_path)

    @property
    def delegated(self) -> float:
        return self.mean(lambda record: record.delegated)

    @property
    def beyond(self) -> float:
        """Share of items beyond the training range."""
        return self.mean(lambda record: record.beyond)

    @property
    def concurrent(self) -> float | None:
        """Share of children that ran in parallel, over the items that have children."""
        shares = [record.concurrent for record in self.records if record.concurrent is not None]
        return math.fsum(shares) / len(shares) if shares else None

    @property
    def dollars(self) -> float | None:
        """Mean cost; None unless all items have a price."""
        dollars = [record.dollars for record in self.records if record.dollars is not None]
        return math.fsum(dollars) / len(dollars) if len(dollars) == len(self.records) else None


def make_cells(records_by_run: Mapping[str, Sequence[Record]], *, bucket: str | None = None) -> list[Cell]:
    """A cell for every run, method and budget: methods in the order they first appear, smaller budgets first."""
    groups: dict[Key, list[Record]] = {}
    for run, records in records_by_run.items():
        for record in records:
            groups.setdefault((run, record.method, record.budget), []).append(record)
    runs, methods = list(records_by_run), list(dict.fromkeys(method for _, method, _ in groups))
    keys = sorted(groups, key=lambda key: (runs.index(key[0]), methods.index(key[1]), budget_order(key[2])))
    return _mark_fronts([_make_cell(key, groups[key], bucket) for key in keys])


def _make_cell(key: Key, records: Sequence[Record], bucket: str | None) -> Cell:
    run, method, budget = key
    accuracy = accuracy_rate(records)
    return Cell(run=run, method=method, budget=budget, bucket=bucket, records=tuple(records), accuracy=accuracy)


def budget_order(budget: int | None) -> float:
    """For sorting: smaller budgets first, the task's own last."""
    return math.inf if budget is None else budget


def accuracy_rate(records: Sequence[Record]) -> Estimate:
    """The share of items that are right."""
    return rate(sum(record.is_right for record in records), len(records))


def on_front(cells: Sequence[Cell], cost: Callable[[Cell], float]) -> set[Key]:
    """The cells that no cheaper one equals in accuracy. Oracles, and cells that got nothing right, are on no front."""
    real = [cell for cell in cells if not cell.oracle and cell.accuracy.value > 0]
    return {real[i].key for i in front([(cost(cell), cell.accuracy.value) for cell in real])}


def _mark_fronts(cells: Sequence[Cell]) -> list[Cell]:
    tokens = on_front(cells, lambda cell: cell.generated)
    critical = on_front(cells, lambda cell: cell.critical_path)
    return [replace(cell, front=cell.key in tokens, front_critical_path=cell.key in critical) for cell in cells]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One cell against another, on the items that both have."""

    cell: Key
    other: Key
    part: str  # ALL, WITHIN or BEYOND
    pairs: tuple[tuple[Record, Record], ...]

    @cached_property
    def difference(self) -> Difference:
        """Of the shares that are right. Computed when first used: the bootstrap takes time."""
        first = {record.task: float(record.is_right) for record, _ in self.pairs}
        second = {record.task: float(record.is_right) for _, record in self.pairs}
        gap = difference(first, second)
        if gap is None:
            raise AssertionError("a comparison has at least one pair")
        return gap

    @property
    def budget(self) -> int | None:
        return self.cell[2]

    @property
    def across_runs(self) -> bool:
        return self.cell[0] != self.other[0]


def compare_cells(cell: Cell, other: Cell) -> list[Comparison]:
    """On all items, and where there are both also within and beyond training; none where they share no item."""
    kinds = {record.beyond for record in cell.records}
    parts = (ALL, WITHIN, BEYOND) if len(kinds) == 2 else (ALL,)
    by_task = {record.task: record for record in other.records}
    shared = [(record, by_task[record.task]) for record in cell.records if record.task in by_task]
    pairs = {part: tuple(pair for pair in shared if _belongs(pair[0], part)) for part in parts}
    return [Comparison(cell=cell.key, other=other.key, part=part, pairs=pairs[part]) for part in parts if pairs[part]]


def _belongs(record: Record, part: str) -> bool:
    return part == ALL or record.beyond == (part == BEYOND)
