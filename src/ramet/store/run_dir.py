"""A run is a directory; trees are Parquet files in it, one row a node.

    runs/<name>/  config.toml  meta.json  metrics.jsonl  trees/*.parquet

Files are written aside and renamed, and the directory itself appears only when it is complete: a process killed at any
moment leaves something `ramet show` and `ramet sql` can read.
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
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import ramet
from ramet.config import to_toml
from ramet.errors import StoreError
from ramet.store.parquet import SCHEMA, arrow_schema, tree_from_rows, tree_to_rows
from ramet.types import Tree


class RunDir:
    """A run directory, new or found again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, parent: Path | str, name: str, *, config: Any = None, kind: str = "run") -> RunDir:
        """A new directory `parent/name`, or `name-2`, `name-3` ... when that is taken."""
        parent = Path(parent)
        return cls(_written(parent, lambda aside: _rename_free(aside, parent, slug(name)), config, _meta(kind)))

    @classmethod
    def create_at(cls, path: Path | str, *, config: Any, kind: str, facts: Mapping[str, Any]) -> RunDir:
        """A new directory at this very path, where nothing or an empty one may be. `facts` go into meta.json."""
        path = Path(path)
        return cls(_written(path.parent, lambda aside: aside.rename(path), config, _meta(kind) | dict(facts)))

    @classmethod
    def open(cls, path: Path | str) -> RunDir:
        """An existing run, checked to be one we can read."""
        path = Path(path)
        try:
            meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
            schema = meta["schema"]
        except FileNotFoundError:
            raise StoreError(f"{path} is not a run directory: it has no meta.json") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"cannot read {path / 'meta.json'}: {error}") from None
        _check_schema(schema, path / "meta.json")
        return cls(path)

    @property
    def meta(self) -> dict[str, Any]:
        """What meta.json says."""
        return json.loads((self.path / "meta.json").read_text(encoding="utf-8"))

    @property
    def kind(self) -> str:
        """What made it: run, train, warmstart, eval."""
        return str(self.meta.get("kind", "run"))

    def write(self, trees: Sequence[Tree], *, name: str | None = None) -> Path:
        """Add trees, as one file. A `name` that is there already is replaced."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        name = name or f"{len(self.files()):06d}-{uuid.uuid4().hex[:8]}"
        final = self.path / "trees" / f"{name}.parquet"
        aside = final.with_suffix(".tmp")
        rows = [row for tree in trees for row in tree_to_rows(tree)]
        try:
            table = pa.Table.from_pylist(rows, schema=arrow_schema())
            with aside.open("wb") as sink:
                pq.write_table(table, sink, compression="zstd")
                sink.flush()
                os.fsync(sink.fileno())
            aside.rename(final)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise StoreError(f"cannot write {final}: {_why(error)}") from None
        return final

    def log(self, record: Mapping[str, Any]) -> None:
        """Add one line to the metrics."""
        line = json.dumps(record, allow_nan=False, ensure_ascii=False) + "\n"
        try:
            with (self.path / "metrics.jsonl").open("ab") as sink:
                sink.write(line.encode())
        except OSError as error:
            raise StoreError(f"cannot write {self.path / 'metrics.jsonl'}: {_why(error)}") from None

    def metrics(self) -> list[dict[str, Any]]:
        """Every line that is whole: a killed writer may have left half of one."""
        try:
            lines = (self.path / "metrics.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            raise StoreError(f"cannot read {self.path / 'metrics.jsonl'}: {_why(error)}") from None
        return [found for line in lines if (found := _parsed(line)) is not None]

    def rewind(self, step: int) -> None:
        """Forget what was logged of this step and later ones: they will be done again."""
        kept = [one for one in self.metrics() if one.get("step", -1) < step]
        final = self.path / "metrics.jsonl"
        aside = final.with_suffix(".tmp")
        try:
            aside.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in kept), encoding="utf-8")
            aside.rename(final)
        except OSError as error:
            raise StoreError(f"cannot write {final}: {_why(error)}") from None

    def files(self) -> list[Path]:
        """The tree files that are complete."""
        return sorted((self.path / "trees").glob("*.parquet"))

    def checked_files(self) -> list[Path]:
        """The same, each known to be readable and of our schema."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        files = self.files()
        for file in files:
            try:
                metadata = pq.read_schema(file).metadata or {}
            except (OSError, pa.ArrowException) as error:
                raise StoreError(f"cannot read {file}: {_why(error)}") from None
            _check_schema(metadata.get(b"ramet.schema", b"none").decode(), file)
        return files


def read_trees(run: RunDir | Path | str) -> Iterator[Tree]:
    """Every tree of a run, as it was."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    run = run if isinstance(run, RunDir) else RunDir.open(run)
    for file in run.checked_files():
        rows: dict[str, list[dict[str, Any]]] = {}
        try:
            table = pq.read_table(file)
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"cannot read {file}: {_why(error)}") from None
        for row in table.to_pylist():
            rows.setdefault(row["tree"], []).append(row)
        for of_tree in rows.values():
            yield tree_from_rows(of_tree)


def query(run: RunDir | Path | str, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run SQL over `nodes` (a row a node), `trees` (a row a tree), `metrics` and, of an evaluation, `records`.

    Returns column names and rows.
    """
    import duckdb

    run = run if isinstance(run, RunDir) else RunDir.open(run)
    files = [str(file) for file in run.checked_files()]
    with duckdb.connect(":memory:") as database:
        try:
            if files:
                database.read_parquet(files, union_by_name=True).create_view("nodes")
            else:
                database.register("nodes", arrow_schema().empty_table())
            database.execute(TREES_VIEW)
            records = run.path / "records.parquet"
            if records.exists():
                database.read_parquet(str(records)).create_view("records")
            metrics = run.path / "metrics.jsonl"
            if metrics.exists() and metrics.stat().st_size:  # a killed writer may have left half a line
                quoted = str(metrics).replace("'", "''")
                database.execute(f"create view metrics as from read_ndjson('{quoted}', ignore_errors = true)")
            if not sql.strip(" \n\t;"):
                raise StoreError("SQL: there is nothing to run")
            result = database.execute(sql)
            names = [column[0] for column in result.description or []]
            return names, result.fetchall()
        except duckdb.Error as error:
            raise StoreError(f"SQL: {str(error).strip().splitlines()[0]}") from None


TREES_VIEW = """
create view trees as
select tree, any_value(question) as question, any_value(task_id) as task_id, any_value(dialect) as dialect,
       max(case when parent is null then answer end) as answer,
       max(case when parent is null then stop end) as stop,
       max(case when parent is null then score end) as score,
       max(case when parent is null then critical_path_tokens end) as critical_path_tokens,
       count(*) as nodes, max(depth) as depth, sum(tokens) as tokens, sum(lost_tokens) as lost_tokens,
       sum(prompt_tokens) as prompt_tokens, sum(cached_tokens) as cached_tokens, sum(calls) as calls,
       sum(cost) / 1e12 as dollars, max(peak_window) as peak_window, sum(num_refused) as refused,
       max(seconds) as seconds
from nodes group by tree
"""


def _written(parent: Path, rename: Callable[[Path], Path], config: Any, meta: Mapping[str, Any]) -> Path:
    """A run directory written aside in `parent` and renamed: complete, or not there."""
    aside = parent / f".{uuid.uuid4().hex}.tmp"
    try:
        (aside / "trees").mkdir(parents=True)
        (aside / "config.toml").write_text("" if config is None else to_toml(config), encoding="utf-8")
        (aside / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
        (aside / "metrics.jsonl").touch()
        return rename(aside)
    except (OSError, UnicodeError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise StoreError(f"cannot write to {parent}: {_why(error)}") from None


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found: object = json.loads(line)
    except ValueError:
        return None
    return cast(dict[str, Any], found) if isinstance(found, dict) else None


def slug(text: str) -> str:
    """A directory name out of a question."""
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return words[:40].rstrip("-") or "run"


def _rename_free(aside: Path, parent: Path, name: str) -> Path:
    for number in range(1, 100_000):
        final = parent / (name if number == 1 else f"{name}-{number}")
        if final.exists():
            continue
        try:
            return aside.rename(final)
        except OSError:  # somebody else took the name in this moment
            if not final.exists():
                raise
    raise StoreError(f"no free name like {name} in {parent}")


def _why(error: Exception) -> str:
    """The reason in one line."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())


def _meta(kind: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kind": kind,
        "ramet": ramet.__version__,
        "python": sys.version.split()[0],
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _check_schema(found: object, where: Path) -> None:
    if str(found) != str(SCHEMA):
        raise StoreError(f"{where} has schema {found}; this version of ramet reads schema {SCHEMA}")
