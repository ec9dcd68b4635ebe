"""Training over time: delegation by size and depth, and what changed between two checkpoints on the same tasks."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ramet.errors import ConfigError, RametError, StoreError
from ramet.interfaces import HasSizes, NamesSizes, Taskset
from ramet.tasks.registry import known_size, load_taskset
from ramet.types import Task
from ramet.view.catalog import read_config
from ramet.view.index import Index
from ramet.view.payloads import read_metrics, task_of, thin

SIZE_LABEL = re.compile(r"\d+(?:\.\d+)?(?:-\d+(?:\.\d+)?)?")  # 4, or a range: 17-32
MAX_STEPS = 90  # columns of the pictures of delegation
MAX_SIZES = 12  # rows
MAX_TASKS = 2000  # compared, those that changed most


def delegation(path: Path, index: Index) -> dict[str, Any]:
    """How often trees delegate and are right, by size of their task and by depth of the node, step by step."""
    steps = [row["step"] for row in index.rows("select distinct step from trees where part = 'step' order by 1")]
    steps = thin(steps, MAX_STEPS)
    taskset = taskset_of(path)
    return {
        "steps": steps,
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
    sized = [(size, row) for row in rows if (size := _size(taskset, row)) is not None]
    return _cells(sized)


def _by_logged_size(metrics: Sequence[Mapping[str, Any]], steps: Sequence[int]) -> list[dict[str, Any]]:
    """The same from the metrics, for a taskset of one's own: nothing of its file is run to show it."""
    newest = {line.get("step"): line for line in metrics}  # a repeated step is logged again
    cells = [cell for step in steps if step in newest for cell in _logged_cells(step, newest[step])]
    return sorted(cells, key=lambda cell: (cell["low"], cell["step"]))


def _logged_cells(step: int, line: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    trees, delegated, right = (_table(line, f"{name}_by_size") for name in ("trees", "delegated", "success"))
    for label in trees.keys() & delegated.keys() & right.keys():
        if SIZE_LABEL.fullmatch(label):
            shares = {"delegated": round(delegated[label] * trees[label]), "right_": round(right[label] * trees[label])}
            low, size = float(label.partition("-")[0]), label.replace("-", " to ")
            yield {"size": size, "low": low, "step": step, "n": int(trees[label]), **shares}


def _table(line: Mapping[str, Any], name: str) -> dict[str, float]:
    """A metric by label, without labels whose value is unknown."""
    found = line.get(name)
    table = cast(dict[str, Any], found) if isinstance(found, dict) else {}
    return {label: value for label, value in table.items() if isinstance(value, (int, float)) and math.isfinite(value)}


def _size(taskset: HasSizes, row: Mapping[str, Any]) -> float | None:
    try:
        known = json.loads(row["task"])
        task = Task(question=row["question"], id=row["task_id"], context=known["context"], reference=known["reference"])
        return known_size(taskset, task)
    except (RametError, ValueError, KeyError, TypeError, AttributeError, LookupError):
        return None  # a task of another version of the taskset


def _cells(sized: Sequence[tuple[float, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Trees, delegated and right ones by size and step. Many sizes are joined to a few ranges."""
    bounds = _ranges(sorted(size for size, _ in sized))
    cells: dict[tuple[str, int], dict[str, Any]] = {}
    for size, row in sized:
        low, high = next(bound for bound in bounds if size <= bound[1])
        label = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        empty: dict[str, Any] = {"size": label, "low": low, "step": row["step"], "n": 0, "delegated": 0, "right_": 0}
        cell = cells.setdefault((label, row["step"]), empty)
        cell["n"] += 1
        cell["delegated"] += row["nodes"] > 1
        cell["right_"] += row["score"] is not None and row["score"] >= 1 - 1e-9
    return sorted(cells.values(), key=lambda cell: (cell["low"], cell["step"]))


def _ranges(sizes: Sequence[float]) -> list[tuple[float, float]]:
    """The sizes themselves if they are few, else ranges that hold about as many trees each."""
    distinct = sorted(set(sizes))
    if len(distinct) <= MAX_SIZES:
        return [(size, size) for size in distinct]
    cuts = sorted({sizes[(place * len(sizes)) // MAX_SIZES - 1] for place in range(1, MAX_SIZES + 1)} | {sizes[-1]})
    lows = [distinct[0], *(min(size for size in distinct if size > cut) for cut in cuts[:-1])]
    return list(zip(lows, cuts, strict=True))


def taskset_of(path: Path) -> Taskset | None:
    """The taskset of a run, if it can be made here."""
    config = read_config(path)
    name = task_of(config).partition(":")[0]
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
    shared.sort(key=lambda task: abs((sides[0][task]["score"] or 0) - (sides[1][task]["score"] or 0)), reverse=True)
    rows = [{"task_id": task, "first": sides[0][task], "second": sides[1][task]} for task in shared[:MAX_TASKS]]
    return {"rows": rows, "shared": len(shared), "sizes": [len(side) for side in sides]}


def _by_task(index: Index, filters: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    where, values = index.where(filters)
    found = index.rows(
        "select task_id, count(*) as trees, avg(score) as score, avg((nodes > 1)::int) as delegated, "
        f"avg(nodes) as nodes, avg(tokens) as tokens, avg(critical) as critical, min(tree) as tree from trees{where} "
        "group by task_id order by task_id",
        values,
    )
    return {row["task_id"]: row for row in found if row["task_id"] not in (None, "task")}
