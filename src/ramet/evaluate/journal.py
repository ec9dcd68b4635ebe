"""Records and trees of a running evaluation, written in chunks, so that finished items survive any end of the process.

A chunk is a file of trees, then the records file with its rows added. The records file holds the number of chunks: a
tree file that was written before the process ended, but whose records were not, is overwritten by the next chunk.

Items in which the engine failed have no record, but a line in another file, until they are tried again.
"""

# pyarrow ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ramet.errors import StoreError
from ramet.evaluate.record import Record
from ramet.store import RunDir
from ramet.store.atomic import write_text
from ramet.store.seal import read_table, reason, write_table
from ramet.types import Tree, clean

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "records.parquet"
FAILED = "failed.json"
CHUNKS = b"ramet.chunks"
CHUNK_ITEMS, CHUNK_S = 64, 20.0  # a chunk is written after this many items or seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An item without a record: the engine failed in one of its trees."""

    method: str
    budget: int | None
    task: str
    error: str

    @property
    def key(self) -> tuple[str, int | None, str]:
        return self.method, self.budget, self.task


class Journal:
    """The records of an evaluation so far. Without a run directory they are kept in memory only."""

    def __init__(self, run: RunDir | None = None) -> None:
        self.run = run
        self.records: list[Record] = []
        self.failures: dict[tuple[str, int | None, str], Failure] = {}
        self._chunks = 0
        self._new: list[tuple[Record, list[Tree]]] = []
        self._flushed = time.monotonic()
        if run is not None and (run.path / FILE).exists():
            self.records, self._chunks = _read(run.path / FILE)
        if run is not None:
            self.failures = {failure.key: failure for failure in read_failures(run)}

    def add(self, record: Record, trees: Sequence[Tree]) -> None:
        """Add a finished item. New items are written chunk by chunk."""
        self.failures.pop((record.method, record.budget, record.task), None)
        if self.run is None:
            self.records.append(record)
            return
        self._new.append((record, list(trees)))
        if len(self._new) >= CHUNK_ITEMS or time.monotonic() - self._flushed > CHUNK_S:
            self.flush()

    def fail(self, failure: Failure) -> None:
        """Note an item in which the engine failed. It has no record: a server's fault is no wrong answer."""
        self.failures[failure.key] = failure

    def flush(self) -> None:
        """Write the new items and the failures."""
        if self.run is None:
            return
        write_failures(self.run, list(self.failures.values()))
        if not self._new:
            return
        self.run.write([tree for _, trees in self._new for tree in trees], name=f"chunk-{self._chunks:06d}")
        self.records += [record for record, _ in self._new]
        self._chunks += 1
        self._new = []
        write_records(self.run.path / FILE, self.records, chunks=self._chunks)
        self._flushed = time.monotonic()


def read_records(run: RunDir | Path | str) -> list[Record]:
    """All records in the run directory of an evaluation; none if nothing is finished yet."""
    file = (run.path if isinstance(run, RunDir) else Path(run)) / FILE
    return _read(file)[0] if file.exists() else []


def read_failures(run: RunDir) -> list[Failure]:
    """The items of an evaluation in which the engine failed when they were last tried."""
    try:
        rows: object = json.loads((run.path / FAILED).read_text(encoding="utf-8"))
        return [Failure(**row) for row in cast(list[dict[str, Any]], rows)]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"cannot read {run.path / FAILED}: {error}") from None


def write_failures(run: RunDir, failures: Sequence[Failure]) -> None:
    """Write the failures; without any, there is no file."""
    file = run.path / FAILED
    try:
        if failures:
            write_text(file, json.dumps([asdict(failure) for failure in failures], indent=1) + "\n")
        else:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror}") from None


def write_records(file: Path, records: Sequence[Record], *, chunks: int = 0) -> None:
    """Write records to a Parquet file, one row each, all or nothing."""
    import pyarrow as pa

    rows = [asdict(record) | {"answer": None if record.answer is None else clean(record.answer)} for record in records]
    table = pa.Table.from_pylist(rows, schema=_schema().with_metadata({CHUNKS: str(chunks).encode()}))
    write_table(file, table)


def _read(file: Path) -> tuple[list[Record], int]:
    table = read_table(file)
    metadata = table.schema.metadata or {}
    try:
        rows = table.select([field.name for field in fields(Record)]).to_pylist()
        records = [Record(**(row | {"trees": tuple(row["trees"])})) for row in rows]
        return records, int(metadata.get(CHUNKS, b"0"))
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"cannot read {file}: {reason(error)}") from None


def _schema() -> pa.Schema:
    """One column per field of `Record`."""
    import pyarrow as pa

    kinds = {
        "str": pa.string(),
        "str | None": pa.string(),
        "int": pa.int64(),
        "int | None": pa.int64(),
        "float": pa.float64(),
        "float | None": pa.float64(),
        "bool": pa.bool_(),
        "tuple[str, ...]": pa.list_(pa.string()),
    }
    return pa.schema([(field.name, kinds[str(field.type)]) for field in fields(Record)])
