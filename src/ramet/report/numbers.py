"""What the page says in numbers: cells of methods and budgets, buckets, and differences item by item."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from ramet.evaluate import statistics
from ramet.evaluate.record import Record
from ramet.evaluate.statistics import Estimate
from ramet.evaluate.tables import is_right
from ramet.report.read import Run

ALL, WITHIN, BEYOND = "all items", "within training", "beyond training"
BASELINE = "single"
BUCKET, SIZE = "bucket", "problem size"

Key = tuple[str, str, int | None]  # run, method, budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Everything one method did under one budget, in one run."""

    run: str
    method: str
    budget: int | None
    records: tuple[Record, ...]
    accuracy: Estimate
    front: bool = False  # nobody generates fewer tokens and scores as well
    front_critical: bool = False  # the same, by critical path

    @property
    def key(self) -> Key:
        return self.run, self.method, self.budget

    @property
    def oracle(self) -> bool:
        return is_oracle(self.method)

    def mean(self, what: Callable[[Record], float]) -> float:
        return math.fsum(map(what, self.records)) / len(self.records)

    @property
    def generated(self) -> float:
        return self.mean(lambda record: record.generated)

    @property
    def critical_path(self) -> float:
        return self.mean(lambda record: record.critical_path)

    @property
    def partly(self) -> bool:
        """Some answers were neither right nor wholly wrong."""
        return any(record.score > 0 and not is_right(record) for record in self.records)

    @property
    def delegated(self) -> float:
        return self.mean(lambda record: record.delegated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A part of the table."""

    name: str
    size: float | None  # mean of its items
    beyond: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """One cell against another, on the items both have."""

    cell: Key  # the one that is asked about
    other: Key
    part: str  # ALL, WITHIN or BEYOND
    pairs: tuple[tuple[Record, Record], ...]
    gap: statistics.Difference

    @property
    def told(self) -> int:
        """1: better; -1: worse; 0: cannot tell."""
        return (1 if self.gap.value > 0 else -1) if self.gap.told_apart else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs that answered the same tasks, in one frame."""

    runs: tuple[Run, ...]
    cells: tuple[Cell, ...]
    buckets: tuple[Bucket, ...]
    methods: tuple[str, ...]
    budgets: tuple[int | None, ...]
    methods_apart: tuple[Versus, ...] = ()
    runs_apart: tuple[Versus, ...] = ()
    title: str = ""  # the split, where it is known
    place: int = 0  # on the page: different from that of any other

    def cell(self, key: Key) -> Cell | None:
        return next((cell for cell in self.cells if cell.key == key), None)

    @property
    def several(self) -> bool:
        """More than one run: their names belong into labels."""
        return len(self.runs) > 1

    def label(self, run: str, method: str) -> str:
        """What a series is called; an oracle is always called one."""
        said = f"{method} (oracle)" if is_oracle(method) else method
        return f"{said}, {run}" if self.several else said


def is_oracle(method: str) -> bool:
    """best@k looks at the reference to choose: what choosing could reach at most, no method anybody can use."""
    return method.startswith("best@")


def comparisons(runs: Sequence[Run]) -> list[Comparison]:
    """Runs with records, split by split; those that answered the same tasks together."""
    groups: list[list[tuple[str, Run]]] = []
    for piece in (piece for run in runs for piece in by_split(run)):
        near = [group for group in groups if any(_comparable(piece[1], other) for _, other in group)]
        groups = [group for group in groups if group not in near]
        groups.append([*(member for group in near for member in group), piece])
    return [compare([run for _, run in group], title=group[0][0], place=place) for place, group in enumerate(groups, 1)]


def overviews(runs: Sequence[Run]) -> list[Comparison]:
    """Runs that answered several splits, these beside each other as buckets: nothing is averaged over them."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        if run.records and len(splits_of(run)) > 1:
            groups.setdefault(splits_of(run), []).append(run)
    found = [(splits, compare(group)) for splits, group in groups.items()]
    return [
        replace(one, buckets=tuple(sorted(one.buckets, key=lambda bucket: splits.index(bucket.name))))
        for splits, one in found
    ]


def splits_of(run: Run) -> tuple[str, ...]:
    """The splits an evaluation asked for, as its settings name them. To a training, `tasks` is a number."""
    found = run.config.get("tasks")
    return tuple(map(str, cast(list[object], found))) if isinstance(found, list) else ()


def by_split(run: Run) -> list[tuple[str, Run]]:
    """The run's records of each split by themselves. With several splits, a record's bucket is its split."""
    splits = splits_of(run)
    if len(splits) < 2:
        return [(splits[0] if splits else "", run)] if run.records else []
    parts = [(split, tuple(one for one in run.records if one.bucket == split)) for split in splits]
    return [(split, replace(run, records=own)) for split, own in parts if own]


def _comparable(one: Run, other: Run) -> bool:
    """They share tasks: the same names, made with the same options."""
    alike = one.config.get("taskset") == other.config.get("taskset")
    return alike and bool({record.task for record in one.records} & {record.task for record in other.records})


def compare(runs: Sequence[Run], *, title: str = "", place: int = 0) -> Comparison:
    """Cells of all runs, with the front among them."""
    found: dict[Key, list[Record]] = {}
    for run in runs:
        for record in run.records:
            found.setdefault((run.name, record.method, record.budget), []).append(record)
    methods = tuple(dict.fromkeys(method for _, method, _ in found))
    budgets = tuple(sorted({budget for _, _, budget in found}, key=by_budget))
    names = [run.name for run in runs]
    keys = sorted(found, key=lambda key: (names.index(key[0]), methods.index(key[1]), by_budget(key[2])))
    cells = [
        Cell(run=key[0], method=key[1], budget=key[2], records=tuple(found[key]), accuracy=accuracy_of(found[key]))
        for key in keys
    ]
    plain = Comparison(
        runs=tuple(runs),
        cells=tuple(_fronts(cells)),
        buckets=tuple(buckets_of([record for run in runs for record in run.records])),
        methods=methods,
        budgets=budgets,
        title=title,
        place=place,
    )
    return replace(plain, methods_apart=tuple(between_methods(plain)), runs_apart=tuple(between_runs(plain)))


def by_budget(budget: int | None) -> float:
    """Smallest first; what the taskset declares last."""
    return math.inf if budget is None else budget


def accuracy_of(records: Sequence[Record]) -> Estimate:
    """The share of items that are right."""
    return statistics.rate(sum(map(is_right, records)), len(records))


def _fronts(cells: Sequence[Cell]) -> list[Cell]:
    """An oracle is on no front: nobody can have it. Nor is what got nothing right: nobody wants it."""
    real = [cell for cell in cells if not cell.oracle and cell.accuracy.value > 0]
    tokens = {real[i].key for i in statistics.front([(cell.generated, cell.accuracy.value) for cell in real])}
    critical = {real[i].key for i in statistics.front([(cell.critical_path, cell.accuracy.value) for cell in real])}
    return [replace(cell, front=cell.key in tokens, front_critical=cell.key in critical) for cell in cells]


def buckets_of(records: Iterable[Record]) -> list[Bucket]:
    """Parts in their order: smaller problems first where sizes are known, what lies beyond training last."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.bucket, []).append(record)
    buckets: list[Bucket] = []
    for name, own in found.items():
        sizes = [record.size for record in own if record.size is not None]
        size = math.fsum(sizes) / len(sizes) if sizes else None
        buckets.append(Bucket(name=name, size=size, beyond=any(record.beyond for record in own)))
    return sorted(buckets, key=lambda one: (one.beyond, math.inf if one.size is None else one.size))


def bucket_word(comparison: Comparison) -> str:
    """What the buckets are parts of."""
    return BUCKET if any(bucket.size is None for bucket in comparison.buckets) else SIZE


def versus(cell: Cell, other: Cell, part: str = ALL) -> Versus | None:
    """Item by item; None where they share no item of this part."""
    pairs = _pairs(cell, other, part)
    first = {one.task: float(is_right(one)) for one, _ in pairs}
    second = {two.task: float(is_right(two)) for _, two in pairs}
    gap = statistics.difference(first, second)
    return None if gap is None else Versus(cell=cell.key, other=other.key, part=part, pairs=tuple(pairs), gap=gap)


def _pairs(cell: Cell, other: Cell, part: str) -> list[tuple[Record, Record]]:
    by_task = {record.task: record for record in other.records}
    return [
        (record, by_task[record.task])
        for record in cell.records
        if record.task in by_task and (part == ALL or record.beyond == (part == BEYOND))
    ]


def between_methods(comparison: Comparison) -> list[Versus]:
    """Within each run and budget: every method against the plain one, and clones against votes."""
    found: list[Versus | None] = []
    for run in comparison.runs:
        for better, other in _rivals(comparison.methods):
            for budget in comparison.budgets:
                one = comparison.cell((run.name, better, budget))
                two = comparison.cell((run.name, other, budget))
                if one is not None and two is not None:
                    found += [versus(one, two, part) for part in parts(one)]
    return [one for one in found if one is not None]


def _rivals(methods: Sequence[str]) -> list[tuple[str, str]]:
    base = BASELINE if BASELINE in methods else methods[0]
    against = [(method, base) for method in methods if method != base]
    clones = [method for method in methods if method.startswith("clones") and method != base]
    others = [method for method in methods if method != base and method not in clones and not is_oracle(method)]
    return against + [(method, other) for method in clones for other in others]


def between_runs(comparison: Comparison) -> list[Versus]:
    """Each later run against the first: the same method, budget and items, another model."""
    first, *later = comparison.runs
    found: list[Versus | None] = []
    for run in later:
        for method in comparison.methods:
            for budget in comparison.budgets:
                one = comparison.cell((run.name, method, budget))
                two = comparison.cell((first.name, method, budget))
                if one is not None and two is not None:
                    found += [versus(one, two, part) for part in parts(one)]
    return [one for one in found if one is not None]


def parts(cell: Cell) -> tuple[str, ...]:
    """All items; and those within and beyond training by themselves where there are both."""
    kinds = {record.beyond for record in cell.records}
    return (ALL, WITHIN, BEYOND) if len(kinds) == 2 else (ALL,)
