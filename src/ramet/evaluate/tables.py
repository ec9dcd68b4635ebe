"""Tables out of records, as numbers: what each method reaches and costs, in all and by size, and who is better."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ramet.evaluate.methods import method_of
from ramet.evaluate.record import Record
from ramet.evaluate.statistics import Difference, Estimate, difference, front, hypervolume_of, mean, rate

WON = 1.0 - 1e-9  # from this score on an item is right


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One method under one budget: what it reaches and what it costs, averages over its items."""

    method: str
    budget: int | None
    bucket: str | None  # None: all items of the section
    items: int
    accuracy: Estimate  # share of items that are right
    score: Estimate  # the mean, where answers can be partly right
    generated: Estimate
    critical_path: Estimate
    critical_path_prompts: float
    prompt: float
    cached: float
    peak_window: float
    nodes: float
    depth: float
    delegated: float
    concurrent: float | None
    seconds: float
    dollars: float | None
    oracle: bool
    beyond: float  # share of items beyond what the model was trained on
    front: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two methods under one budget, item by item."""

    budget: int | None
    method: str
    against: str
    difference: Difference  # of the shares that are right
    oracle: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """How much of the square of accuracy and cost lies under a method's front, from 0 to 1."""

    method: str
    reference: float  # tokens up to which it is counted
    share: Estimate
    oracle: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """All tables of one split, or of one evaluation."""

    title: str
    cells: list[Cell]
    buckets: list[Cell]
    comparisons: list[Comparison]
    areas: list[Area]


def sections_of(records: Sequence[Record], *, splits: Sequence[str] = ()) -> list[Section]:
    """A section for each split; without splits, one for all records."""
    if not splits:
        return [section_of(records, title="")]
    parts = [(split, [record for record in records if record.bucket == split]) for split in splits]
    return [section_of(part, title=split) for split, part in parts if part]


def section_of(records: Sequence[Record], *, title: str) -> Section:
    cells = cells_of(records)
    names = list(dict.fromkeys(record.bucket for record in sorted(records, key=lambda one: one.size or 0.0)))
    parts = [cell for name in names for cell in cells_of([one for one in records if one.bucket == name], bucket=name)]
    return Section(
        title=title,
        cells=cells,
        buckets=parts if len(names) > 1 else [],
        comparisons=comparisons_of(records),
        areas=areas_of(records),
    )


def cells_of(records: Sequence[Record], *, bucket: str | None = None) -> list[Cell]:
    """A cell for every method and budget, in the order they first appear.

    The front goes over all but oracles and those that got nothing right.
    """
    cells = [_cell(part, bucket) for part in _parts(records)]
    open_ = [cell for cell in cells if not cell.oracle and cell.accuracy.value > 0]
    best = front([(cell.generated.value, cell.accuracy.value) for cell in open_])
    marked = {id(open_[i]) for i in best}
    return [replace(cell, front=id(cell) in marked) for cell in cells]


def _parts(records: Sequence[Record]) -> list[list[Record]]:
    parts: dict[tuple[str, int | None], list[Record]] = {}
    for record in records:
        parts.setdefault((record.method, record.budget), []).append(record)
    return list(parts.values())


def _cell(records: Sequence[Record], bucket: str | None) -> Cell:
    shares = [record.concurrent for record in records if record.concurrent is not None]
    dollars = [record.dollars for record in records if record.dollars is not None]
    return Cell(
        method=records[0].method,
        budget=records[0].budget,
        bucket=bucket,
        items=len(records),
        accuracy=rate(sum(is_right(record) for record in records), len(records)),
        score=mean([record.score for record in records]),
        generated=mean([record.generated for record in records]),
        critical_path=mean([record.critical_path for record in records]),
        critical_path_prompts=_mean(record.critical_path_prompts for record in records),
        prompt=_mean(record.prompt for record in records),
        cached=_mean(record.cached for record in records),
        peak_window=_mean(record.peak_window for record in records),
        nodes=_mean(record.nodes for record in records),
        depth=_mean(record.depth for record in records),
        delegated=_mean(record.delegated for record in records),
        concurrent=_mean(shares) if shares else None,
        seconds=_mean(record.seconds for record in records),
        dollars=_mean(dollars) if len(dollars) == len(records) else None,
        oracle=method_of(records[0].method).oracle,
        beyond=_mean(record.beyond for record in records),
    )


def is_right(record: Record) -> bool:
    """Whether an item counts as solved: nothing less than a full score."""
    return record.score >= WON


def _mean(values: Iterable[float]) -> float:
    held = list(values)
    return sum(held) / len(held)


def comparisons_of(records: Sequence[Record]) -> list[Comparison]:
    """Every method against `single`, or against the first one, at each budget."""
    methods = list(dict.fromkeys(record.method for record in records))
    budgets = list(dict.fromkeys(record.budget for record in records))
    against = "single" if "single" in methods else methods[0]
    found: list[Comparison] = []
    for budget in budgets:
        base = _right_by_task(records, against, budget)
        for method in methods:
            gap = difference(_right_by_task(records, method, budget), base) if method != against else None
            if gap is not None:
                oracle = method_of(method).oracle
                found.append(Comparison(budget=budget, method=method, against=against, difference=gap, oracle=oracle))
    return found


def _right_by_task(records: Sequence[Record], method: str, budget: int | None) -> dict[str, float]:
    mine = [record for record in records if record.method == method and record.budget == budget]
    return {record.task: float(is_right(record)) for record in mine}


def areas_of(records: Sequence[Record]) -> list[Area]:
    """Of each method under two or more budgets, over the items that all its cells have done."""
    parts = _parts(records)
    reference = max((record.budget or record.generated for record in records), default=0)
    areas: list[Area] = []
    for method in dict.fromkeys(record.method for record in records):
        cells = [{one.task: one for one in part} for part in parts if part[0].method == method]
        shared = [task for task in cells[0] if all(task in cell for cell in cells)]
        if len(cells) < 2 or not shared or not reference:
            continue
        area = hypervolume_of(
            [[cell[task].generated for task in shared] for cell in cells],
            [[float(is_right(cell[task])) for task in shared] for cell in cells],
            reference=reference,
        )
        share = Estimate(area.value / reference, area.low / reference, area.high / reference)
        areas.append(Area(method=method, reference=reference, share=share, oracle=method_of(method).oracle))
    return areas
