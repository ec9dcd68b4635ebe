"""The tables of an evaluation as numbers: cells, buckets, comparisons and areas, section by section."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from ramet.evaluate.cells import ALL, Cell, Comparison, Key, budget_order, compare_cells, make_cells
from ramet.evaluate.format import method_label
from ramet.evaluate.methods import BASELINE, is_oracle
from ramet.evaluate.record import Record
from ramet.evaluate.statistics import Estimate, hypervolume_estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A range of sizes, or a split."""

    name: str
    size: float | None  # mean of its items
    beyond: bool  # whether any item is beyond the training range


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """The area under the front of one method: accuracy averaged over all costs up to the reference, from 0 to 1."""

    run: str
    method: str
    reference: float  # tokens
    share: Estimate

    @property
    def oracle(self) -> bool:
        return is_oracle(self.method)


@dataclass(frozen=True, kw_only=True)
class Section:
    """The records of one or more runs on the same tasks. Tables, plots and headlines are made from it."""

    runs: tuple[str, ...]
    cells: tuple[Cell, ...]
    buckets: tuple[Bucket, ...]
    title: str = ""  # the split, if it is known
    number: int = 0  # different for every section of a page

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.method for cell in self.cells))

    @property
    def budgets(self) -> tuple[int | None, ...]:
        return tuple(sorted({cell.budget for cell in self.cells}, key=budget_order))

    @property
    def several_runs(self) -> bool:
        return len(self.runs) > 1

    def cell(self, key: Key) -> Cell | None:
        return next((cell for cell in self.cells if cell.key == key), None)

    def records(self, run: str) -> list[Record]:
        return [record for cell in self.cells if cell.run == run for record in cell.records]

    def label(self, run: str, method: str) -> str:
        """The name of a series, with the run if there are several and it is not called like the method."""
        own = method_label(method)
        return f"{own}, {run}" if self.several_runs and run != own else own

    def bucket_cells(self) -> list[Cell]:
        """Cells by bucket; none if there is only one bucket."""
        if len(self.buckets) < 2:
            return []
        records = {run: self.records(run) for run in self.runs}
        return [cell for bucket in self.buckets for cell in make_cells(_in_bucket(records, bucket), bucket=bucket.name)]

    @cached_property
    def method_comparisons(self) -> tuple[Comparison, ...]:
        """Within each run and budget: every method against the baseline, and clones against votes."""
        keys = [
            ((run, method, budget), (run, other, budget))
            for run in self.runs
            for method, other in _method_pairs(self.methods)
            for budget in self.budgets
        ]
        return self._compare(keys)

    @cached_property
    def run_comparisons(self) -> tuple[Comparison, ...]:
        """Each later run against the first: same method, budget and items."""
        keys = [
            ((run, method, budget), (self.runs[0], method, budget))
            for run in self.runs[1:]
            for method in self.methods
            for budget in self.budgets
        ]
        return self._compare(keys)

    @cached_property
    def control_comparisons(self) -> tuple[Comparison, ...]:
        """Methods of two runs at the same budget, where neither run has both of them.

        That is how clones of one model are compared with a model that was trained to work alone.
        """
        own = {run: {cell.method for cell in self.cells if cell.run == run} for run in self.runs}
        keys = [
            ((run, method, budget), (control, other, budget))
            for method, other in _method_pairs(self.methods)
            for run in self.runs
            for control in self.runs
            if method in own[run] - own[control] and other in own[control] - own[run]
            for budget in self.budgets
        ]
        return self._compare(keys)

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        return (*self.method_comparisons, *self.run_comparisons, *self.control_comparisons)

    def _compare(self, keys: Iterable[tuple[Key, Key]]) -> tuple[Comparison, ...]:
        pairs = [(self.cell(key), self.cell(other)) for key, other in keys]
        return tuple(
            comparison
            for cell, other in pairs
            if cell is not None and other is not None
            for comparison in compare_cells(cell, other)
        )

    @property
    def baseline_comparisons(self) -> list[Comparison]:
        """Every method against the baseline on all items, by budget."""
        base = baseline(self.methods)
        chosen = [one for one in self.method_comparisons if one.part == ALL and one.other[1] == base]
        return sorted(chosen, key=lambda comparison: budget_order(comparison.budget))

    @cached_property
    def areas(self) -> tuple[Area, ...]:
        """The area of each method with two or more budgets."""
        cells = {run: [cell for cell in self.cells if cell.run == run] for run in self.runs}
        return tuple(area for run in self.runs for area in _areas(run, cells[run]))


def make_section(records_by_run: Mapping[str, Sequence[Record]], *, title: str = "", number: int = 0) -> Section:
    """One section of these runs."""
    return Section(
        runs=tuple(records_by_run),
        cells=tuple(make_cells(records_by_run)),
        buckets=tuple(make_buckets([record for records in records_by_run.values() for record in records])),
        title=title,
        number=number,
    )


def make_sections(records: Sequence[Record], *, splits: Sequence[str] = ()) -> list[Section]:
    """A section for each split of one run; without splits, one for all records."""
    if not splits:
        return [make_section({"": records})]
    parts = [(split, [record for record in records if record.bucket == split]) for split in splits]
    return [make_section({"": part}, title=split) for split, part in parts if part]


def make_buckets(records: Iterable[Record]) -> list[Bucket]:
    """Buckets in order: smaller problems first if sizes are known, those beyond training last."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.bucket, []).append(record)
    buckets: list[Bucket] = []
    for name, group in groups.items():
        sizes = [record.size for record in group if record.size is not None]
        size = math.fsum(sizes) / len(sizes) if sizes else None
        buckets.append(Bucket(name=name, size=size, beyond=any(record.beyond for record in group)))
    return sorted(buckets, key=lambda bucket: (bucket.beyond, math.inf if bucket.size is None else bucket.size))


def _in_bucket(records_by_run: Mapping[str, Sequence[Record]], bucket: Bucket) -> dict[str, list[Record]]:
    return {
        run: [record for record in records if record.bucket == bucket.name] for run, records in records_by_run.items()
    }


def baseline(methods: Sequence[str]) -> str:
    """The method that others are compared with: `single`, else the first."""
    return BASELINE if BASELINE in methods else methods[0]


def _method_pairs(methods: Sequence[str]) -> list[tuple[str, str]]:
    base = baseline(methods)
    clones = [method for method in methods if method.startswith("clones") and method != base]
    votes = [method for method in methods if method != base and method not in clones and not is_oracle(method)]
    pairs = [(method, base) for method in methods if method != base]
    return pairs + [(method, other) for method in clones for other in votes]


def _areas(run: str, cells: Sequence[Cell]) -> list[Area]:
    """Over the items that all cells of a method have."""
    reference = max((record.budget or record.generated for cell in cells for record in cell.records), default=0)
    areas: list[Area] = []
    for method in dict.fromkeys(cell.method for cell in cells):
        by_task = [{record.task: record for record in cell.records} for cell in cells if cell.method == method]
        shared = [task for task in by_task[0] if all(task in records for records in by_task)]
        if len(by_task) < 2 or not shared or not reference:
            continue
        area = hypervolume_estimate(
            [[records[task].generated for task in shared] for records in by_task],
            [[float(records[task].is_right) for task in shared] for records in by_task],
            reference=reference,
        )
        share = Estimate(area.value / reference, area.low / reference, area.high / reference)
        areas.append(Area(run=run, method=method, reference=reference, share=share))
    return areas


# As plain data for JSON.


def section_facts(section: Section) -> dict[str, Any]:
    """The tables of one section of an evaluation."""
    return {
        "title": section.title,
        "cells": [cell_facts(cell) for cell in section.cells],
        "buckets": [cell_facts(cell) for cell in section.bucket_cells()],
        "comparisons": [
            {
                "budget": comparison.budget,
                "method": comparison.cell[1],
                "against": comparison.other[1],
                "difference": asdict(comparison.difference),
                "oracle": is_oracle(comparison.cell[1]),
            }
            for comparison in section.baseline_comparisons
        ],
        "areas": [
            {"method": area.method, "reference": area.reference, "share": asdict(area.share), "oracle": area.oracle}
            for area in section.areas
        ],
    }


def cell_facts(cell: Cell) -> dict[str, Any]:
    """A cell without its records: means per item, some with intervals."""
    return {
        "method": cell.method,
        "budget": cell.budget,
        "bucket": cell.bucket,
        "items": cell.items,
        "accuracy": asdict(cell.accuracy),
        "score": asdict(cell.estimate(lambda record: record.score)),
        "generated": asdict(cell.estimate(lambda record: record.generated)),
        "critical_path": asdict(cell.estimate(lambda record: record.critical_path)),
        "critical_path_prompts": cell.mean(lambda record: record.critical_path_prompts),
        "prompt": cell.mean(lambda record: record.prompt),
        "cached": cell.mean(lambda record: record.cached),
        "peak_window": cell.mean(lambda record: record.peak_window),
        "nodes": cell.mean(lambda record: record.nodes),
        "depth": cell.mean(lambda record: record.depth),
        "delegated": cell.delegated,
        "concurrent": cell.concurrent,
        "seconds": cell.mean(lambda record: record.seconds),
        "dollars": cell.dollars,
        "oracle": cell.oracle,
        "beyond": cell.beyond,
        "front": cell.front,
    }
