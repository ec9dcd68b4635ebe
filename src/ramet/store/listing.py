"""What a run directory holds, at a glance: without reading its trees, and whatever state it is in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramet.errors import StoreError
from ramet.store.checkpoints import WARM
from ramet.store.run_dir import RunDir
from ramet.store.sql import query


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One run directory."""

    path: Path
    kind: str = ""
    about: str = ""  # question, task or tasks
    steps: int | None = None  # done, of a training
    of_steps: int | None = None
    supervised: bool = False  # the steps are those of the supervised start: there are no others yet
    trees: int | None = None
    success: float | None = None  # newest evaluation or step of a training; mean score of other runs of one cell
    created: str = ""  # UTC
    size: int = 0  # bytes
    problem: str = ""  # why it cannot be read


def list_runs(folder: Path) -> Iterator[Listing]:
    """Every run directory in a folder, newest first."""
    try:
        paths = [path for path in folder.iterdir() if (path / "meta.json").is_file()]
    except FileNotFoundError:
        raise StoreError(f"there is no folder {folder}") from None
    except OSError as error:
        raise StoreError(f"cannot read {folder}: {error.strerror}") from None
    found = [look_at(path) for path in paths]
    return iter(sorted(found, key=lambda run: (run.created, str(run.path)), reverse=True))


def look_at(path: Path) -> Listing:
    """What one run directory holds. One that cannot be read has a `problem`."""
    size = folder_size(path)
    try:
        run = RunDir.open(path)
        meta, config = run.meta, run.settings
        facts = _training(run, config) if run.kind in ("train", "warmstart") else _trees(run, config)
    except StoreError as error:
        return Listing(path=path, size=size, problem=str(error))
    about = (
        config.get("question") or config.get("task") or ", ".join(config.get("tasks", [])) or meta.get("questions", "")
    )
    return Listing(path=path, kind=run.kind, about=str(about), created=str(meta.get("created", "")), size=size, **facts)


def folder_size(path: Path) -> int:
    """Bytes of all files in a folder."""
    total = 0
    for parent, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:  # a file that another process has just removed
                continue
    return total


def _training(run: RunDir, config: dict[str, Any]) -> dict[str, Any]:
    records = run.metrics()
    if not records and (run.path / WARM / "meta.json").is_file():
        start = RunDir.open(run.path / WARM)
        steps = len(start.metrics())
        return {"steps": steps, "of_steps": start.settings.get("steps"), "supervised": True}
    values = [record.get("eval_success") for record in records] + [None]
    newest = next((value for value in reversed(values) if value is not None), None)
    if newest is None and records and run.kind == "train":  # the trees of a warmstart are the oracle's
        newest = records[-1].get("success")
    return {"steps": len(records), "of_steps": config.get("steps"), "success": newest}


def _trees(run: RunDir, config: dict[str, Any]) -> dict[str, Any]:
    """The trees and their mean score; none for an evaluation of several cells, where it would mix them."""
    if not run.files():
        return {"trees": 0}
    _, rows = query(run, "select count(*), avg(score) from trees", on_problem=lambda _: None)
    trees, score = rows[0]
    mixed = any(len(config.get(cells) or ()) > 1 for cells in ("tasks", "methods", "budgets"))
    return {"trees": trees, "success": None if mixed else score}
