"""Steps made of complete groups: a step learns from groups that are complete, whichever step they were drawn for.

Tasks are drawn for steps as always, and all groups of the current step and of the `ahead` next ones are under way at
once. A step waits until as many groups are complete as it has tasks, not for particular ones, so a long tree does not
hold up the others. No group is discarded, which would favour short trees: a group that has reached its largest age is
waited for. `max_age` is the most steps between its start and the step that learns from it; `max_age = ahead` is the
same as waiting for all groups of a step.

The metrics name the groups that each step learnt from. So a resumed run collects exactly the other ones.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from ramet.errors import RametError, TrainError
from ramet.train.prefetch import Collect, background_tasks
from ramet.train.step import Lesson
from ramet.types import Tree

LEARNT = "learnt_groups"  # the metric that names the groups of a step
Key = tuple[int, int]  # of a group: the step it was drawn for, and its place there
CollectGroup = Callable[[], Awaitable[list[Tree]]]
OpenStep = Callable[[int], Sequence[CollectGroup]]  # the groups drawn for a step, by place
Finish = Callable[[Sequence[Tree], int], Awaitable[None]]  # called with the trees a step learns from, and the step


class GroupPool:
    """The groups that are under way or complete, and the choice of those that a step learns from."""

    def __init__(
        self, open_step: OpenStep, *, per_step: int, ahead: int, max_age: int, finish: Finish | None = None
    ) -> None:
        self.open_step = open_step
        self.per_step = per_step
        self.ahead = ahead
        self.max_age = max_age
        self.finish = finish
        self._opened = 0  # steps whose groups have been started
        self._began: dict[Key, int] = {}  # the step during which a group was started; until it is learnt from
        self._complete: dict[Key, list[Tree]] = {}
        self._failed: list[RametError] = []
        self._changed = anyio.Event()
        self._ages: dict[Key, int] = {}  # of the groups of the last step

    @asynccontextmanager
    async def collecting(self, steps: range, *, learnt: Collection[Key] = ()) -> AsyncGenerator[Collect]:
        """A `collect` for one step after the other. `learnt` are the groups of earlier steps, which are left out."""
        async with background_tasks() as tasks:
            yield partial(self._collect, steps=steps, learnt=frozenset(learnt), tasks=tasks)

    async def _collect(self, step: int, *, steps: range, learnt: frozenset[Key], tasks: TaskGroup) -> list[Tree]:
        for number in range(self._opened, min(step + self.ahead + 1, steps.stop)):
            self._start(number, step, learnt, tasks)
        while not self._is_ready(step):
            self._changed = anyio.Event()
            await self._changed.wait()
        chosen = sorted(self._complete)[: self.per_step]  # those that are due are the oldest
        self._ages = {key: step - self._began.pop(key) for key in chosen}
        trees = [tree for key in chosen for tree in self._complete.pop(key)]
        if self.finish is not None:
            await self.finish(trees, step)
        return trees

    def _start(self, number: int, step: int, learnt: frozenset[Key], tasks: TaskGroup) -> None:
        """Start the groups of a step that no step has learnt from."""
        missing = [place for place in range(self.per_step) if (number, place) not in learnt]
        groups = self.open_step(number) if missing else ()
        for place in missing:
            self._began[number, place] = step
            tasks.start_soon(self._collect_one, (number, place), groups[place])
        self._opened = number + 1

    async def _collect_one(self, key: Key, collect: CollectGroup) -> None:
        try:
            self._complete[key] = await collect()
        except RametError as error:  # raised where groups are awaited, not inside an exception group
            self._failed.append(error)
        self._changed.set()

    def _is_ready(self, step: int) -> bool:
        """Whether enough groups are complete, and all those that may not get older."""
        if self._failed:
            raise self._failed[0]
        last = step - (self.max_age - self.ahead)
        due = all(key in self._complete for key in self._began if key[0] <= last)
        return due and len(self._complete) >= self.per_step

    def lesson(self, trees: Sequence[Tree], *, teach: Callable[[Sequence[Tree]], Lesson]) -> Lesson:
        """What `teach` makes of a step's trees, with the metrics of its groups."""
        lesson = teach(trees)
        return replace(lesson, metrics=lesson.metrics | self.metrics())

    def metrics(self) -> dict[str, Any]:
        """The names of the groups of the last step, and how many there were of each age."""
        ages = list(self._ages.values())
        return {
            LEARNT: [group_name(key) for key in self._ages],
            "groups_by_age": [ages.count(age) for age in range(self.max_age + 1)],
        }


def group_name(key: Key) -> str:
    """What the ids of a group's trees begin with.

    Example:
        group_name((3, 11))  # "000003-011"
    """
    step, place = key
    return f"{step:06d}-{place:03d}"


def learnt_groups(records: Sequence[Mapping[str, Any]], *, steps: int) -> set[Key]:
    """The groups that the first `steps` steps learnt from, according to their metrics."""
    names = {record["step"]: record[LEARNT] for record in records if LEARNT in record}
    for step in range(steps):
        if step not in names:
            raise TrainError(
                f"the metrics of step {step} are missing: overlap_by=groups needs those of all earlier steps"
            )
    keys = [name.split("-") for step in range(steps) for name in names[step]]
    return {(int(step), int(place)) for step, place in keys}
