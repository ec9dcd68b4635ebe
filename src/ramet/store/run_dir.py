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
import re
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import ramet
from ramet.config import to_toml
from ramet.errors import StoreError
from ramet.store.atomic import atomic_file, atomic_folder, write_text
from ramet.store.parquet import SCHEMA, arrow_schema, tree_from_rows, tree_to_rows
from ramet.types import Tree


class RunDir:
    """A run directory, new or existing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, parent: Path | str, name: str, *, config: Any = None, kind: str = "run") -> RunDir:
        """Create `parent/name`, or `name-2`, `name-3` ... when that name is taken."""
        for path in _names(Path(parent), slug(name)):
            if path.exists():
                continue
            try:
                return cls.create_at(path, config=config, kind=kind)
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
            raise StoreError(f"cannot write to {path.parent}: {_reason(error)}") from None
        return cls(path)

    @classmethod
    def open(cls, path: Path | str) -> RunDir:
        """Open an existing run, after checking that this version can read it."""
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
        """The contents of meta.json."""
        return json.loads((self.path / "meta.json").read_text(encoding="utf-8"))

    @property
    def kind(self) -> str:
        """Which command made it: run, train, warmstart, eval."""
        return str(self.meta.get("kind", "run"))

    def write(self, trees: Sequence[Tree], *, name: str | None = None) -> Path:
        """Add trees as one file. An existing file of this `name` is replaced."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        name = name or f"{len(self.files()):06d}-{uuid.uuid4().hex[:8]}"
        path = self.path / "trees" / f"{name}.parquet"
        rows = [row for tree in trees for row in tree_to_rows(tree)]
        table = pa.Table.from_pylist(rows, schema=arrow_schema())
        try:
            with atomic_file(path) as file:
                pq.write_table(table, file, compression="zstd")
        except OSError as error:
            raise StoreError(f"cannot write {path}: {_reason(error)}") from None
        return path

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line to the metrics."""
        line = json.dumps(record, allow_nan=False, ensure_ascii=False) + "\n"
        try:
            with (self.path / "metrics.jsonl").open("ab") as sink:
                sink.write(line.encode())
        except OSError as error:
            raise StoreError(f"cannot write {self.path / 'metrics.jsonl'}: {_reason(error)}") from None

    def metrics(self) -> list[dict[str, Any]]:
        """Every complete line: a killed process may have left part of one."""
        try:
            lines = (self.path / "metrics.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            raise StoreError(f"cannot read {self.path / 'metrics.jsonl'}: {_reason(error)}") from None
        return [record for line in lines if (record := _parse(line)) is not None]

    def rewind(self, step: int) -> None:
        """Drop the metrics of this step and later ones: they will be logged again."""
        path = self.path / "metrics.jsonl"
        records = [record for record in self.metrics() if record.get("step", -1) < step]
        try:
            write_text(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
        except OSError as error:
            raise StoreError(f"cannot write {path}: {_reason(error)}") from None

    def files(self) -> list[Path]:
        """The complete tree files, in the order they were written."""
        return sorted((self.path / "trees").glob("*.parquet"))

    def checked_files(self) -> list[Path]:
        """The complete tree files, after checking that each is readable and of our schema."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        files = self.files()
        for file in files:
            try:
                metadata = pq.read_schema(file).metadata or {}
            except (OSError, pa.ArrowException) as error:
                raise StoreError(f"cannot read {file}: {_reason(error)}") from None
            _check_schema(metadata.get(b"ramet.schema", b"none").decode(), file)
        return files


def read_trees(run: RunDir | Path | str) -> Iterator[Tree]:
    """Every tree of a run, equal to the one that was written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    run = run if isinstance(run, RunDir) else RunDir.open(run)
    for file in run.checked_files():
        rows: dict[str, list[dict[str, Any]]] = {}
        try:
            table = pq.read_table(file)
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"cannot read {file}: {_reason(error)}") from None
        for row in table.to_pylist():
            rows.setdefault(row["tree"], []).append(row)
        for rows_of_tree in rows.values():
            yield tree_from_rows(rows_of_tree)


def query(run: RunDir | Path | str, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run SQL over `nodes` (a row per node), `trees` (a row per tree), `metrics` and, for an evaluation, `records`.

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
            if metrics.exists() and metrics.stat().st_size:  # a killed process may have left part of a line
                quoted = str(metrics).replace("'", "''")
                database.execute(f"create view metrics as from read_ndjson('{quoted}', ignore_errors = true)")
            if not sql.strip(" \n\t;"):
                raise StoreError("SQL: the query is empty")
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


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record: object = json.loads(line)
    except ValueError:
        return None
    return cast(dict[str, Any], record) if isinstance(record, dict) else None


def slug(text: str) -> str:
    """A directory name made from a question."""
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return words[:40].rstrip("-") or "run"


def _names(parent: Path, name: str) -> Iterator[Path]:
    yield parent / name
    yield from (parent / f"{name}-{number}" for number in range(2, 100_000))


def _reason(error: Exception) -> str:
    """The reason of an error, in one line."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())


def _meta(kind: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kind": kind,
        "ramet": ramet.__version__,
        "python": sys.version.split()[0],
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _check_schema(schema: object, path: Path) -> None:
    if str(schema) != str(SCHEMA):
        raise StoreError(f"{path} has schema {schema}; this version of ramet reads schema {SCHEMA}")
