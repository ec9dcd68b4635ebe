"""Trees that end one by one, kept in few files: a chunk is written again with every batch until it is full."""

# pyarrow ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.store.parquet import trees_to_table
from ramet.store.run_dir import RunDir
from ramet.store.seal import write_table
from ramet.types import Tree

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_TREES = 64
CHUNK_BYTES = 4 * 2**20  # in memory


class ChunkWriter:
    """Adds trees to a run. A file is replaced as a whole, so every tree is in the run once, whenever a process ends.

    Example:
        file = ChunkWriter(run_dir).add([tree])
    """

    def __init__(self, run: RunDir, *, trees: int = CHUNK_TREES) -> None:
        self.run = run
        self._most = trees
        self._number = 0
        self._trees = 0
        self._path = self._chunk()  # the same object for all trees of a file: callers keep many of them
        self._open: pa.Table | None = None  # the chunk that is not full

    def add(self, trees: Sequence[Tree]) -> Path:
        """Write trees and return the file that has them. After a `StoreError` the same trees can be added again."""
        import pyarrow as pa

        table = trees_to_table(trees)
        if self._open is not None:
            table = pa.concat_tables([self._open, table]).combine_chunks()  # pieces would be written one by one
        path = self._path
        number = self._trees + len(trees)
        full = number >= self._most or table.nbytes >= CHUNK_BYTES
        write_table(path, table, quick=not full)
        self._trees, self._open = number, table
        if full:
            self._number, self._trees, self._open = self._number + 1, 0, None
            self._path = self._chunk()
        return path

    def _chunk(self) -> Path:
        return self.run.path / "trees" / f"chunk-{self._number:06d}.parquet"
