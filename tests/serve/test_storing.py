"""Trees of a server on their way to the disk, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import ramet
from ramet.serve import storing
from ramet.serve.storing import TreeStore
from ramet.store import read_trees
from ramet.store.chunks import ChunkWriter
from ramet.store.tree_files import read_file
from tests.conftest import in_virtual_time


async def make_tree(question: str) -> ramet.Tree:
    return await ramet.run(question, engine=ramet.ScriptedEngine(lambda _: "Answer: 1"))


def make_run(folder: Path) -> ramet.RunDir:
    return ramet.RunDir.create(folder, "serve", kind="serve")


def test_a_tree_that_ends_while_another_is_written_is_written_next_without_a_pause(tmp_path: Path):
    lines: list[str] = []
    store = TreeStore(make_run(tmp_path), usage=None, log=lines.append)

    async def play() -> float:
        began = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(store.run)
            first = store.put(await make_tree("one"), "")
            for _ in range(10):
                await anyio.lowlevel.checkpoint()  # the first is being written, in another thread
            second = store.put(await make_tree("two"), "")
            await first.done.wait()
            await second.done.wait()
            group.cancel_scope.cancel()
        return anyio.current_time() - began

    assert in_virtual_time(play) == 0.0
    assert [tree.task.question for tree in read_trees(store.run_dir.path)] == ["one", "two"]
    assert lines == []


def test_work_that_is_kept_is_counted_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(storing, "MAX_WORK_BYTES", 10)
    store = TreeStore(make_run(tmp_path), usage=None, log=lambda _: None)
    for name in "abc":
        store.keep_work(name, "alice", "ééé")
    assert [store.work(f"call_{name}_0", "alice") for name in "abc"] == [None, None, "ééé"]


def test_trees_are_written_by_one_at_a_time(tmp_path: Path):
    store = TreeStore(make_run(tmp_path), usage=None, log=lambda _: None)

    async def play() -> None:
        async with anyio.create_task_group() as group:
            for number in range(8):
                store.put(await make_tree(str(number)), "")
                group.start_soon(store.flush)
                await anyio.lowlevel.checkpoint()  # the tree is being written, in another thread

    in_virtual_time(play)
    assert [tree.task.question for tree in read_trees(store.run_dir.path)] == list("01234567")
    assert store.error is None


def test_a_chunk_holds_the_same_trees_while_it_grows_and_when_it_is_full(tmp_path: Path):
    run = make_run(tmp_path)
    writer = ChunkWriter(run, trees=3)
    trees = [anyio.run(make_tree, str(number)) for number in range(4)]
    files: list[Path] = []
    for number, tree in enumerate(trees, start=1):
        files.append(writer.add([tree]))
        assert list(read_trees(run.path)) == trees[:number]
    assert files[0] == files[1] == files[2] != files[3]


def test_a_chunk_that_is_replaced_while_it_is_read_is_read_again(tmp_path: Path):
    writer = ChunkWriter(make_run(tmp_path))
    one, two = (anyio.run(make_tree, text) for text in ("one", "two" * 5000))
    replaced: list[Path] = []

    class Replaced(type(tmp_path)):
        """Between its size and its bytes, the file gets another tree, once."""

        def open(self, *how: Any, **more: Any) -> Any:
            if not replaced:
                replaced.append(writer.add([two]))
            return Path.open(self, *how, **more)  # pyright: ignore[reportUnknownVariableType]

    assert list(read_file(Replaced(writer.add([one])))) == [one, two]
    assert len(replaced) == 1
