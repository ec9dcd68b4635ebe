"""Steps made of complete groups: a long group is not waited for before its age demands it, and none is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet.agent.options import TreeOptions
from ramet.budget import Budget
from ramet.config import load
from ramet.credit import load_rule
from ramet.engine.scripted import ScriptedEngine
from ramet.errors import ConfigError, EngineError, StoreError, TrainError
from ramet.store import RunDir
from ramet.store.tree_files import read_file
from ramet.tasks.arithmetic import Arithmetic
from ramet.train.groups import CollectGroup, GroupPool, Key, group_name, learnt_groups
from ramet.train.loop import resume, train
from ramet.train.phase import OpenBackend, open_local
from ramet.train.prefetch import prefetching
from ramet.train.refill import OneSplit, step_groups
from ramet.train.settings import TrainConfig
from ramet.train.step import Lesson
from ramet.types import Prompt, Task, Tree
from tests.conftest import in_virtual_time
from tests.train import small
from tests.train.test_decisions import BUDGET, WORDS, ScriptedBackend

Durations = dict[Key, float]


def tree(key: Key) -> Tree:
    return Tree(id=group_name(key), task=Task(question="?"), budget=Budget())


def timed_pool(durations: Durations, *, per_step: int, ahead: int, max_age: int) -> GroupPool:
    """Groups of one tree each, which take so long."""

    def open_step(step: int) -> Sequence[CollectGroup]:
        async def collect(place: int) -> list[Tree]:
            await anyio.sleep(durations[step, place])
            return [tree((step, place))]

        return [partial(collect, place) for place in range(per_step)]

    return GroupPool(open_step, per_step=per_step, ahead=ahead, max_age=max_age)


class Learnt:
    """The groups of each step, when they were there, and the metrics."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.times: list[float] = []
        self.records: list[dict[str, Any]] = []

    async def learn(self, pool: GroupPool, steps: range, last: int, *, learning_s: Sequence[float]) -> None:
        learnt = learnt_groups(self.records, steps=steps.start)
        async with pool.collecting(steps, learnt=learnt) as collect:
            for step in range(steps.start, last):
                trees = await collect(step)
                self.groups.append([tree.id for tree in trees])
                self.times.append(anyio.current_time())
                lesson = pool.lesson(trees, teach=lambda _: Lesson(rows=()))
                self.records.append(lesson.metrics | {"step": step})
                await anyio.sleep(learning_s[step])


def test_a_step_does_not_wait_for_a_long_group_that_is_not_due() -> None:
    """Places 0 take 1 s, places 1 take 5, 6, 7 and 8 s; learning takes 2 s; a group may be two steps late."""
    durations = {(step, place): 1.0 if place == 0 else 5.0 + step for step in range(4) for place in range(2)}
    learnt = Learnt()

    async def work() -> float:
        began = anyio.current_time()
        pool = timed_pool(durations, per_step=2, ahead=1, max_age=3)
        await learnt.learn(pool, range(4), 4, learning_s=[2] * 4)
        learnt.times = [time - began for time in learnt.times]
        return anyio.current_time() - began

    # At 0 the groups of steps 0 and 1 start: those of place 0 are there at 1 and learnt until 3. At 3 step 2 starts:
    # 2-0 is there at 4, 0-1 at 5; learnt until 7. At 7 step 3 starts; 1-1 was there at 6, 3-0 comes at 8; learnt until
    # 10. 2-1 is there at 10 and 3-1 at 15.
    assert in_virtual_time(work) == 17
    assert learnt.times == [1, 5, 8, 15]
    assert learnt.groups == [
        ["000000-000", "000001-000"],
        ["000000-001", "000002-000"],
        ["000001-001", "000003-000"],
        ["000002-001", "000003-001"],
    ]
    # Group 1-1 began in step 0 and 3-0 in step 2, in which both were learnt from: ages 2 and 0.
    assert learnt.records[2]["groups_by_age"] == [1, 0, 1, 0]
    assert learnt.records[2]["learnt_groups"] == learnt.groups[2]


def test_a_group_of_the_largest_age_is_waited_for() -> None:
    # No two groups are complete at the same moment, nor one when a step begins.
    durations = {(step, place): 1 + (3 * step + place) / 1000 for step in range(9) for place in range(3)}
    durations[0, 0] = 100.0
    learnt = Learnt()
    pool = timed_pool(durations, per_step=3, ahead=2, max_age=5)
    in_virtual_time(partial(learnt.learn, pool, range(9), 9, learning_s=[2] * 9))
    assert ["000000-000" in groups for groups in learnt.groups].index(True) == 3
    # Steps 0 to 2 learnt from the eight others that were drawn for them and from 3-0. 3-1 and 3-2 began in step 1.
    assert learnt.groups[3] == ["000000-000", "000003-001", "000003-002"]
    assert learnt.records[3]["groups_by_age"] == [0, 0, 2, 1, 0, 0]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), per_step=st.integers(1, 3), ahead=st.integers(1, 3), late=st.integers(0, 3))
def test_pitfall_13_every_group_is_learnt_from_once_and_waited_for_only_when_it_is_due(
    data: st.DataObject, per_step: int, ahead: int, late: int
) -> None:
    """The time of every step is the earliest at which enough groups, and all that are due, are complete."""
    places = [(step, place) for step in range(6) for place in range(per_step)]
    seconds = st.integers(1, 2**20).map(lambda number: number / 2**16)
    durations = {key: data.draw(seconds) for key in places}
    learning = [data.draw(seconds) for _ in range(6)]
    killed = data.draw(st.integers(0, 6))
    learnt = Learnt()

    now = 0.0

    async def work() -> None:
        nonlocal now
        now = anyio.current_time()
        for first, last in ((0, killed), (killed, 6)):
            pool = timed_pool(durations, per_step=per_step, ahead=ahead, max_age=ahead + late)
            await learnt.learn(pool, range(first, 6), last, learning_s=learning)

    in_virtual_time(work)
    began, used = dict[Key, float](), set[Key]()
    for step, (names, time) in enumerate(zip(learnt.groups, learnt.times, strict=True)):
        if step == killed:
            began = {}  # trees in progress are lost
        for key in places:
            if key[0] <= step + ahead and key not in used and key not in began:
                began[key] = now
        there = {key: began[key] + durations[key] for key in began if key not in used}
        due = [when for key, when in there.items() if key[0] <= step - late]
        assert time == pytest.approx(max([now, *due, sorted(there.values())[per_step - 1]]))
        assert all(step - key[0] <= late for key in _keys(names))
        used |= set(_keys(names))
        now = time + learning[step]
    assert Counter(key for names in learnt.groups for key in _keys(names)) == Counter(places)


def _keys(names: Sequence[str]) -> list[Key]:
    return [(int(name[:6]), int(name[7:])) for name in names]


def trees_pool(durations: dict[Key, Sequence[float]], **given: int) -> tuple[GroupPool, list[int]]:
    """Groups of several trees, which take so long each; and how many trees were under way at every start and end."""
    counts: list[int] = []
    under_way = 0

    def open_step(step: int) -> Sequence[CollectGroup]:
        async def play(key: Key, member: int) -> None:
            nonlocal under_way
            under_way += 1
            counts.append(under_way)
            await anyio.sleep(durations[key][member])
            under_way -= 1
            counts.append(under_way)
            pool.tree_ended(f"{group_name(key)}-{member:03d}")

        async def collect(key: Key) -> list[Tree]:
            async with anyio.create_task_group() as trees:
                for member in range(len(durations[key])):
                    trees.start_soon(play, key, member)
            return [tree(key)]

        return [partial(collect, (step, place)) for place in range(given["per_step"])]

    pool = GroupPool(open_step, **given)
    return pool, counts


def test_with_max_trees_a_group_starts_when_trees_have_ended_and_does_not_wait_for_a_group() -> None:
    """One group of two trees per step, at most two trees: one takes 1 s, the other 10 s."""
    durations = {(step, 0): (1.0, 10.0) for step in range(3)}
    learnt = Learnt()

    async def work() -> None:
        began = anyio.current_time()
        pool, counts = trees_pool(durations, per_step=1, ahead=2, max_age=4, group_size=2, max_trees=2)
        await learnt.learn(pool, range(3), 3, learning_s=[0] * 3)
        learnt.times = [time - began for time in learnt.times]
        # 0 starts at 0. At 1 one of its trees is left, so 1 starts; at 2 there are two left, at 10 one: 2 starts.
        assert learnt.times == [10, 11, 20]
        assert max(counts) == 3

    in_virtual_time(work)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(), per_step=st.integers(1, 3), ahead=st.integers(1, 3), late=st.integers(0, 3), most=st.integers(1, 9)
)
def test_with_max_trees_every_group_is_learnt_from_once_and_is_never_too_old(
    data: st.DataObject, per_step: int, ahead: int, late: int, most: int
) -> None:
    """A group starts only while fewer trees are under way, so with its own there are at most `most - 1 + size`."""
    places = [(step, place) for step in range(6) for place in range(per_step)]
    seconds = st.integers(1, 2**20).map(lambda number: number / 2**16)
    durations = {key: data.draw(st.tuples(seconds, seconds, seconds)) for key in places}
    learning = [data.draw(seconds) for _ in range(6)]
    killed = data.draw(st.integers(0, 6))
    learnt = Learnt()

    async def work() -> None:
        for first, last in ((0, killed), (killed, 6)):
            pool, counts = trees_pool(
                durations, per_step=per_step, ahead=ahead, max_age=ahead + late, group_size=3, max_trees=most
            )
            await learnt.learn(pool, range(first, 6), last, learning_s=learning)
            assert max(counts, default=0) <= most + 2

    in_virtual_time(work)
    assert Counter(key for names in learnt.groups for key in _keys(names)) == Counter(places)
    for record in learnt.records:
        assert sum(record["groups_by_age"]) == per_step  # so no age is beyond the list


def test_with_no_time_to_be_late_steps_are_those_that_were_drawn() -> None:
    durations = {(step, place): 1.0 + (7 * step + 3 * place) % 5 for step in range(6) for place in range(2)}

    async def whole(step: int) -> list[Tree]:
        await anyio.sleep(max(durations[step, place] for place in range(2)))
        return [tree((step, place)) for place in range(2)]

    async def by_steps() -> list[float]:
        times: list[float] = []
        began = anyio.current_time()
        async with prefetching(whole, range(6), ahead=2) as collect:
            for step in range(6):
                await collect(step)
                times.append(anyio.current_time() - began)
                await anyio.sleep(1)
        return times

    learnt = Learnt()

    async def by_groups() -> list[float]:
        began = anyio.current_time()
        pool = timed_pool(durations, per_step=2, ahead=2, max_age=2)
        await learnt.learn(pool, range(6), 6, learning_s=[1] * 6)
        return [time - began for time in learnt.times]

    assert in_virtual_time(by_groups) == in_virtual_time(by_steps)
    assert learnt.groups == [[f"{step:06d}-000", f"{step:06d}-001"] for step in range(6)]


@pytest.mark.parametrize("fails", ["collecting", "drawing", "learning"])
def test_what_goes_wrong_is_raised_as_itself_and_no_group_goes_on(fails: str) -> None:
    under_way: list[Key] = []

    def open_step(step: int) -> Sequence[CollectGroup]:
        if step == 3 and fails == "drawing":
            raise EngineError("no more power")

        async def collect(place: int) -> list[Tree]:
            under_way.append((step, place))
            try:
                await anyio.sleep(5 * step + place)
                if step == 2 and fails == "collecting":
                    raise EngineError("no more power")
            finally:
                under_way.remove((step, place))
            return [tree((step, place))]

        return [partial(collect, place) for place in range(2)]

    async def work() -> None:
        pool = GroupPool(open_step, per_step=2, ahead=3, max_age=6, max_trees=2 if fails == "drawing" else None)
        async with pool.collecting(range(9)) as collect:
            for step in range(9):
                await collect(step)
                if step == 1 and fails == "learning":
                    raise TrainError("not a number")

    expected = (TrainError, "not a number") if fails == "learning" else (EngineError, "no more power")
    with pytest.raises(expected[0], match=expected[1]):
        in_virtual_time(work)
    assert under_way == []


def test_metrics_that_are_missing_are_named() -> None:
    records = [{"step": 0, "learnt_groups": ["000000-001", "000001-000"]}, {"step": 1}]
    assert learnt_groups(records, steps=1) == {(0, 1), (1, 0)}
    with pytest.raises(TrainError, match="the metrics of step 1 are missing: overlap_by=groups needs those of all"):
        learnt_groups(records, steps=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["overlap_by=groups"], "overlap_by=groups needs overlap=1 or more"),
        (["overlap=2", "max_age=3"], "max_age needs overlap_by=groups"),
        (["overlap=2", "overlap_by=groups", "max_age=1"], "max_age is a number from overlap=2 up; got 1"),
        (["overlap=2", "max_trees=8"], "max_trees needs overlap_by=groups"),
        (["overlap=2", "overlap_by=groups", "max_trees=0"], "max_trees is a number from 1 up; got 0"),
        (["overlap=2", "overlap_by=trees"], "overlap_by: input should be 'steps' or 'groups'; got 'trees'"),
    ],
)
def test_a_wrong_setting_is_one_line(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=r"^.+\Z") as caught:
        load(TrainConfig, words=words)
    assert said in str(caught.value)


# Refill.


def test_a_group_without_signal_is_followed_by_the_fresh_groups_of_its_place() -> None:
    """Two tasks per step and two rounds: of the fresh groups, 0 and 2 follow the first task, 1 and 3 the second."""
    tasks, asked = Arithmetic(operators=1, digits=1), Counter[str]()
    given = load(TrainConfig, words=["tasks_per_step=2", "group_size=2", "steps=10", "refill=2"])
    # As in test_refill: step 3 has the tasks 6 and 7, the fresh ones begin with 32. Task 34 has a signal, 7 has one.
    answers = {tasks.task("train", index).question: tasks.task("train", index).reference for index in (7, 34)}

    def script(prompt: Prompt) -> str:
        asked[prompt.goal] += 1
        return f"Answer: {answers[prompt.goal]}" if prompt.goal in answers and asked[prompt.goal] % 2 else "Answer: x"

    async def work() -> list[list[Tree]]:
        options = TreeOptions(engine=ScriptedEngine(script))
        source = OneSplit(taskset=tasks, split="train", config=given)
        groups = step_groups(source, tasks, given, options, rule=load_rule("rao"), step=3)
        return [await collect() for collect in groups]

    first, second = anyio.run(work)
    assert [int(tree.task.id.rpartition("/")[2]) for tree in first] == [6, 6, 32, 32, 34, 34]
    assert [int(tree.task.id.rpartition("/")[2]) for tree in second] == [7, 7]
    assert [tree.id for tree in first[::2]] == ["000003-000-000", "000003-002-000", "000003-004-000"]


# Whole runs.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.folder(tmp_path_factory.mktemp("groups"))


def killed_and_resumed(config: TrainConfig, runs: Path, *, open_backend: OpenBackend = open_local) -> RunDir:
    """A run that ends in step 3 without saving it. When it is resumed, no file of a step to come is left."""

    def stop(record: dict[str, Any]) -> None:
        if record["step"] == 3:
            raise StoreError("the disk is full")

    with pytest.raises(StoreError, match="the disk is full"):
        train(config, runs=runs, open_backend=open_backend, on_step=stop)
    run = RunDir.open(runs / "train")
    assert [record["step"] for record in run.metrics()] == [0, 1, 2, 3]

    def check(record: dict[str, Any]) -> None:
        stored = sorted(file.stem for file in run.files() if file.stem.startswith("step-"))
        assert stored[-1] == f"step-{record['step']:06d}"

    return resume(run.path, open_backend=open_backend, on_step=check)


def names(run: RunDir, *, first: str = "0") -> list[str]:
    return [tree.id for tree in ramet.read_trees(run) if tree.id.startswith(first)]


def test_a_run_that_was_killed_learns_from_every_group_once(tmp_path: Path, folder: Path) -> None:
    words = ["steps=5", "overlap=1", "overlap_by=groups", "eval.every=3", "eval.num_tasks=2", "demos.weight=0.1"]
    config = small.config(folder, *words, "demos.trees_per_step=2", "max_logprob_gap=0.001")
    run = killed_and_resumed(config, tmp_path)
    logged = run.metrics()
    assert [record["step"] for record in logged] == list(range(5))
    assert {(record["trees"], sum(record["groups_by_age"])) for record in logged} == {(12, 2)}
    assert max(record["age_max"] for record in logged) <= 2
    assert sorted(name for record in logged for name in record["learnt_groups"]) == [
        f"{step:06d}-{place:03d}" for step in range(5) for place in range(2)
    ]
    assert sorted(names(run)) == [
        f"{step:06d}-{place:03d}-{member:03d}" for step in range(5) for place in range(2) for member in range(6)
    ]
    for record, file in zip(logged, sorted((run.path / "trees").glob("step-*.parquet")), strict=True):
        stored = {tree.id[:10] for tree in read_file(file)}
        assert stored == set(record["learnt_groups"])


def test_a_run_with_few_trees_under_way_learns_from_every_group_once(tmp_path: Path, folder: Path) -> None:
    words = ["steps=5", "overlap=2", "overlap_by=groups", "max_trees=3", "max_logprob_gap=0.001"]
    run = killed_and_resumed(small.config(folder, *words), tmp_path)
    assert sorted(name for record in run.metrics() for name in record["learnt_groups"]) == [
        f"{step:06d}-{place:03d}" for step in range(5) for place in range(2)
    ]


def test_curriculum_refill_and_replays_go_on_after_a_kill(tmp_path: Path, folder: Path) -> None:
    """All trees of the script are right, so every group is flat and followed by a fresh one."""
    words = ["steps=4", "overlap=1", "overlap_by=groups", "refill=1", "counterfactual.share=0.5"]
    config = small.config(folder, *WORDS, *words, "curriculum.sizes=[4,16]", taskset={}, budget=BUDGET)
    run = killed_and_resumed(config, tmp_path, open_backend=lambda given: ScriptedBackend(open_local(given)))
    logged = run.metrics()
    assert [record["step"] for record in logged] == list(range(4))
    for record in logged:
        assert record["trees"] == sum(record["trees_by_level"].values()) == 2 * 2 * 2
        assert (record["groups"] + record["refilled"], record["replays"]) == (4, 4)  # replays may give a signal
    assert sorted(name for record in logged for name in record["learnt_groups"]) == [
        f"{step:06d}-{place:03d}" for step in range(4) for place in range(2)
    ]
    stored = [tree.id for tree in ramet.read_trees(run)]
    assert len(stored) == len(set(stored)) == 4 * (8 + 4)


def test_files_of_steps_that_are_repeated_are_removed(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    for name in ("step-000001", "step-000002", "step-000010", "eval-000010", "replay-000001", "replay-000002"):
        run.write([], name=name)
    run.drop_trees(2)
    assert [file.stem for file in run.files()] == ["eval-000010", "replay-000001", "step-000001"]
