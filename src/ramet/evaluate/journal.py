"""Records and trees as they come, chunk by chunk, so that whatever ends a run, what was finished is kept.

A chunk is a file of trees, then the records file written anew with its rows. The records file says how many chunks it
knows: a file of trees that was written when the process ended before its records were is written over by the next.
"""

# pyarrow ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.errors import ConfigError, StoreError
from ramet.evaluate.record import Record
from ramet.store import RunDir
from ramet.types import Tree, clean

if TYPE_CHECKING:
    import pyarrow as pa

FILE = "records.parquet"
CHUNKS = b"ramet.chunks"
MOST_ITEMS, MOST_S = 64, 20.0  # a chunk has no more, and waits no longer


class Journal:
    """What an evaluation has found so far. Without a run directory it is only remembered."""

    def __init__(self, run: RunDir | None = None) -> None:
        self.run = run
        self.records: list[Record] = []
        self._chunks = 0
        self._new: list[tuple[Record, list[Tree]]] = []
        self._flushed = time.monotonic()
        if run is not None and (run.path / FILE).exists():
            self.records, self._chunks = _read(run.path / FILE)

    def add(self, record: Record, trees: Sequence[Tree]) -> None:
        """Take an item that is finished; now and then all new ones are written."""
        if self.run is None:
            self.records.append(record)
            return
        self._new.append((record, list(trees)))
        if len(self._new) >= MOST_ITEMS or time.monotonic() - self._flushed > MOST_S:
            self.flush()

    def flush(self) -> None:
        """Write what is new."""
        if self.run is None or not self._new:
            return
        self.run.write([tree for _, trees in self._new for tree in trees], name=f"chunk-{self._chunks:06d}")
        self.records += [record for record, _ in self._new]
        self._chunks += 1
        self._new = []
        write_records(self.run.path / FILE, self.records, chunks=self._chunks)
        self._flushed = time.monotonic()


@contextmanager
def alone(run: RunDir) -> Generator[None]:
    """No other process goes on with this run meanwhile. The system lets go of the lock, however the process ends."""
    with (run.path / ".lock").open("w") as file:
        with suppress(ImportError):  # not every system has such locks
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(f"another process is writing to {run.path}") from None
        yield


def read_records(run: RunDir | Path | str) -> list[Record]:
    """Every record of an evaluation's run directory; none when nothing is finished yet."""
    file = (run.path if isinstance(run, RunDir) else Path(run)) / FILE
    return _read(file)[0] if file.exists() else []


def write_records(file: Path, records: Sequence[Record], *, chunks: int = 0) -> None:
    """Records as a Parquet file, a row each, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [asdict(record) | {"answer": None if record.answer is None else clean(record.answer)} for record in records]
    aside = file.with_suffix(".tmp")
    try:
        table = pa.Table.from_pylist(rows, schema=_schema().with_metadata({CHUNKS: str(chunks).encode()}))
        with aside.open("wb") as sink:
            pq.write_table(table, sink, compression="zstd")
            sink.flush()
            os.fsync(sink.fileno())
        aside.rename(file)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise StoreError(f"cannot write {file}: {error.strerror or error}") from None


def _read(file: Path) -> tuple[list[Record], int]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file)
        rows = table.select([knob.name for knob in fields(Record)]).to_pylist()
    except (OSError, KeyError, pa.ArrowException) as error:
        raise StoreError(f"cannot read {file}: {' '.join(str(error).split())}") from None
    metadata = table.schema.metadata or {}
    records = [Record(**(row | {"trees": tuple(row["trees"])})) for row in rows]
    return records, int(metadata.get(CHUNKS, b"0"))


def _schema() -> pa.Schema:
    """One column a field of `Record`."""
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
    return pa.schema([(knob.name, kinds[str(knob.type)]) for knob in fields(Record)])
