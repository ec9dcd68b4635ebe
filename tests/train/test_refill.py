"""Groups that teach nothing are replaced by fresh ones: which ones, how many, and what is learnt from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import anyio
import pytest

from ramet.agent.options import TreeOptions
from ramet.config import load
from ramet.credit import load_rule
from ramet.engine.scripted import ScriptedEngine
from ramet.tasks.arithmetic import Arithmetic
from ramet.train.collect import fresh_tasks, indices
from ramet.train.refill import OneSplit, collect_with_signal
from ramet.train.settings import TrainConfig
from ramet.train.step import credited_rows
from ramet.types import Prompt, Tree
from tests.train.test_collect import Shelf

TASKS = Arithmetic(operators=1, digits=1)
RULE = load_rule("rao")


def config(*words: str) -> TrainConfig:
    return load(TrainConfig, words=["tasks_per_step=2", "group_size=2", "steps=10", *words])


def collected(lively: Sequence[int], *words: str, step: int = 3) -> list[Tree]:
    """The trees of a step in which the tasks with these indices are solved every second time, and no others."""
    answers = {TASKS.task("train", index).question: TASKS.task("train", index).reference for index in lively}
    asked: Counter[str] = Counter()

    def script(prompt: Prompt) -> str:
        asked[prompt.goal] += 1
        return f"Answer: {answers[prompt.goal]}" if prompt.goal in answers and asked[prompt.goal] % 2 else "Answer: x"

    async def work() -> list[Tree]:
        options = TreeOptions(engine=ScriptedEngine(script))
        source = OneSplit(taskset=TASKS, split="train", config=config(*words))
        return await collect_with_signal(source, TASKS, config(*words), options, rule=RULE, step=step)

    return anyio.run(work)


def played(trees: Sequence[Tree]) -> dict[str, int]:
    """The tasks by their place in the step."""
    return {tree.id.split("-")[1]: int(tree.task.id.rpartition("/")[2]) for tree in trees}


def test_without_refill_a_step_is_its_tasks() -> None:
    assert played(collected([])) == {"000": 6, "001": 7}


def test_as_many_fresh_groups_follow_as_have_no_signal() -> None:
    # Ten steps of two tasks have the indices 0 to 19; those that replace tasks of step 3 begin with 20 + 3 * 2 * 2.
    assert played(collected([6], "refill=2")) == {"000": 6, "001": 7, "002": 32, "003": 33}
    assert played(collected([6, 32], "refill=2")) == {"000": 6, "001": 7, "002": 32}
    assert played(collected([6, 7], "refill=2")) == {"000": 6, "001": 7}
    assert played(collected([], "refill=1")) == {"000": 6, "001": 7, "002": 26, "003": 27}


def test_rounds_are_bounded() -> None:
    trees = collected([], "refill=3")
    assert len(trees) == 2 * 2 * (1 + 3)
    assert len({tree.id for tree in trees}) == len(trees)


def test_what_is_played_is_the_same_each_time() -> None:
    first, again = ([(tree.id, tree.task.id, tree.budget) for tree in collected([6], "refill=2")] for _ in range(2))
    assert first == again


def test_a_split_that_ends_gives_no_task_twice_in_a_step() -> None:
    given = config("refill=4", "tasks_per_step=3", "steps=5")
    for step in range(5):
        own = indices(Shelf(7), "train", given, step=step)
        fresh = list(fresh_tasks(Shelf(7), "train", given, step=step))
        assert [place for place, _ in fresh] == list(range(3, 3 + len(fresh)))
        used = own + [index for _, index in fresh]
        assert len(set(used)) == len(set(own)) + len(fresh)
    assert list(fresh_tasks(Shelf(3), "train", given, step=0)) == []


def test_a_step_learns_from_as_many_groups_as_without_replacing_any() -> None:
    def lesson(trees: Sequence[Tree]) -> tuple[set[str], dict[str, object]]:
        taught = credited_rows(trees, RULE, num_groups=2)
        return {row.group.rpartition("/")[2] for row in taught.rows}, taught.metrics

    groups, metrics = lesson(collected([6, 32], "refill=2"))
    assert groups == {"6", "32"}
    assert (metrics["groups"], metrics["flat"], metrics["refilled"]) == (2, 0, 1)
    groups, metrics = lesson(collected([6], "refill=2"))  # the last one without signal stays
    assert groups == {"6", "33"}
    assert (metrics["groups"], metrics["flat"], metrics["refilled"]) == (2, 1, 2)
    groups, metrics = lesson(collected([], "refill=1"))
    assert (groups, metrics["note"]) == (set(), "no signal: all trees of each group earned the same")


def test_credit_is_that_of_the_groups_that_are_left() -> None:
    """Rules may weight a node by all nodes of the batch, so groups that were replaced must not count."""
    trees = collected([6, 32], "refill=2")
    kept = [tree for tree in trees if not tree.task.id.endswith("/7")]
    left, right = credited_rows(trees, RULE, num_groups=2).rows, credited_rows(kept, RULE).rows
    assert [(row.tree_id, row.advantage, row.weight) for row in left] == [
        (row.tree_id, row.advantage, row.weight) for row in right
    ]
    assert [row.advantage for row in left] == pytest.approx([1.0, -1.0, 1.0, -1.0])
