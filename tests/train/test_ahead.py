"""Demonstrations made ahead by other processes are those that this process would make."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest

from ramet.budget import Budget
from ramet.errors import ConfigError, TrainError
from ramet.train.ahead import Ahead
from ramet.train.settings import WarmConfig
from ramet.train.warmstart import make_step, warmstart
from ramet.types import Task, Tree


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.train import small  # imports torch: not in the workers, which import this module

    return small.folder(tmp_path_factory.mktemp("ahead"))


def config(folder: Path, **more: object) -> WarmConfig:
    return replace(WarmConfig(model=str(folder), steps=4, trees_per_step=3, save_every=4), **more)  # pyright: ignore[reportArgumentType]


def by_process(step: int) -> list[Tree]:
    """One tree, named after the step and the process that made it."""
    return [Tree(id=f"{step} {os.getpid()}", task=Task(question="?"), budget=Budget())]


def fails_at_two(step: int) -> list[Tree]:
    if step == 2:
        raise TrainError("no demonstrations")
    return by_process(step)


def dies_once(marker: Path, step: int) -> list[Tree]:
    if step == 1 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return by_process(step)


def dies_at_one(step: int) -> list[Tree]:
    if step == 1:
        os._exit(9)
    return by_process(step)


def collect_all(ahead: Ahead, steps: range) -> list[Tree]:
    async def main() -> list[Tree]:
        async with ahead:
            return [tree for step in steps for tree in await ahead.collect(step)]

    return anyio.run(main)


def test_the_first_step_is_made_here_and_the_others_by_workers_in_order() -> None:
    made = [tree.id.split() for tree in collect_all(Ahead(by_process, workers=2, steps=6), range(1, 6))]
    assert [step for step, _ in made] == ["1", "2", "3", "4", "5"]
    own = str(os.getpid())
    assert made[0][1] == own
    assert own not in {process for _, process in made[1:]}


def test_an_error_in_a_worker_is_raised_at_its_step() -> None:
    with pytest.raises(TrainError, match="no demonstrations"):
        collect_all(Ahead(fails_at_two, workers=1, steps=4), range(4))


def test_what_a_killed_worker_was_making_is_made_by_another_one(tmp_path: Path) -> None:
    ahead = Ahead(partial(dies_once, tmp_path / "died"), workers=1, steps=6)
    made = [tree.id.split() for tree in collect_all(ahead, range(6))]
    assert (tmp_path / "died").exists()
    assert [step for step, _ in made] == ["0", "1", "2", "3", "4", "5"]
    assert [process == str(os.getpid()) for _, process in made] == [True, *[False] * 5]


def test_workers_that_always_die_end_the_run_with_one_line() -> None:
    said = r"workers: a process that makes demonstrations was killed 3 times before step 2 was made; the .*\Z"
    with pytest.raises(TrainError, match=said):
        collect_all(Ahead(dies_at_one, workers=1, steps=4), range(4))


def test_demonstrations_of_workers_are_the_same_and_so_are_the_weights(folder: Path, tmp_path: Path) -> None:
    settings = config(folder)
    here = [make_step(settings, str(folder), step) for step in range(4)]
    there = collect_all(Ahead(partial(make_step, settings, str(folder)), workers=1, steps=4), range(4))
    assert [tree.id for tree in there] == [tree.id for trees in here for tree in trees]
    assert [node.pieces for tree in there for node in tree.nodes] == [
        node.pieces for trees in here for tree in trees for node in tree.nodes
    ]
    runs = [warmstart(config(folder, workers=workers), runs=tmp_path / str(workers)) for workers in (0, 1)]
    losses = [[record["loss"] for record in run.metrics()] for run in runs]
    assert losses[0] == losses[1]


def test_a_negative_number_of_workers_is_refused() -> None:
    with pytest.raises(ConfigError, match="workers is a number from 0 up"):
        WarmConfig(workers=-1)
