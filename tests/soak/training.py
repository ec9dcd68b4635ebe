"""Training under kills, full disks, a second writer and file times that jump."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from ramet.config import to_toml
from tests.soak.checks import check_training
from tests.soak.processes import Command, check_complaint, finish, run_until_done, small_disk, unmounted_at_end
from tests.soak.rounds import Place, Report

STEPS, TREES_PER_STEP = 6, 12
TEN_YEARS_S = 10 * 365 * 24 * 3600


def recipe(place: Place) -> Path:
    """The settings of a run of seconds, and the model it starts from."""
    from tests.train import small

    file = place.folder / "soak.toml"
    file.write_text(to_toml(small.config(place.model(), "name=soak", f"steps={STEPS}")))
    return file


def reference(place: Place) -> Path:
    """A run that was never interrupted; made once."""
    folder = place.model().parent
    if not (folder / "seconds").exists():
        began = time.monotonic()
        Command(words=["train", str(recipe(place))], folder=folder).run()
        (folder / "seconds").write_text(str(time.monotonic() - began))
    return folder / "runs" / "soak"


def random_moment(place: Place) -> float:
    """Seconds after the start of a run, which takes about as long as the one that was never interrupted."""
    return place.dice.uniform(0.0, float((reference(place).parents[1] / "seconds").read_text()))


def check(report: Report, place: Place, run: Path) -> Report:
    check_training(report, run, steps=STEPS, trees_per_step=TREES_PER_STEP, same_as=reference(place))
    return report


def start_or_resume(place: Place, *, folder: Path | None = None) -> Command:
    folder = folder or place.folder
    if (folder / "runs" / "soak").is_dir():
        return Command(words=["train", "--resume", "runs/soak"], folder=folder)
    return Command(words=["train", str(recipe(place))], folder=folder)


def train_killed(place: Place) -> Report:
    """Kill a training run several times; between the kills, file times jump by years."""
    report = Report()
    reference(place)
    for _ in range(place.dice.randint(1, 3)):
        start_or_resume(place).run_and_kill(random_moment(place))
        report.done["kill -9"] += 1
        if place.dice.random() < 0.5:
            _jump_file_times(place, report)
    run_until_done(start_or_resume(place), report)
    return check(report, place, place.folder / "runs" / "soak")


def _jump_file_times(place: Place, report: Report) -> None:
    """The clock of the machine was wrong: files are from ten years ago, or from the future."""
    when = time.time() + place.dice.choice([-TEN_YEARS_S, TEN_YEARS_S])
    for path in (place.folder / "runs").rglob("*"):
        os.utime(path, (when, when))
    report.done["clock jump (files)"] += 1


def train_full_disk(place: Place) -> Report:
    """Train on a disk that is too small, then on the same disk with room."""
    report = Report()
    reference(place)
    disk = place.folder / "disk"
    with unmounted_at_end(disk):
        with small_disk(disk, place.dice.choice([4, 64, 200, 400, 900, 1500]), report) as on_disk:
            ended = on_disk(start_or_resume(place, folder=disk)).run()
            if ended.code:
                check_complaint(report, ended)
            else:
                report.done["the disk was large enough"] += 1
        run_until_done(start_or_resume(place, folder=disk), report)
        return check(report, place, disk / "runs" / "soak")


def train_two_writers(place: Place) -> Report:
    """Resume the same run from several processes at once: one does it, the others are refused."""
    report = Report()
    reference(place)
    checkpoints = place.folder / "runs" / "soak" / "checkpoints"
    first = start_or_resume(place).start()
    while not checkpoints.is_dir() and first.poll() is None:
        time.sleep(0.05)
    first.kill()
    finish(first)
    report.done["kill -9"] += 1
    processes: list[subprocess.Popen[str]] = []
    for _ in range(3):
        processes.append(start_or_resume(place).start())
        time.sleep(place.dice.uniform(0.0, 1.0))
    for ended in [finish(process) for process in processes]:
        if ended.code:
            check_complaint(report, ended)
            report.check("another process is writing" in ended.errors, f"refused with {ended.errors[-300:]!r}")
            report.done["second writer refused"] += 1
    return check(report, place, place.folder / "runs" / "soak")
