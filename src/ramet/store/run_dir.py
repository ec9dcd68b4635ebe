"""A run is a directory; its trees are Parquet files with one row per node.

    runs/<name>/  config.toml  meta.json  metrics.jsonl  trees/*.parquet

The directory and its tree files are written atomically: whenever a process is killed, `ramet show` and `ramet sql` can
read what it left.
"""

# pyarrow ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tomllib
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import ramet
from ramet.config import to_toml
from ramet.errors import StoreError
from ramet.store.atomic import atomic_folder, write_text
from ramet.store.facts import finite
from ramet.store.parquet import SCHEMA, trees_to_table
from ramet.store.seal import reason, write_table
from ramet.store.tree_files import check_file, check_schema, read_file
from ramet.types import Tree

STEP_FILE = re.compile(r"(?:step|replay)-(\d+)")  # names of tree files of a training step
OnProblem = Callable[[str], None]  # called with one line about a file that cannot be read


class RunDir:
    """A run directory, new or existing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(
        cls,
        parent: Path | str,
        name: str,
        *,
        config: Any = None,
        kind: str = "run",
        facts: Mapping[str, Any] | None = None,
    ) -> RunDir:
        """Create `parent/name`, or `name-2`, `name-3` ... when that name is taken. `facts` go into meta.json."""
        for path in _names(Path(parent), slug(name)):
            if path.exists():
                continue
            try:
                return cls.create_at(path, config=config, kind=kind, facts=facts)
            except StoreError:
                if not path.exists():  # else another process took the name first
                    raise
        raise StoreError(f"no free name like {slug(name)} in {parent}")

    @classmethod
    def create_at(
        cls, path: Path | str, *, config: Any = None, kind: str, facts: Mapping[str, Any] | None = None
    ) -> RunDir:
        """Create a run directory at this path, which is absent or an empty directory. `facts` go into meta.json."""
        path = Path(path)
        meta = _meta(kind) | dict(facts or {})
        try:
            with atomic_folder(path) as folder:
                (folder / "trees").mkdir()
                (folder / "config.toml").write_text("" if config is None else to_toml(config), encoding="utf-8")
                (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
                (folder / "metrics.jsonl").touch()
        except (OSError, UnicodeError) as error:
            raise StoreError(f"cannot write to {path.parent}: {reason(error)}") from None
        return cls(path)

    @classmethod
    def open(cls, path: Path | str) -> RunDir:
        """Open an existing run, after checking that this version can read it."""
        path = Path(path)
        run = cls(path)
        meta = run.meta
        if "schema" not in meta:
            raise StoreError(f"cannot read {path / 'meta.json'}: it has no field schema")
        check_schema(meta["schema"], path / "meta.json")
        return run

    @property
    def meta(self) -> dict[str, Any]:
        """The contents of meta.json."""
        path = self.path / "meta.json"
        try:
            found: object = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            lacks = "it has no meta.json" if self.path.exists() else "it does not exist (ramet ls lists runs)"
            around = next((parent for parent in self.path.parents if (parent / "meta.json").is_file()), None)
            lacks += f"; did you mean {around}, which it is in?" if around else ""
            raise StoreError(f"{self.path} is not a run directory: {lacks}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise StoreError(f"cannot read {path}: {reason(error)}") from None
        if not isinstance(found, dict):
            raise StoreError(f"cannot read {path}: it is not a JSON object")
        return cast(dict[str, Any], found)

    def write_meta(self, meta: Mapping[str, Any]) -> None:
        """Replace the contents of meta.json."""
        path = self.path / "meta.json"
        try:
            write_text(path, json.dumps(meta, indent=1))
        except OSError as error:
            raise StoreError(f"cannot write {path}: {reason(error)}") from None

    @property
    def settings(self) -> dict[str, Any]:
        """The contents of config.toml, as nested tables."""
        path = self.path / "config.toml"
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise StoreError(f"cannot read {path}: {reason(error)}") from None

    @property
    def kind(self) -> str:
        """Which command made it: run, fork, serve, train, warmstart, eval."""
        return str(self.meta.get("kind", "run"))

    def write(self, trees: Sequence[Tree], *, name: str | None = None) -> Path:
        """Add trees as one file. An existing file of this `name` is replaced."""
        name = name or f"{len(self.files()):06d}-{uuid.uuid4().hex[:8]}"
        path = self.path / "trees" / f"{name}.parquet"
        write_table(path, trees_to_table(trees))
        return path

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line to the metrics. A number that is not finite is written as null."""
        line = json.dumps(finite(record), allow_nan=False, ensure_ascii=False) + "\n"
        try:
            with (self.path / "metrics.jsonl").open("ab") as sink:
                sink.write(line.encode())
                sink.flush()
                os.fsync(sink.fileno())  # before the checkpoint of this step is
        except OSError as error:
            raise StoreError(f"cannot write {self.path / 'metrics.jsonl'}: {reason(error)}") from None

    def metrics(self, *, on_problem: OnProblem | None = None) -> list[dict[str, Any]]:
        """Every complete line.

        A line that cannot be read is reported to `on_problem`. Without that it is an error, except for the last line,
        which a killed process leaves incomplete.
        """
        path = self.path / "metrics.jsonl"
        records: list[dict[str, Any]] = []
        lines = json_lines(path)
        for number, line in enumerate(lines, start=1):
            record = _parse(line)
            if record is not None:
                records.append(record)
            elif not line.strip():
                continue
            elif on_problem is not None:
                on_problem(f"{path}, line {number}: not a JSON object")
            elif number < len(lines):
                raise StoreError(f"cannot read {path}: line {number} is not a JSON object")
        return records

    def rewind(self, step: int) -> None:
        """Drop the metrics of this step and later ones: they will be logged again."""
        path = self.path / "metrics.jsonl"
        records = [record for record in self.metrics() if record.get("step", -1) < step]
        try:
            write_text(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
        except OSError as error:
            raise StoreError(f"cannot write {path}: {reason(error)}") from None

    def drop_trees(self, step: int) -> None:
        """Delete the tree files of this training step and later ones: they will be written again."""
        for file in self.files():
            found = STEP_FILE.fullmatch(file.stem)
            if found is not None and int(found[1]) >= step:
                file.unlink(missing_ok=True)

    def restore_folder(self) -> None:
        """Make the folder of the trees if it is gone: deleted to save space, or empty and therefore not copied."""
        try:
            (self.path / "trees").mkdir(exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot write to {self.path}: {reason(error)}") from None

    def remove_if_empty(self, *, ignoring: Collection[str] = ()) -> bool:
        """Remove the directory if nothing was written into it that can be resumed or read; whether it was removed.

        Then all its files are empty, or are those of a new run, here and in runs inside it. Those in `ignoring` do not
        count either.
        """
        new = {"config.toml", "meta.json", *ignoring}
        if any(file.name not in new and file.stat().st_size for file in self.path.rglob("*") if file.is_file()):
            return False
        shutil.rmtree(self.path, ignore_errors=True)
        return True

    def files(self) -> list[Path]:
        """The complete tree files, in the order they were written."""
        return sorted((self.path / "trees").glob("*.parquet"))

    def readable_files(self, on_problem: OnProblem | None = None) -> list[Path]:
        """The tree files that can be read. Without `on_problem`, or if there are none, others are an error."""
        files: list[Path] = []
        problems: list[str] = []
        for file in self.files():
            try:
                check_file(file)
                files.append(file)
            except StoreError as error:
                problems.append(str(error))
        if problems and (on_problem is None or not files):
            raise StoreError(problems[0])
        if on_problem is not None:
            for problem in problems:
                on_problem(problem)
        return files


def read_trees(run: RunDir | Path | str, *, on_problem: OnProblem | None = None) -> Iterator[Tree]:
    """Every tree of a run, equal to the one that was written.

    A file that cannot be read does not hide the others: it is reported to `on_problem` after all trees. Without that,
    or if no tree can be read, it is an error.
    """
    run = run if isinstance(run, RunDir) else RunDir.open(run)
    problems: list[str] = []
    found = False
    for file in run.files():
        try:
            for tree in read_file(file):
                found = True
                yield tree
        except StoreError as error:
            problems.append(str(error))
    if on_problem is not None and found:
        for problem in problems:
            on_problem(problem)
    elif problems:
        more = f" (and {len(problems) - 1} more files)" if len(problems) > 1 else ""
        raise StoreError(problems[0] + more)


def json_lines(file: Path) -> list[str]:
    """The lines of a file of JSON lines. They end at a line feed only: texts may have other separators of lines."""
    try:
        lines = file.read_bytes().decode(errors="replace").split("\n")
    except OSError as error:
        raise StoreError(f"cannot read {file}: {reason(error)}") from None
    return lines if lines[-1] else lines[:-1]


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, Any], record) if isinstance(record, dict) else None


def slug(text: str) -> str:
    """A directory name made from a question."""
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return words[:40].rstrip("-") or "run"


def _names(parent: Path, name: str) -> Iterator[Path]:
    yield parent / name
    yield from (parent / f"{name}-{number}" for number in range(2, 100_000))


def _meta(kind: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kind": kind,
        "ramet": ramet.__version__,
        "python": sys.version.split()[0],
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
