"""Collecting and learning at the same time: never further ahead than allowed, groups whole, trouble told as itself."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet.budget import Budget
from ramet.errors import EngineError, TrainError
from ramet.store import RunDir
from ramet.train.loop import resume, train
from ramet.train.metrics import tree_ages
from ramet.train.phase import Phase, open_local, run_phase
from ramet.train.prefetch import prefetching
from ramet.train.settings import TrainConfig
from ramet.train.step import Lesson
from ramet.types import Node, Piece, Task, Tree
from tests.conftest import in_virtual_time
from tests.train import small


def tree(step: int, *versions: int) -> Tree:
    made = Tree(id=str(step), task=Task(question="?"), budget=Budget())
    for index, version in enumerate(versions):
        node = Node(index=index, parent=None, depth=0, path=(), goal="?", grant=1)
        node.pieces += [Piece(sampled=False, text="?"), Piece(sampled=True, text="!", policy_version=version)]
        made.nodes.append(node)
    return made


@settings(max_examples=40, deadline=None)
@given(
    ahead=st.integers(0, 4),
    collects=st.lists(st.floats(0.1, 9), min_size=6, max_size=6),
    learns=st.lists(st.floats(0.1, 9), min_size=6, max_size=6),
)
def test_pitfall_13_no_tree_begins_earlier_than_its_age_allows_and_none_is_dropped(
    ahead: int, collects: list[float], learns: list[float]
) -> None:
    """Admission is paced, so nothing is thrown away for its age: that would favour short trees."""
    version, oldest, order = 0, [], []

    async def collect(step: int) -> list[Tree]:
        began = version
        await anyio.sleep(collects[step])
        return [tree(step, began)]

    async def work() -> None:
        nonlocal version
        async with prefetching(collect, range(6), ahead=ahead) as trees_of:
            for step in range(6):
                found = await trees_of(step)
                order.append(found[0].id)
                oldest.extend(tree_ages(found, version))
                await anyio.sleep(learns[step])
                version += 1

    in_virtual_time(work)
    assert order == [str(step) for step in range(6)]
    assert max(oldest) <= ahead
    if ahead:
        assert oldest[ahead:] == [ahead] * (6 - ahead)  # and as early as that


def test_while_one_step_is_learnt_the_next_is_collected() -> None:
    async def collect(step: int) -> list[Tree]:
        await anyio.sleep(3)
        return [tree(step, 0)]

    async def work(ahead: int) -> float:
        began = anyio.current_time()
        async with prefetching(collect, range(5), ahead=ahead) as trees_of:
            for step in range(5):
                await trees_of(step)
                await anyio.sleep(2)
        return anyio.current_time() - began

    assert in_virtual_time(partial(work, 0)) == 25
    # Steps 0 and 1 are there at 3, 2 (begun at 5) at 8, 3 (begun at 7) at 10, 4 (begun at 10) at 13, learnt at 15.
    assert in_virtual_time(partial(work, 1)) == 15


@pytest.mark.parametrize("fails", ["collecting", "learning"])
def test_what_goes_wrong_is_told_as_itself_and_nothing_goes_on_behind(fails: str) -> None:
    under_way: list[int] = []

    async def collect(step: int) -> list[Tree]:
        under_way.append(step)
        try:
            await anyio.sleep(5 * step)
            if step == 2 and fails == "collecting":
                raise EngineError("no more power")
        finally:
            under_way.remove(step)
        return [tree(step, 0)]

    async def work() -> None:
        async with prefetching(collect, range(9), ahead=3) as trees_of:
            for step in range(9):
                await trees_of(step)
                if step == 1 and fails == "learning":
                    raise TrainError("not a number")

    expected = (EngineError, "no more power") if fails == "collecting" else (TrainError, "not a number")
    with pytest.raises(expected[0], match=expected[1]):
        in_virtual_time(work)
    assert under_way == []


def test_the_age_of_a_tree_is_that_of_its_oldest_token() -> None:
    assert tree_ages([tree(0, 5, 3, 4), tree(1, 5), tree(2)], 5) == [2, 0, 0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.folder(tmp_path_factory.mktemp("ahead"))


def test_a_run_that_collects_ahead_is_whole_bounded_and_goes_on_after_it_stopped(tmp_path: Path, folder: Path) -> None:
    config = small.config(folder, "steps=6", "overlap=1", "eval.every=3", "eval.num_tasks=2", "max_logprob_gap=0.001")

    def stop(record: dict[str, Any]) -> None:
        if record["step"] == 3:
            raise TrainError("stopped here")

    with pytest.raises(TrainError, match="stopped here"):
        train(config, runs=tmp_path, on_step=stop)
    run = RunDir.open(tmp_path / "train")
    assert [record["step"] for record in run.metrics()] == [0, 1, 2, 3]
    resume(run.path)
    logged = run.metrics()
    assert [record["step"] for record in logged] == list(range(6))
    assert {record["trees"] for record in logged} == {12}
    assert max(record["age_max"] for record in logged) == 1
    assert [tree.id for tree in ramet.read_trees(run) if not tree.id.startswith("eval")] == [
        f"{step:06d}-{task:03d}-{member:03d}" for step in range(6) for task in range(2) for member in range(6)
    ]


@pytest.mark.parametrize("keep", [True, False])
def test_where_nodes_keep_their_cache_the_gap_is_measured_on_trees_of_one_version(
    tmp_path: Path, folder: Path, keep: bool
) -> None:
    """A cache of older weights gives other log-probs than the learner's, which is no gap between the two."""
    opened: list[Any] = []

    def opening(config: Any) -> Any:
        opened.append(open_local(config))
        return opened[0]

    words = ("steps=4", "overlap=2", "overlap_by=groups", "max_age=4", "max_logprob_gap=0.0001")
    config = small.config(folder, *words, f"sampler.keep_cache={str(keep).lower()}")
    settings: list[bool] = []

    def on_step(_: Any) -> None:
        settings.append(opened[0].engine.scheduler.keep_cache)

    run = train(config, runs=tmp_path, open_backend=opening, on_step=on_step)
    assert settings == [keep] * 4
    records = run.metrics()
    gaps = [record["logprob_gap"] for record in records if record.get("logprob_gap") is not None]
    assert gaps
    assert max(gaps) < 0.0001


class Unchanging:
    """A backend of which a run without rows needs no more than this."""

    supports_overlap = True
    version = 0

    def __init__(self) -> None:
        self.engine = ramet.ScriptedEngine(lambda prompt: "!")

    async def publish(self, version: int, *, fresh: bool = False) -> None:
        self.version = version

    async def save(self, run: Path, *, step: int, keep: int) -> Path:
        return run


@pytest.mark.parametrize("overlap", [0, 1])
def test_trees_are_stored_and_credited_beside_those_of_the_next_steps(tmp_path: Path, overlap: int) -> None:
    config = TrainConfig(steps=2, overlap=overlap)
    run = RunDir.create(tmp_path, "run", config=config, kind="train")
    lesson_threads: list[bool] = []

    async def collect(step: int) -> list[Tree]:
        return [tree(step, step)]

    def lesson(trees: Sequence[Tree]) -> Lesson:
        lesson_threads.append(threading.current_thread() is threading.main_thread())
        return Lesson(rows=())

    phase = Phase(config=config, collect=collect, lesson=lesson, overlap=overlap, stores_trees=True)
    backend: Any = Unchanging()
    anyio.run(partial(run_phase, phase, backend, run, on_step=lambda record: None))
    assert lesson_threads == [overlap == 0] * 2
    assert [record["step"] for record in run.metrics()] == [0, 1]
    assert [file.stem for file in run.files()] == ["step-000000", "step-000001"]
