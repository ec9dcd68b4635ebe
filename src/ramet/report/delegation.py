"""How often trees delegated and were right, by size of their task and by training step: counted from stored trees."""

# pyarrow ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

from ramet.errors import RametError
from ramet.evaluate.statistics import Estimate, rate
from ramet.interfaces import HasSizes, NamesSizes
from ramet.report.curves import table_metric
from ramet.report.read import Run, as_number
from ramet.store.seal import read_table
from ramet.tasks.registry import known_size, load_taskset, parse_spec
from ramet.types import Task, is_right

STEP_FILE = re.compile(r"step-(\d+)")
COLUMNS = ["tree", "parent", "score", "question", "task_id", "task"]
MAX_SIZES = 8  # rows; more sizes are joined to ranges
ENDS = 10  # one part in so many of the steps, at each end, is the beginning and the end of training


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Trees of one size, in one or several steps."""

    trees: int = 0
    delegated: int = 0
    right: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            trees=self.trees + other.trees,
            delegated=self.delegated + other.delegated,
            right=self.right + other.right,
        )

    def share(self, trait: str) -> Estimate:
        """The share of trees that are `delegated` or `right`, with its interval."""
        return rate(getattr(self, trait), self.trees)


def total(counts: Iterable[Counts]) -> Counts:
    return sum(counts, start=Counts())


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow:
    """The trees of one size, or of a range of sizes, step by step."""

    low: float
    high: float
    by_step: Mapping[int, Counts]

    @property
    def label(self) -> str:
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g}-{self.high:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegation:
    """Rows by rising size, over the same steps."""

    steps: tuple[int, ...]
    rows: tuple[SizeRow, ...]
    unit: str  # what sizes count; empty: not known

    @property
    def end_steps(self) -> int:
        """How many steps count as the beginning and as the end of training: a tenth of them."""
        return max(1, len(self.steps) // ENDS)

    def first_and_last(self, row: SizeRow) -> tuple[Counts, Counts]:
        """All trees of a row in the first steps and in the last steps that have such trees."""
        own = [row.by_step[step] for step in self.steps_of(row)]
        return total(own[: self.end_steps]), total(own[-self.end_steps :])

    def steps_of(self, row: SizeRow) -> list[int]:
        """The steps that have trees of a row."""
        return [step for step in self.steps if row.by_step.get(step, Counts()).trees]


Sample = tuple[float, float, int, Counts]  # least and largest size, step, what was counted


def delegation_by_size(run: Run) -> Delegation | None:
    """Counted from the stored trees of a training run, or from its metrics if trees of some steps are missing.

    None if there are fewer than two steps, if no tree delegated, or if the tasks have no sizes.
    """
    taskset = _taskset(run)
    stored = [] if taskset is None else [sample for file in run.files for sample in _read(file, taskset)]
    samples = max(stored, list(_from_metrics(run)), key=lambda found: len(_steps(found)))  # of equal ones, the trees
    steps = tuple(sorted(_steps(samples)))
    if len(steps) < 2 or not any(counts.delegated for *_, counts in samples):
        return None
    unit = taskset.size_unit if isinstance(taskset, NamesSizes) else ""
    return Delegation(steps=steps, rows=tuple(size_rows(samples)), unit=unit)


def _steps(samples: Iterable[Sample]) -> set[int]:
    return {step for *_, step, _ in samples}


def _taskset(run: Run) -> HasSizes | None:
    """The taskset of a training run, if it has sizes and can be made here."""
    options = run.config.get("taskset")
    try:
        name, _ = parse_spec(str(run.config.get("task", "")))
        taskset = load_taskset(name, **(cast(dict[str, Any], options) if isinstance(options, dict) else {}))
    except (RametError, OSError):
        return None
    return taskset if isinstance(taskset, HasSizes) else None


def _read(file: Path, taskset: HasSizes) -> Iterator[Sample]:
    """The trees of one file, if it is that of a training step."""
    named = STEP_FILE.fullmatch(file.stem)
    if named is None:
        return
    rows = cast(list[dict[str, Any]], read_table(file, columns=COLUMNS).to_pylist())
    delegated = {row["tree"] for row in rows if row["parent"] is not None}
    sizes: dict[str, float | None] = {}
    for row in rows:
        if row["parent"] is not None:
            continue
        task = row["task_id"] + "\n" + row["question"]
        if task not in sizes:
            sizes[task] = row_size(taskset, row)
        size = sizes[task]
        if size is not None:
            score = row["score"]
            right = score is not None and is_right(score)
            yield size, size, int(named[1]), Counts(trees=1, delegated=int(row["tree"] in delegated), right=int(right))


def row_size(taskset: HasSizes, row: Mapping[str, Any]) -> float | None:
    """The size of the task of a stored root; None if it has none."""
    try:
        known = json.loads(row["task"])
        task = Task(question=row["question"], id=row["task_id"], context=known["context"], reference=known["reference"])
        return known_size(taskset, task)
    except (RametError, ValueError, LookupError, TypeError, AttributeError):
        return None  # a task of another version of the taskset


def _from_metrics(run: Run) -> Iterator[Sample]:
    """The metrics `trees_by_size`, `delegated_by_size` and `success_by_size` of each step, as counts."""
    for place, record in enumerate(run.metrics):
        shares = [table_metric(record, f"{trait}_by_size") for trait in ("delegated", "success")]
        for label, number in table_metric(record, "trees_by_size").items():
            trees, values = as_number(number), [as_number(table.get(label)) for table in shares]
            ends = [float(end) for end in label.split("-") if end.isdecimal()]
            if trees is None or values[0] is None or not ends:
                continue
            delegated, right = (round(trees * (value or 0.0)) for value in values)
            counts = Counts(trees=round(trees), delegated=delegated, right=right)
            yield ends[0], ends[-1], int(as_number(record.get("step", place)) or 0), counts


def size_rows(samples: Sequence[Sample]) -> Iterator[SizeRow]:
    """A row for each size, or for each range of sizes if there are many."""
    trees = Counter[float]()
    for size, _, _, counts in samples:
        trees[size] += counts.trees
    for low, high in size_ranges(trees):
        by_step: dict[int, Counts] = {}
        largest = high
        for size, end, step, counts in samples:
            if low <= size <= high:
                by_step[step] = by_step.get(step, Counts()) + counts
                largest = max(largest, end)
        yield SizeRow(low=low, high=largest, by_step=by_step)


def size_ranges(trees: Mapping[float, int], most: int = MAX_SIZES) -> list[tuple[float, float]]:
    """The sizes that have trees if they are few, else ranges that hold about as many trees each.

    Example:
        size_ranges({1: 2, 2: 1, 3: 1, 4: 2}, most=3)  # [(1, 1), (2, 3), (4, 4)]
    """
    sizes = sorted(size for size, number in trees.items() if number > 0)
    if len(sizes) <= most:
        return [(size, size) for size in sizes]
    up_to = list(accumulate(trees[size] for size in sizes))
    ends = sorted({bisect_left(up_to, -(-place * up_to[-1] // most)) for place in range(1, most + 1)})
    starts = [0, *(end + 1 for end in ends[:-1])]
    return [(sizes[start], sizes[end]) for start, end in zip(starts, ends, strict=True)]
