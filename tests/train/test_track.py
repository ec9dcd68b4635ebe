"""Numbers of a run for other programs: what they get, and that none of them can end a run."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ramet.errors import ConfigError
from ramet.train.loop import resume, train
from ramet.train.track import TRACKERS, Tracker, check_trackers, scalars, tracking
from tests.fork_server import environment
from tests.train import small


class Book:
    """Remembers what it is given."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int, Mapping[str, float]]] = []
        self.closed = False

    def log(self, step: int, record: Mapping[str, float], *, part: str) -> None:
        self.lines.append((part, step, record))

    def close(self) -> None:
        self.closed = True


class Broken(Book):
    """Its disk is full from the second step on."""

    def log(self, step: int, record: Mapping[str, float], *, part: str) -> None:
        if self.lines:
            raise OSError("no space left on device")
        super().log(step, record, part=part)


def test_trackers_get_numbers_only_each_under_its_own_name() -> None:
    book, told = Book(), []
    records = [
        {"step": 0, "part": "warm", "loss": 2, "note": "slow"},
        {"step": 0, "success_by_depth": [0.5, None, 1.0], "gap": None, "packed": True},
    ]
    with tracking([book], told.append) as tell:
        for record in records:
            tell(record)
    assert told == records
    assert book.lines == [
        ("warm", 0, {"loss": 2.0}),
        ("train", 0, {"success_by_depth/0": 0.5, "success_by_depth/2": 1.0, "packed": 1.0}),
    ]
    assert book.closed


def test_a_tracker_that_fails_is_warned_about_once_and_the_others_go_on() -> None:
    broken, book, told = Broken(), Book(), []
    trackers: list[Tracker] = [broken, book]
    with tracking(trackers, told.append) as tell:
        tell({"step": 0})
        with pytest.warns(RuntimeWarning, match="Broken failed and is ignored from now on: no space left on device"):
            tell({"step": 1})
        for step in (2, 3):
            tell({"step": step})  # a warning would be an error here
    assert len(told) == len(book.lines) == 4
    assert (len(broken.lines), broken.closed, book.closed) == (1, False, True)


def test_a_tracker_that_cannot_end_does_not_hide_what_ended_the_run() -> None:
    class Stuck(Book):
        def close(self) -> None:
            raise ConnectionError("server gone")

    with (
        pytest.warns(RuntimeWarning, match="server gone"),
        pytest.raises(KeyboardInterrupt),
        tracking([Stuck()], print),
    ):
        raise KeyboardInterrupt


def test_an_unknown_tracker_and_one_that_is_not_installed_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="track: unknown tracker 'tensorbord': did you mean tensorboard\\?"):
        check_trackers(["tensorbord"])
    bare = (
        "import sys\n"
        "from ramet.errors import ConfigError\n"
        "from ramet.train.track import check_trackers\n"
        "sys.path[:] = []\n"  # nothing is installed any more
        "try:\n    check_trackers(['tensorboard'])\n"
        "except ConfigError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", bare], env=environment(), capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (
        "track: tensorboard is not installed: pip install 'ramet[tensorboard]'\n",
        "",
    )


def test_tensorboard_reads_what_a_run_and_its_second_half_wrote(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = small.folder(tmp_path)
    config = small.config(folder, "steps=3", 'track=["tensorboard"]', "save_every=1", "minutes=1e-9")
    run = train(config, runs=tmp_path / "runs")
    for _ in range(2):
        resume(run.path)
    seen = EventAccumulator(str(run.path / "tensorboard")).Reload()
    logged = run.metrics()
    assert len(logged) == 3
    for name in ("success", "tokens", "success_by_depth/0"):
        known = [(event.step, event.value) for event in seen.Scalars(f"train/{name}")]
        whole, _, place = name.partition("/")
        wanted = [record[whole][int(place)] if place else record[whole] for record in logged]
        assert known == [(step, pytest.approx(value)) for step, value in enumerate(wanted)]


OTHERS = """
import json, sys
from pathlib import Path
from ramet.train.track import open_trackers, tracking
opened = open_trackers([sys.argv[1]], Path(sys.argv[2]), {"steps": 2})
with tracking(opened, lambda record: print(json.dumps(record))) as tell:
    for step in range(2):
        tell({"step": step, "loss": 0.5 + step, "part": "warm"})
    tell({"step": 0, "loss": 0.25})
"""


def tracked_by(name: str, folder: Path) -> list[dict[str, Any]]:
    """Track three steps in a process of its own; returns what it printed, which must be the records alone."""
    env = environment(HOME=str(folder), WANDB_MODE="offline", WANDB_SILENT="true", TRACKIO_DIR=str(folder / "trackio"))
    done = subprocess.run(
        [sys.executable, "-c", OTHERS, name, str(folder)], env=env, capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_tracker_that_is_installed_keeps_what_it_is_told_and_prints_nothing_into_the_records(
    tmp_path: Path,
) -> None:
    for name in filter(find_spec, TRACKERS):
        folder = tmp_path / name
        folder.mkdir()
        assert [record["loss"] for record in tracked_by(name, folder)] == [0.5, 1.5, 0.25]
        if name == "trackio":
            with sqlite3.connect(folder / "trackio" / "ramet.db") as database:
                kept = [(step, json.loads(one)) for step, one in database.execute("select step, metrics from metrics")]
            database.close()
            assert kept == [(0, {"warm/loss": 0.5}), (1, {"warm/loss": 1.5}), (0, {"train/loss": 0.25})]
        else:
            written = [path for path in folder.rglob("*") if path.suffix == ".wandb" or "tfevents" in path.name]
            assert any(path.stat().st_size > 100 for path in written)


def test_lists_and_tables_become_one_number_per_place_and_name() -> None:
    record = {"loss": 1, "note": "slow", "gap": None, "by_depth": [1.0, None], "kinds": {"exact": [0.5], "root": {}}}
    assert scalars(record) == {"loss": 1.0, "by_depth/0": 1.0, "kinds/exact/0": 0.5}
