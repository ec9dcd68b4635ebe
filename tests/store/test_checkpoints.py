"""Checkpoints of a run are found by their names, whatever else lies beside them."""

from __future__ import annotations

from pathlib import Path

from ramet.store.checkpoints import checkpoint_step, delete_old, latest, list_checkpoints


def folders(run: Path, *names: str) -> list[str]:
    """Make these folders where checkpoints are."""
    for name in names:
        (run / "checkpoints" / name).mkdir(parents=True)
    return sorted(names)


def test_a_copy_beside_checkpoints_is_no_checkpoint_and_stays(tmp_path: Path) -> None:
    names = folders(tmp_path, "step-000010", "step-000020", "step-000020-backup", "step-", "step-x", "old-step-000090")
    assert [folder.name for folder in list_checkpoints(tmp_path)] == ["step-000010", "step-000020"]
    assert checkpoint_step(latest(tmp_path)) == 20
    delete_old(tmp_path, keep=2)
    assert sorted(folder.name for folder in (tmp_path / "checkpoints").iterdir()) == names
    delete_old(tmp_path, keep=1)
    assert sorted(folder.name for folder in (tmp_path / "checkpoints").iterdir()) == [
        name for name in names if name != "step-000010"
    ]


def test_a_file_with_the_name_of_a_checkpoint_is_none(tmp_path: Path) -> None:
    folders(tmp_path, "step-000010")
    (tmp_path / "checkpoints" / "step-000020").touch()
    assert checkpoint_step(latest(tmp_path)) == 10


def test_the_newest_checkpoint_has_the_largest_number_not_the_last_name(tmp_path: Path) -> None:
    folders(tmp_path, "step-999990", "step-1000000")
    assert checkpoint_step(latest(tmp_path)) == 1_000_000
    delete_old(tmp_path, keep=1)
    assert [folder.name for folder in list_checkpoints(tmp_path)] == ["step-1000000"]
