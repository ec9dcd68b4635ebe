"""Steps made of complete groups: a step learns from groups that are complete, whichever step they were drawn for.

Tasks are drawn for steps as always, and all groups of the current step and of the `ahead` next ones are under way at
once. A step waits until as many groups are complete as it has tasks, not for particular ones, so a long tree does not
hold up the others. No group is discarded, which would favour short trees: a group that has reached its largest age is
waited for. `max_age` is the most steps between its start and the step that learns from it; `max_age = ahead` is the
same as waiting for all groups of a step.

A group waits for its slowest tree, so many trees of the groups under way may have ended. With `max_trees`, groups start
one by one, in order, as soon as fewer trees than that are unfinished: their number stays the same, and so does the load
of the engine. `ahead` is then the most that groups may run ahead.

The metrics name the groups that each step learnt from. So a resumed run collects exactly the other ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
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
        self,
        open_step: OpenStep,
        *,
        per_step: int,
        ahead: int,
        max_age: int,
        group_size: int = 1,
        max_trees: int | None = None,
        finish: Finish | None = None,
    ) -> None:
        self.open_step = open_step
        self.per_step = per_step
        self.ahead = ahead
        self.max_age = max_age
        self.group_size = group_size
        self.max_trees = max_trees
        self.finish = finish
        self._step = 0
        self._opened = 0  # steps whose groups have been drawn
        self._drawn: deque[tuple[Key, CollectGroup]] = deque()  # groups that have not been started
        self._unfinished: dict[str, int] = {}  # trees of the groups under way, by name
        self._began: dict[Key, int] = {}  # the step during which a group was started; until it is learnt from
        self._complete: dict[Key, list[Tree]] = {}
        self._failed: list[RametError] = []
        self._changed = anyio.Event()
        self._ages: dict[Key, int] = {}  # of the groups of the last step
        self._steps = range(0)
        self._learnt: frozenset[Key] = frozenset()
        self._tasks: TaskGroup | None = None  # that collect groups

    @asynccontextmanager
    async def collecting(self, steps: range, *, learnt: Collection[Key] = ()) -> AsyncGenerator[Collect]:
        """A `collect` for one step after the other. `learnt` are the groups of earlier steps, which are left out."""
        self._steps, self._learnt = steps, frozenset(learnt)
        async with background_tasks() as self._tasks:
            yield self._collect

    def tree_ended(self, tree_id: str) -> None:
        """Count a tree that has ended, so that others may start."""
        name = tree_id.rpartition("-")[0]
        if self._unfinished.get(name):  # not the tree of a group that replaces one without signal
            self._unfinished[name] -= 1
            self._start_groups()

    async def _collect(self, step: int) -> list[Tree]:
        self._step = step
        self._start_groups()
        while not self._is_ready(step):
            self._changed = anyio.Event()
            await self._changed.wait()
        chosen = sorted(self._complete)[: self.per_step]  # those that are due are the oldest
        self._ages = {key: step - self._began.pop(key) for key in chosen}
        trees = [tree for key in chosen for tree in self._complete.pop(key)]
        if self.finish is not None:
            await self.finish(trees, step)
        return trees

    def _start_groups(self) -> None:
        """Start the groups that no step has learnt from, as far as steps are drawn ahead and trees may be under way."""
        while self._tasks is not None and self._has_room() and (self._drawn or self._draw()):
            key, collect = self._drawn.popleft()
            self._began[key] = self._step
            self._unfinished[group_name(key)] = self.group_size
            self._tasks.start_soon(self._collect_one, key, collect)

    def _has_room(self) -> bool:
        return self.max_trees is None or sum(self._unfinished.values()) < self.max_trees

    def _draw(self) -> bool:
        """Draw the groups of the next step that has some to collect. False: there is none yet."""
        for number in range(self._opened, min(self._step + self.ahead + 1, self._steps.stop)):
            self._opened = number + 1
            missing = [place for place in range(self.per_step) if (number, place) not in self._learnt]
            if missing:
                groups = self.open_step(number)
                self._drawn.extend(((number, place), groups[place]) for place in missing)
                return True
        return False

    async def _collect_one(self, key: Key, collect: CollectGroup) -> None:
        try:
            self._complete[key] = await collect()
            del self._unfinished[group_name(key)]
            self._start_groups()
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
