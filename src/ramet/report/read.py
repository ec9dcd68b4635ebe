"""Read run directories. Of an incomplete run everything readable is read, and notes list what is missing."""

# pyarrow ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from ramet.errors import ConfigError, StoreError
from ramet.evaluate.journal import read_records
from ramet.evaluate.record import Record
from ramet.store import RunDir
from ramet.store.checkpoints import WARM
from ramet.store.seal import read_table
from ramet.store.tree_files import check_file, read_file
from ramet.types import Stop, Tree

PARTS = ("meta.json", "config.toml", "metrics.jsonl", "records.parquet", "trees")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The content of a run directory."""

    path: Path
    name: str  # labels its series; unique on the page
    kind: str  # run, train, warmstart, eval
    meta: dict[str, Any]
    config: dict[str, Any]
    records: tuple[Record, ...]
    metrics: tuple[dict[str, Any], ...]
    files: tuple[Path, ...]  # tree files that can be read
    tree_files: Mapping[str, Path]  # the file of each tree, by the tree's id
    notes: tuple[str, ...]  # what is missing or cannot be read

    @property
    def tree_ids(self) -> Set[str]:
        return self.tree_files.keys()


def read_runs(paths: Sequence[Path], *, names: Sequence[str | None] | None = None) -> list[Run]:
    """The runs in order, each with a unique name: the given one, or that of its directory."""
    if not paths:
        raise ConfigError("which runs? give one or more run directories")
    if len({path.resolve() for path in paths}) < len(paths):
        raise ConfigError("a run is named twice")
    runs = [read_run(path) for path in paths]
    given = [None] * len(paths) if names is None else names
    final = [name or own for name, own in zip(given, short_names(paths), strict=True)]
    if len(set(final)) < len(final):
        raise ConfigError(f"two runs have the same name: {', '.join(final)}")
    return [replace(run, name=name) for run, name in zip(runs, final, strict=True)]


def short_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of each path, as few as make them different.

    Example:
        short_names([Path("a/small"), Path("b/small")])  # ["a/small", "b/small"]
    """
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def read_run(path: Path) -> Run:
    """Read one run directory. Missing parts are left out; a directory that is not a run is refused."""
    if not path.is_dir():
        raise ConfigError(f"{path} is not a run directory: {'it is a file' if path.exists() else 'it does not exist'}")
    if not any((path / part).exists() for part in PARTS):
        raise ConfigError(f"{path} is not a run directory: it has none of {', '.join(PARTS)}")
    notes: list[str] = []
    meta = _meta(path, notes)
    config = _config(path, notes)
    records = _records(path, notes)
    metrics = _metrics(path, notes)
    files, tree_files = _tree_files(path, notes)
    _check_trees(records, tree_files, notes)
    kind = str(meta.get("kind") or _guess_kind(records, metrics))
    return Run(
        path=path,
        name=path.resolve().name,
        kind=kind,
        meta=meta,
        config=config,
        records=tuple(records),
        metrics=tuple(metrics),
        files=tuple(files),
        tree_files=tree_files,
        notes=tuple(notes),
    )


def read_warm_start(run: Run) -> Run | None:
    """The warm start inside the directory of a training run."""
    inside = run.path / WARM
    return replace(read_run(inside), name=f"{run.name}/{WARM}") if (inside / "metrics.jsonl").is_file() else None


def read_trees(run: Run, ids: Iterable[str]) -> dict[str, Tree]:
    """The trees with these ids, as far as they are stored. Only the files that have them are read."""
    by_file: dict[Path, list[str]] = {}
    for name in sorted(set(ids) & run.tree_ids):
        by_file.setdefault(run.tree_files[name], []).append(name)
    return {tree.id: tree for file in sorted(by_file) for tree in read_file(file, by_file[file])}


def read_stops(run: Run) -> dict[str, Stop]:
    """How the root of every stored tree ended."""
    found: dict[str, Stop] = {}
    for file in run.files:
        table = read_table(file, columns=["tree", "stop"], filters=[("depth", "=", 0)])
        rows = cast(list[dict[str, Any]], table.to_pylist())
        found |= {row["tree"]: Stop(row["stop"]) for row in rows if row["stop"] in set(Stop)}
    return found


def read_references(run: Run) -> dict[str, str]:
    """The right answer of each task whose reference is a text or a number, or has one under `answer`."""
    found: dict[str, str] = {}
    for file in run.files:
        table = read_table(file, columns=["task_id", "task"], filters=[("task_id", "!=", "")])
        for row in cast(list[dict[str, Any]], table.to_pylist()):
            if row["task_id"] not in found and row["task"] is not None:
                reference: object = cast(dict[str, Any], json.loads(row["task"])).get("reference")
                answer = cast(dict[str, object], reference).get("answer") if isinstance(reference, dict) else reference
                if isinstance(answer, str | int | float):
                    found[row["task_id"]] = str(answer)
    return found


def read_questions(run: Run) -> dict[str, tuple[str, str]]:
    """The question of each task that has a stored tree, and its reference and texts as JSON."""
    found: dict[str, tuple[str, str]] = {}
    for file in run.files:
        table = read_table(file, columns=["task_id", "question", "task"], filters=[("task_id", "!=", "")])
        for row in cast(list[dict[str, Any]], table.to_pylist()):
            found.setdefault(row["task_id"], (row["question"] or "", row["task"] or ""))
    return found


def newest_trees(run: Run, most: int) -> list[str]:
    """Ids of the trees that were written last, in order."""
    ids: list[str] = []
    for file in reversed(run.files):
        column = read_table(file, columns=["tree"]).column("tree").to_pylist()
        ids = [*dict.fromkeys(cast(list[str], column)), *ids]
        if len(ids) >= most:
            break
    return ids[-most:]


def as_number(value: object) -> float | None:
    """A finite number; None for anything else."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _meta(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        found: object = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append("meta.json is missing: command and version are not known")
        return {}
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"meta.json cannot be read: {_reason(error)}")
        return {}
    if not isinstance(found, dict):
        notes.append("meta.json cannot be read: it is not a JSON object")
        return {}
    return cast(dict[str, Any], found)


def _config(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append("config.toml is missing: its settings are not known")
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"config.toml cannot be read: {_reason(error)}")
    return {}


def _metrics(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    problems: list[str] = []
    try:
        found = RunDir(path).metrics(on_problem=problems.append)
    except StoreError:
        return []
    if problems:
        notes.append(f"metrics.jsonl: {len(problems)} of {len(problems) + len(found)} lines cannot be read")
    return found


def _records(path: Path, notes: list[str]) -> list[Record]:
    try:
        return read_records(path)
    except StoreError as error:
        notes.append(f"records.parquet cannot be read: {_reason(error).partition(': ')[2]}")
        return []


def _tree_files(path: Path, notes: list[str]) -> tuple[list[Path], dict[str, Path]]:
    """The tree files that can be read, and the file of each tree."""
    files: list[Path] = []
    tree_files: dict[str, Path] = {}
    for file in RunDir(path).files():
        try:
            check_file(file)
            table = read_table(file, columns=["tree"])
        except StoreError as error:
            notes.append(f"trees/{file.name} cannot be read: {_reason(error).partition(': ')[2] or error}")
            continue
        files.append(file)
        tree_files |= dict.fromkeys(cast(list[str], table.column("tree").to_pylist()), file)
    return files, tree_files


def _check_trees(records: Sequence[Record], tree_files: Mapping[str, Path], notes: list[str]) -> None:
    lost = sum(not tree_files.keys() >= set(record.trees) for record in records)
    if lost:
        notes.append(
            f"{lost} of {len(records)} items have trees that are not in trees/: their numbers are still counted"
        )


def _guess_kind(records: Sequence[Record], metrics: Sequence[dict[str, Any]]) -> str:
    if records:
        return "eval"
    return "train" if metrics else "run"


def _reason(error: Exception) -> str:
    """The reason in one line."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
