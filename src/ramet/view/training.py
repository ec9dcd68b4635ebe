"""Training over time: delegation by size and depth, and what changed between two checkpoints on the same tasks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ramet.errors import ConfigError, StoreError
from ramet.interfaces import HasSizes, NamesSizes, Taskset
from ramet.report.delegation import Counts, Sample, row_size, size_rows
from ramet.tasks.registry import load_taskset, taskset_names
from ramet.types import is_right
from ramet.view.catalog import read_config
from ramet.view.index import Index
from ramet.view.payloads import read_metrics, task_of, thin

SIZE_LABEL = re.compile(r"\d+(?:\.\d+)?(?:-\d+(?:\.\d+)?)?")  # 4, or a range: 17-32
MAX_STEPS = 90  # columns of the pictures of delegation


def delegation(path: Path, index: Index) -> dict[str, Any]:
    """How often trees delegate and are right, by size of their task and by depth of the node, step by step."""
    known = [row["step"] for row in index.rows("select distinct step from trees where part = 'step' order by 1")]
    steps = thin(known, MAX_STEPS)
    taskset = taskset_of(path)
    return {
        "steps": steps,
        "of": len(known),
        "by_depth": _by_depth(index, steps),
        "by_size": _by_size(taskset, index, steps) or _by_logged_size(read_metrics(path), steps),
        "unit": taskset.size_unit if isinstance(taskset, NamesSizes) else "",
    }


def _by_depth(index: Index, steps: Sequence[int]) -> list[dict[str, Any]]:
    files = _files_of(index, steps)
    if not files:
        return []
    return index.rows(
        "with nodes as (select filename as file, tree, node, parent, depth, score from "
        "read_parquet(?, filename = true)), parents as (select distinct file, tree, parent as node from nodes where "
        "parent is not null), steps as (select distinct file, step from trees) "
        "select step, depth, count(*) as n, count(parents.node) as delegated, "
        "count(*) filter (where score >= 1 - 1e-9) as right_ from nodes left join parents using (file, tree, node) "
        "join steps using (file) group by step, depth order by depth, step",
        [files],
    )


def _files_of(index: Index, steps: Sequence[int]) -> list[str]:
    found = index.rows("select distinct file, step from trees where part = 'step' order by step")
    return [row["file"] for row in found if row["step"] in set(steps)]


def _by_size(taskset: Taskset | None, index: Index, steps: Sequence[int]) -> list[dict[str, Any]]:
    """Empty if the taskset of the run has no sizes."""
    files = _files_of(index, steps)
    if not isinstance(taskset, HasSizes) or not files:
        return []
    rows = index.rows(
        "select step, t.tree, t.score, t.nodes, p.question, p.task_id, p.task from trees t join "
        "(select filename as file, tree, question, task_id, task from read_parquet(?, filename = true) "
        "where parent is null) p using (file, tree)",
        [files],
    )
    return _cells(
        [(size, size, row["step"], _count(row)) for row in rows if (size := row_size(taskset, row)) is not None]
    )


def _count(row: Mapping[str, Any]) -> Counts:
    """One tree."""
    right = row["score"] is not None and is_right(row["score"])
    return Counts(trees=1, delegated=int(row["nodes"] > 1), right=int(right))


def _by_logged_size(metrics: Sequence[Mapping[str, Any]], steps: Sequence[int]) -> list[dict[str, Any]]:
    """The same from the metrics, for a taskset of one's own: nothing of its file is run to show it.

    Metrics join sizes above 16 to ranges like 17-32. The largest range is named by where it begins, because its tasks
    may be smaller than its end.
    """
    newest = {line.get("step"): line for line in metrics}  # a repeated step is logged again
    samples = [sample for step in steps if step in newest for sample in _logged(step, newest[step])]
    starts = [low for low, high, *_ in samples if low < high]
    return _cells(samples, open_from=max(starts, default=math.inf))


def _logged(step: int, line: Mapping[str, Any]) -> Iterator[Sample]:
    trees, delegated, right = (_table(line, f"{name}_by_size") for name in ("trees", "delegated", "success"))
    for label in trees.keys() & delegated.keys() & right.keys():
        if SIZE_LABEL.fullmatch(label):
            low, _, high = label.partition("-")
            shares = {"delegated": round(delegated[label] * trees[label]), "right": round(right[label] * trees[label])}
            yield float(low), float(high or low), step, Counts(trees=int(trees[label]), **shares)


def _table(line: Mapping[str, Any], name: str) -> dict[str, float]:
    """A metric by label, without labels whose value is unknown."""
    found = line.get(name)
    table = cast(dict[str, Any], found) if isinstance(found, dict) else {}
    return {label: value for label, value in table.items() if isinstance(value, (int, float)) and math.isfinite(value)}


def _cells(samples: Sequence[Sample], *, open_from: float = math.inf) -> list[dict[str, Any]]:
    """Trees, delegated and right ones by size and step, in the ranges of the report."""
    return [
        {
            "size": f"{row.low:g} or more" if row.low <= open_from <= row.high else row.label,
            "low": row.low,
            "step": step,
            "n": counts.trees,
            "delegated": counts.delegated,
            "right_": counts.right,
        }
        for row in size_rows(samples)
        for step, counts in sorted(row.by_step.items())
    ]


def taskset_of(path: Path) -> Taskset | None:
    """The taskset of a run, if it can be made here without running a file that the run names."""
    config = read_config(path)
    name = task_of(config).partition(":")[0]
    if name not in taskset_names():
        return None
    options = config.get("taskset")
    try:
        return load_taskset(name, **(cast(dict[str, Any], options) if isinstance(options, dict) else {}))
    except (ConfigError, StoreError, OSError):
        return None


def same_tasks(first: Index, second: Index, parts: tuple[Mapping[str, str], Mapping[str, str]]) -> dict[str, Any]:
    """The tasks that two sets of trees share, with a tree of each: what changed between two checkpoints.

    A set is what passes the filters of the table of trees: `part` and `step` of a training, `method` of an evaluation.
    """
    sides = [_by_task(index, part) for index, part in zip((first, second), parts, strict=True)]
    shared = [task for task in sides[0] if task in sides[1]]
    shared.sort(
        key=lambda task: (-abs((sides[0][task]["score"] or 0) - (sides[1][task]["score"] or 0)), _natural(task))
    )
    rows = [{"task_id": task, "first": sides[0][task], "second": sides[1][task]} for task in shared]
    return {"rows": rows, "sizes": [len(side) for side in sides]}


def _natural(task: str) -> list[tuple[int, str]]:
    """For sorting: `eval/2` comes before `eval/10`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", task)]


def _by_task(index: Index, filters: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    where, values = index.where(filters)
    found = index.rows(
        "select task_id, count(*) as trees, avg(score) as score, avg((nodes > 1)::int) as delegated, "
        f"avg(nodes) as nodes, avg(tokens) as tokens, avg(critical) as critical, min(tree) as tree from trees{where} "
        "group by task_id order by task_id",
        values,
    )
    return {row["task_id"]: row for row in found if row["task_id"] not in (None, "task")}
