"""Training with tasksets, rules and dialects of one's own, by file and from Python, and resuming it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet import plugins
from ramet.store import RunDir
from ramet.train import loop
from tests.plugin_files import write_plugins
from tests.train import small

TINY: dict[str, Any] = {"steps": 1, "tasks_per_step": 1, "group_size": 2, "save_every": 1, "taskset": {"most": 3}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model, plug-ins, and a run of one step that was started with them by reference."""
    folder, before = write_plugins(tmp_path_factory.mktemp("api")), [*sys.path]
    model = small.folder(folder)
    own = {"task": f"{folder}/my_tasks.py:Backwards", "rule": f"{folder}/my_rule.py:Plain"}
    loop.train(small.config(model, **(TINY | own)), runs=folder / "runs")
    yield folder
    sys.path[:] = before


def copied(place: Path, tmp_path: Path) -> Path:
    """The run, as if it had been interrupted before its checkpoint."""
    run = tmp_path / "run"
    shutil.copytree(place / "runs" / "train", run)
    shutil.rmtree(run / "checkpoints")
    return run


def test_a_run_records_its_plugins_and_finds_them_again_from_any_folder(place: Path, tmp_path: Path) -> None:
    run = RunDir.open(place / "runs" / "train")
    assert [Path(fact["reference"]).name for fact in run.meta["plugins"]] == [
        "my_tasks.py:Backwards",
        "my_rule.py:Plain",
    ]
    assert len(run.meta["plugins"][0]["sha256"]) == 64
    before = run.metrics()
    again = ramet.train.resume(copied(place, tmp_path))  # type: ignore[attr-defined]
    assert [record["step"] for record in again.metrics()] == [record["step"] for record in before]


def test_a_run_whose_file_has_changed_is_resumed_only_if_that_is_accepted(place: Path, tmp_path: Path) -> None:
    file, run = place / "my_rule.py", copied(place, tmp_path)
    before = file.read_text(encoding="utf-8")
    try:
        file.write_text(before + "\n# changed\n", encoding="utf-8")
        with pytest.raises(ramet.ConfigError, match=r"rule .*my_rule.py:Plain has changed since .*--accept-changes"):
            loop.resume(run)
        loop.resume(run, accept_changes=True)
        file.unlink()
        with pytest.raises(ramet.ConfigError, match=r"was started with the rule .*no such file"):
            loop.resume(run, steps=2, accept_changes=True)
    finally:
        file.write_text(before, encoding="utf-8")


def test_a_change_is_accepted_once_and_recorded(place: Path, tmp_path: Path) -> None:
    file, run = place / "my_rule.py", RunDir.open(copied(place, tmp_path))
    before, plugin = file.read_text(encoding="utf-8"), run.meta["plugins"][1]
    try:
        file.write_text(before + "\n# changed\n", encoding="utf-8")
        loop.resume(run.path, accept_changes=True)
        loop.resume(run.path, steps=2)
    finally:
        file.write_text(before, encoding="utf-8")
    (entry,) = run.meta["accepted_changes"]
    assert (entry["reference"], entry["from"], entry["after"]) == (plugin["reference"], plugin["sha256"], 0)
    assert run.meta["plugins"][1] == plugin | {"sha256": entry["to"]}
    with pytest.raises(ramet.ConfigError, match=r"rule .*my_rule.py:Plain has changed"):
        loop.resume(run.path, steps=3)
    assert len(run.metrics()) == 2


def test_the_files_of_a_run_that_is_complete_are_not_checked(place: Path, tmp_path: Path) -> None:
    file, run = place / "my_rule.py", tmp_path / "run"
    shutil.copytree(place / "runs" / "train", run)
    before = file.read_text(encoding="utf-8")
    try:
        file.unlink()
        assert len(loop.resume(run).metrics()) == 1
    finally:
        file.write_text(before, encoding="utf-8")


def test_objects_are_trained_on_and_passed_in_again_to_resume(place: Path, tmp_path: Path) -> None:
    taskset = plugins.make(f"{place}/my_tasks.py:Backwards", "taskset", most=3)
    rule = plugins.make(f"{place}/my_rule.py:Plain", "rule")
    config = small.config(place / "model", **(TINY | {"taskset": {}}))
    run = ramet.train(config, task=(taskset, "train"), rule=rule, runs=tmp_path)
    text = (run.path / "config.toml").read_text(encoding="utf-8")
    assert 'task = "object:Backwards:train"' in text
    assert 'rule = "object:Plain"' in text
    with pytest.raises(ramet.ConfigError, match="Backwards is a taskset that a Python program passed in"):
        loop.resume(run.path, steps=2)
    assert ramet.train.resume(run.path, task=taskset, rule=rule).metrics() == run.metrics()  # type: ignore[attr-defined]
    with pytest.raises(ramet.ConfigError, match="this run has dialect=tools: a resumed run keeps its settings"):
        ramet.train.resume(run.path, task=taskset, rule=rule, dialect=ramet.TerseDialect())  # type: ignore[attr-defined]
