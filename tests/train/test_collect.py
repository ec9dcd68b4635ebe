"""Trees of one step: the same whenever they are played, in their order, within budgets drawn for each."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from ramet.agent.options import TreeOptions
from ramet.config import load
from ramet.engine.scripted import Reply, ScriptedEngine
from ramet.errors import ConfigError, EngineError, TrainError
from ramet.tasks.arithmetic import Arithmetic
from ramet.train.collect import collect, indices, step_attempts
from ramet.train.settings import TrainConfig
from ramet.types import Prompt, Task, Tree
from tests.agent.scripts import call, delegate

TASKS = Arithmetic(operators=1, digits=1)


def config(*words: str) -> TrainConfig:
    return load(TrainConfig, words=["tasks_per_step=3", "group_size=2", "budget.tokens=[100, 900]", *words])


class Shelf(Arithmetic):
    """Tasks that run out."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def size(self, split: str) -> int | None:
        return self._size


def played(engine: ScriptedEngine, given: TrainConfig, *, step: int = 0) -> list[Tree]:
    async def everything() -> list[Tree]:
        return await collect(TASKS, step_attempts(TASKS, "train", given, step=step), TreeOptions(engine=engine))

    return anyio.run(everything)


def test_trees_come_in_the_order_of_their_places_however_long_they_take() -> None:
    def slow_at_first(prompt: Prompt) -> Reply:
        return Reply(text="Answer: 1", seconds=0.05 / (1 + len(prompt.goal)))

    trees = played(ScriptedEngine(slow_at_first), config(), step=7)
    assert [tree.id for tree in trees] == [f"000007-00{task}-00{member}" for task in range(3) for member in range(2)]
    assert [tree.task.id for tree in trees] == [f"arithmetic:train/{21 + i // 2}" for i in range(6)]
    assert all(tree.root.verdict is not None for tree in trees)


def test_what_is_played_follows_from_seed_step_task_and_member_alone() -> None:
    first = step_attempts(TASKS, "train", config(), step=3)
    assert first == step_attempts(TASKS, "train", config(), step=3)
    seeds = {attempt.seed for step in range(5) for attempt in step_attempts(TASKS, "train", config(), step=step)}
    assert len(seeds) == 30
    assert not seeds & {attempt.seed for attempt in step_attempts(TASKS, "train", config("seed=1"), step=3)}


def test_budgets_are_drawn_for_every_tree_or_for_every_task() -> None:
    def tokens(given: TrainConfig) -> list[int]:
        return [attempt.budget.tokens for attempt in step_attempts(TASKS, "train", given, step=0)]

    apart, alike = tokens(config("tasks_per_step=40")), tokens(config("tasks_per_step=40", "budget_per=task"))
    assert all(100 <= drawn <= 900 for drawn in apart + alike)
    assert min(apart) < 200 < 800 < max(apart)
    assert apart[::2] != apart[1::2]
    assert alike[::2] == alike[1::2]


def test_a_split_that_ends_is_shuffled_anew_each_time_it_is_through() -> None:
    def epoch(number: int, **more: Any) -> list[int]:
        given = load(TrainConfig, words=["tasks_per_step=5"], flags=more)
        return [
            index for step in (2 * number, 2 * number + 1) for index in indices(Shelf(10), "train", given, step=step)
        ]

    assert sorted(epoch(0)) == sorted(epoch(1)) == list(range(10))
    assert len({tuple(epoch(0)), tuple(epoch(1)), tuple(epoch(0, seed=1)), tuple(range(10))}) == 4


def test_a_split_without_tasks_says_so() -> None:
    with pytest.raises(TrainError, match="arithmetic:train has no tasks"):
        indices(Shelf(0), "train", config(), step=0)


def test_an_engine_that_fails_is_told_as_itself() -> None:
    with pytest.raises(EngineError, match="out of memory"):
        played(ScriptedEngine(lambda _: Reply(text="", fault="out of memory")), config())


def test_an_error_of_the_configuration_in_a_clone_is_told_as_itself() -> None:
    class World:
        def __init__(self) -> None:
            self.context: dict[str, str] = {}
            self.functions = {"look": self.look}

        def look(self) -> str:
            raise ConfigError("the database is missing")

    class Looking(Arithmetic):
        def world(self, task: Task) -> World:
            return World()

    def script(prompt: Prompt) -> str:
        return call("look") if prompt.depth else delegate("look it up")

    attempts = step_attempts(TASKS, "train", config("budget.tokens=900"), step=0)
    with pytest.raises(ConfigError, match=r"^the database is missing$"):
        anyio.run(collect, Looking(), attempts, TreeOptions(engine=ScriptedEngine(script)))
