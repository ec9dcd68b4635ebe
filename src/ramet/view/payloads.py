"""The answers of the viewer's server, as plain data for JSON."""

# pyarrow has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from ramet.errors import StoreError
from ramet.evaluate.costs import critical_path
from ramet.plugins import shortened_each
from ramet.store import RunDir
from ramet.store.checkpoints import checkpoint_step, list_checkpoints
from ramet.store.facts import node_facts
from ramet.store.seal import read_table
from ramet.train.track import scalars
from ramet.types import Tree, is_right
from ramet.view.catalog import is_inside, read_config, read_meta, read_text
from ramet.view.index import Index
from ramet.view.live import is_live

MAX_POINTS = 600  # of one curve; longer ones are thinned
METHODS = "select method, count(*) as trees from trees where method is not null group by method order by method"
HEADLINE = ("reward", "success", "delegated", "nodes", "tokens", "critical_path_tokens", "eval_success", "loss")
WARM_HEADLINE = ("loss",)  # of a supervised start: its trees are the oracle's


def run_card(name: str, path: Path) -> dict[str, Any]:
    """One line of the list of runs."""
    meta, metrics = read_meta(path), read_metrics(path)
    files = RunDir(path).files()
    newest = max((file.stat().st_mtime for file in files if file.exists()), default=None)
    last = scalars(metrics[-1]) if metrics else {}
    kind = str(meta.get("kind", "run"))
    is_warm = kind == "warmstart"
    return {
        "id": name,
        "kind": kind,
        "created": meta.get("created"),
        "changed": newest,
        "files": len(files),
        "steps": len(metrics),
        "live": is_live(path),
        "task": shortened_each(task_of(read_config(path)))[:200],
        "last": {key: last[key] for key in (WARM_HEADLINE if is_warm else HEADLINE) if key in last},
        "course": loss_course(metrics) if is_warm else [scalars(line).get("success") for line in thin(metrics, 40)],
        "cells": right_by_cell(path),
    }


def loss_course(metrics: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """The loss over the steps, as a share of its largest value."""
    values = [_finite(scalars(line).get("loss")) for line in thin(metrics, 40)]
    largest = max((value for value in values if value is not None), default=0.0)
    return [None if value is None else value / largest for value in values] if largest > 0 else []


def run_page(name: str, path: Path, index: Index) -> dict[str, Any]:
    """A run: what it is, its curves, its evaluation, and what its trees can be filtered by."""
    index.refresh()
    metrics = read_metrics(path)
    kinds = index.rows("select part, step, count(*) as trees from trees group by all order by part, step")
    values = {
        column: [row["value"] for row in index.rows(f"select distinct {column} as value from trees order by 1")]
        for column in ("stop", "verdict", "depth")
    }
    cells: list[dict[str, Any]] = []
    notes = list(index.notes)
    try:
        cells = evaluation(path, index)
    except StoreError as error:
        notes.append(str(error))
    return {
        "id": name,
        "path": str(path),
        "kind": str(read_meta(path).get("kind", "run")),
        "meta": read_meta(path),
        "config": read_text(path, "config.toml"),
        "notes": notes,
        "live": is_live(path),
        "trees": sum(row["trees"] for row in kinds),
        "methods": index.rows(METHODS),
        "parts": [row for row in kinds if row["part"] in ("step", "eval", "replay")],
        "values": values,
        "series": series(metrics),
        "evaluation": cells,
        "checkpoints": [checkpoint_step(folder) for folder in list_checkpoints(path)],
    }


def read_metrics(path: Path) -> list[dict[str, Any]]:
    if not is_inside(path / "metrics.jsonl", path):
        return []
    try:
        return RunDir(path).metrics(on_problem=lambda _: None)
    except StoreError:
        return []


def series(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The numbers of a run by name, a value per step; None where a step has none."""
    lines = thin(metrics, MAX_POINTS)
    numbers = [scalars(line) for line in lines]
    names = sorted({name for line in numbers for name in line} - {"step"})
    return {
        "steps": [line.get("step", place) for place, line in enumerate(lines)],
        "values": {name: [_finite(line.get(name)) for line in numbers] for name in names},
        "of": len(metrics),
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def thin(lines: Sequence[Any], most: int) -> list[Any]:
    """At most this many of the lines, evenly spaced, with the first and the last."""
    if len(lines) <= most:
        return list(lines)
    return [lines[round(place * (len(lines) - 1) / (most - 1))] for place in range(most)]


def task_of(config: Mapping[str, Any]) -> str:
    for key in ("task", "question"):
        if isinstance(config.get(key), str) and config[key]:
            return str(config[key])
    tasks = config.get("tasks")
    return ", ".join(map(str, cast(list[object], tasks))) if isinstance(tasks, list) else ""


def evaluation(path: Path, index: Index) -> list[dict[str, Any]]:
    """The cells of an evaluation: a method at a budget on a bucket of tasks, with its number of items."""
    records = path / "records.parquet"
    if not records.is_file() or not is_inside(records, path):
        return []
    return index.rows(
        "select method, budget, bucket, any_value(trees[1]) as tree, count(*) as items, "
        "avg((score >= 1 - 1e-9)::int) as right_share, avg(score) as score, avg(generated) as generated, "
        "avg(critical_path) as critical, avg(nodes) as nodes, avg(delegated::int) as delegated, "
        "avg(seconds) as seconds, min(size) as size "
        "from read_parquet(?) group by method, budget, bucket order by method, budget nulls first, size, bucket",
        [str(records)],
    )


def right_by_cell(path: Path) -> list[dict[str, Any]]:
    """The cells of an evaluation, a method at a budget on a split: the share of items that are right.

    Nothing is averaged over splits or budgets; a name says which one is meant where there are several.
    """
    records = path / "records.parquet"
    if not records.is_file() or not is_inside(records, path):
        return []
    names = ["task", "method", "budget", "score"]
    try:
        table = cast(dict[str, list[Any]], read_table(records, columns=names).to_pydict())
    except StoreError:
        return []
    cells: dict[tuple[str, str, int | None], list[bool]] = {}
    for task, method, budget, score in zip(*(table[name] for name in names), strict=True):
        key = str(task).rpartition("/")[0], str(method), budget
        cells.setdefault(key, []).append(score is not None and is_right(score))
    keys = sorted(cells, key=lambda key: (*key[:2], math.inf if key[2] is None else key[2]))
    splits, budgets = len({key[0] for key in keys}) > 1, len({key[2] for key in keys}) > 1
    return [
        {
            "name": _cell_name(*key, with_split=splits, with_budget=budgets),
            "items": len(cells[key]),
            "right": sum(cells[key]) / len(cells[key]),
        }
        for key in keys
    ]


def _cell_name(split: str, method: str, budget: int | None, *, with_split: bool, with_budget: bool) -> str:
    tokens = "the task's budget" if budget is None else f"{budget:,} tokens"
    return ", ".join([method, *([split] if with_split else []), *([tokens] if with_budget else [])])


def tree_page(name: str, tree: Tree) -> dict[str, Any]:
    """A tree without its texts: every node with its times, its ledger and its turns."""
    path = critical_path(tree)
    return {
        "run": name,
        "id": tree.id,
        "question": tree.task.question,
        "task_id": tree.task.id,
        "reference": _short(tree.task.reference),
        "budget": asdict(tree.budget),
        "dialect": tree.dialect,
        "seconds": tree.seconds,
        "critical": sorted(path.nodes),
        "critical_tokens": path.tokens,
        "nodes": [node_facts(node) | {"path": node.path, "state": "ended"} for node in tree.nodes],
    }


def _short(value: object) -> str | None:
    text = None if value is None else str(value)
    return text if text is None or len(text) <= 400 else text[:400] + " …"
