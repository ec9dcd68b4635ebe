"""Files and folders are complete or absent."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ramet.store.atomic import (
    STALE_S,
    atomic_file,
    atomic_folder,
    flush_files,
    remove_stale,
    temporary_name,
    write_text,
)


def test_a_file_is_replaced_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "meta.json"
    path.write_text("old")
    with atomic_file(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["meta.json"]


@pytest.mark.parametrize("error", [OSError, ValueError, KeyboardInterrupt])
def test_an_error_keeps_the_old_file_and_removes_the_new_one(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "meta.json"
    path.write_text("old")
    with suppress(error), atomic_file(path) as file:
        file.write(b"half")
        raise error
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["meta.json"]


def test_text_is_written_in_utf_8(tmp_path: Path) -> None:
    write_text(tmp_path / "note", "naïve 你好")
    assert (tmp_path / "note").read_bytes() == "naïve 你好".encode()


def test_a_file_in_a_missing_folder_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "missing" / "note", "text")


def test_a_folder_appears_when_the_block_ends_with_everything_in_it(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "step-000010"
    with atomic_folder(path) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "weights").write_bytes(b"123")
        assert not path.exists()
    assert (path / "inner" / "weights").read_bytes() == b"123"
    assert os.listdir(path.parent) == ["step-000010"]


@pytest.mark.parametrize("error", [OSError, ValueError, KeyboardInterrupt])
def test_an_error_leaves_no_folder(tmp_path: Path, error: type[BaseException]) -> None:
    with suppress(error), atomic_folder(tmp_path / "model") as folder:
        (folder / "half").touch()
        raise error
    assert os.listdir(tmp_path) == []


def test_files_of_a_folder_can_be_read_by_those_who_can_read_the_folder(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "step") as folder:
        (folder / "model.safetensors").touch(mode=0o600)
        (folder / "config.json").touch()
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "step").iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]


def test_the_first_of_two_writers_of_a_folder_wins(tmp_path: Path) -> None:
    path = tmp_path / "model"

    def write(name: str, meanwhile: Callable[[], None]) -> None:
        with atomic_folder(path) as folder:
            (folder / "name").write_text(name)
            meanwhile()

    with pytest.raises(OSError, match=r"not empty|exists"):
        write("second", lambda: write("first", lambda: None))
    assert (path / "name").read_text() == "first"
    assert os.listdir(tmp_path) == ["model"]


def test_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with atomic_folder(tmp_path / "model") as folder:
        (folder / "name").touch()
    assert os.listdir(tmp_path / "model") == ["name"]


def test_only_old_temporary_folders_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "model"
    recent, old, other = temporary_name(path), temporary_name(path), temporary_name(tmp_path / "other")
    for folder in (recent, old, other):
        folder.mkdir()
    for folder in (old, other):
        changed = folder.stat().st_mtime - STALE_S - 60
        os.utime(folder, (changed, changed))
    remove_stale(path)
    assert sorted(tmp_path.iterdir()) == sorted([recent, other])


def test_flushing_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_text("text")
    flush_files(tmp_path)
    assert (tmp_path / "inner" / "file").read_text() == "text"
