"""Ended trees go to the run directory in batches: what ends while a file is written goes into the next one.

An answer is sent when its tree is on disk, so a server that is killed has every tree whose answer a client got.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from ramet.errors import StoreError
from ramet.serve.keys import Reservation
from ramet.serve.usage import UsageFiles
from ramet.store.chunks import ChunkWriter
from ramet.store.run_dir import RunDir
from ramet.store.tree_files import read_file
from ramet.types import Tree

RECENT = 20_000  # trees that `/v1/trees/ID` finds
MAX_WORK_BYTES = 32 * 2**20  # text of roots that wait for results of a client's tools
MAX_UNWRITTEN = 1_000  # trees kept while the disk is full
WAIT_S = 1.0  # before a failed write is tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Where a recent tree is, and whose it is."""

    owner: str
    file: Path


@dataclass(slots=True)
class Entry:
    """A tree to be written."""

    tree: Tree
    owner: str
    done: anyio.Event = field(default_factory=anyio.Event)


class TreeStore:
    """The trees of a server. `run` writes them until it is cancelled; `flush` writes what is left."""

    def __init__(self, run_dir: RunDir, *, usage: UsageFiles | None, log: Callable[[str], None]) -> None:
        self.run_dir = run_dir
        self.error: str | None = None  # of the last write
        self.errors = 0
        self._usage = usage
        self._log = log
        self._chunks = ChunkWriter(run_dir)
        self._waiting: list[Entry] = []
        self._writing = anyio.Lock()
        self._added = anyio.Event()
        self._recent: OrderedDict[str, Kept] = OrderedDict()
        self._work: OrderedDict[str, str] = OrderedDict()
        self._work_bytes = 0

    def put(self, tree: Tree, owner: str) -> Entry:
        """Have a tree written soon. `done` is set even if the disk refuses it: the client gets its answer."""
        entry = Entry(tree, owner)
        self._waiting.append(entry)
        self._added.set()
        return entry

    def start(self, reservation: Reservation) -> None:
        """A tree starts. Its reservation is written first: if the server is killed, it counts as used."""
        reservation.start()
        try:
            if self._usage is not None:
                self._usage.started(reservation)
        except StoreError as error:
            self._failed(str(error))

    async def run(self) -> None:
        while True:
            await self._added.wait()
            self._added = anyio.Event()
            await self.flush()
            if self.error is not None:
                await anyio.sleep(WAIT_S)
                self._added.set()

    async def flush(self) -> None:
        """Write all trees that wait."""
        async with self._writing:
            await self._flush()

    async def _flush(self) -> None:
        batch, self._waiting = self._waiting, []
        if not batch:
            return
        used = None if self._usage is None else self._usage.snapshot()
        try:
            with anyio.CancelScope(shield=True):
                file = await anyio.to_thread.run_sync(self._write, [entry.tree for entry in batch], used)
                self._stored(batch, file)
                if self._usage is not None:
                    self._usage.saved()
        except StoreError as error:
            self._keep(batch, str(error))
        for entry in batch:
            entry.done.set()

    def _write(self, trees: list[Tree], used: str | None) -> Path:
        if self._usage is not None and used is not None:
            self._usage.save(used)
        return self._chunks.add(trees)

    def _failed(self, error: str) -> None:
        if error != self.error:
            self._log(f"trees are not stored: {error}")
        self.error = error
        self.errors += 1

    def _keep(self, batch: list[Entry], error: str) -> None:
        self._failed(error)
        unwritten = batch + self._waiting
        if len(unwritten) > MAX_UNWRITTEN:
            self._log(f"{len(unwritten) - MAX_UNWRITTEN:,} trees are lost: they could not be stored")
        self._waiting = unwritten[-MAX_UNWRITTEN:]

    def _stored(self, batch: list[Entry], file: Path) -> None:
        self.error = None
        for entry in batch:
            self._recent[entry.tree.id] = Kept(owner=entry.owner, file=file)
        while len(self._recent) > RECENT:
            self._recent.popitem(last=False)

    async def read(self, tree_id: str, owner: str) -> Tree | None:
        """A recent tree of this owner."""
        kept = self._recent.get(tree_id)
        if kept is None or kept.owner != owner:
            return None
        return await anyio.to_thread.run_sync(lambda: next(iter(read_file(kept.file, [tree_id])), None))

    # Roots that wait for results of a client's tools.

    def keep_work(self, tree_id: str, owner: str, work: str) -> None:
        """Keep what a root wrote and read until it called a tool of the client."""
        self._work[f"{owner}/{tree_id}"] = work
        self._work_bytes += len(work.encode())
        while self._work_bytes > MAX_WORK_BYTES:
            _, oldest = self._work.popitem(last=False)
            self._work_bytes -= len(oldest.encode())

    def work(self, call_id: str, owner: str) -> str | None:
        """The work before a call, by the id of the call; None if it is not kept any more."""
        tree_id = call_id.removeprefix("call_").partition("_")[0]
        return self._work.get(f"{owner}/{tree_id}")
