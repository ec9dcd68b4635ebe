"""Mixed difficulty with a target success rate: which levels the tasks of a step come from.

A level is a split of the taskset, or all tasks of a split within a range of sizes. After every step the success of each
level is estimated from the trees played so far, recent steps counting more. The tasks of a step are drawn so that the
expected success of their roots is the target, preferring levels near the target, which teach most: in a group whose
trees all succeed or all fail there is nothing to compare. Every level keeps a least share, so that it is noticed when
the policy becomes able to do it.

Step n uses the metrics of the steps before n - `overlap`, whatever else is known when it is drawn, and a seed. So what
is drawn follows from the settings and the logged metrics, and a resumed run draws the same tasks.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Any

from ramet.errors import TrainError
from ramet.interfaces import Taskset
from ramet.tasks.dice import seed_of
from ramet.train.behaviour import success
from ramet.train.collect import Attempt, task_attempts
from ramet.train.levels import Level
from ramet.train.settings import TrainConfig
from ramet.train.step import Lesson
from ramet.types import Tree

PRIOR = 1.0  # trees, at the target: what a level is taken for before it has been played
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A task of a step: its place there, and which one of which level it is."""

    place: int
    level: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How the tasks of a step are spread over the levels. Lists are by level."""

    estimates: list[float]
    shares: list[float]
    counts: list[int]
    starts: list[int]  # how many tasks of each level the steps before have drawn


class Curriculum:
    """The tasks of every step, and what became of them. `records` are the metrics of earlier steps."""

    def __init__(
        self, levels: Sequence[Level], taskset: Taskset, config: TrainConfig, *, records: Sequence[Record] = ()
    ) -> None:
        self._levels = levels
        self._taskset = taskset
        self._config = config
        self._records = {record["step"]: record for record in records}
        self._draws: list[Draw] = []  # by step
        self._trees: dict[str, tuple[int, int]] = {}  # step and level of the trees under way, by id

    def attempts(self, step: int) -> list[Attempt]:
        """The trees of a step."""
        return [attempt for drawn in self.tasks(step) for attempt in self._attempts(step, drawn)]

    def fresh(self, step: int) -> Iterator[list[Attempt]]:
        """Trees of tasks that may replace those of a step, task by task. None of them is in the step already."""
        return (self._attempts(step, drawn) for drawn in self.fresh_tasks(step))

    def tasks(self, step: int) -> list[Drawn]:
        """The tasks of a step: of every level its next ones."""
        draw = self.draw(step)
        found = [
            (level, index)
            for level, wanted in enumerate(draw.counts)
            for index in islice(self._indices(level, step, draw.starts[level]), wanted)
        ]
        return [Drawn(place=place, level=level, index=index) for place, (level, index) in enumerate(found)]

    def fresh_tasks(self, step: int) -> Iterator[Drawn]:
        """Levels are drawn by the same shares. In a finite level, tasks follow those of the last step."""
        config, draw = self._config, self.draw(step)
        wanted = config.tasks_per_step * config.refill
        start = config.tasks_per_step * config.steps + step * wanted
        played = {(drawn.level, drawn.index) for drawn in self.tasks(step)}
        streams = [self._indices(level, step, start, once=True) for level in range(len(self._levels))]
        dice = random.Random(seed_of(config.seed, "fresh levels", step))
        place = config.tasks_per_step
        for _ in range(wanted):
            level = level_at(dice.random(), draw.shares)
            index = next((index for index in streams[level] if (level, index) not in played), None)
            if index is not None:
                played.add((level, index))
                yield Drawn(place=place, level=level, index=index)
                place += 1

    def draw(self, step: int) -> Draw:
        """How the tasks of a step are spread. Depends on the steps before `step - overlap` alone."""
        while len(self._draws) <= step:
            self._draws.append(self._draw(len(self._draws)))
        return self._draws[step]

    def _draw(self, step: int) -> Draw:
        config, settings = self._config, self._config.curriculum
        estimates = level_estimates(
            [self._outcome(earlier) for earlier in range(step - config.overlap)],
            num_levels=len(self._levels),
            target=settings.target,
            decay=settings.decay,
        )
        shares = level_shares(estimates, target=settings.target, floor=settings.floor, width=settings.width)
        offset = random.Random(seed_of(config.seed, "levels", step)).random()
        before = self._draws[-1] if self._draws else None
        return Draw(
            estimates=estimates,
            shares=shares,
            counts=level_counts(shares, config.tasks_per_step, offset=offset),
            starts=[0] * len(shares)
            if before is None
            else [start + drawn for start, drawn in zip(before.starts, before.counts, strict=True)],
        )

    def _outcome(self, step: int) -> list[tuple[float, int]]:
        """Successes and trees of every level in a step."""
        if step not in self._records:
            raise TrainError(f"the metrics of step {step} are missing: a curriculum needs those of all earlier steps")
        trees, rates = self._records[step]["trees_by_level"], self._records[step]["success_by_level"]
        return [((rates[level.name] or 0.0) * trees[level.name], trees[level.name]) for level in self._levels]

    def _indices(self, level: int, step: int, start: int, *, once: bool = False) -> Iterator[int]:
        return self._levels[level].indices(step=step, start=start, seed=self._config.seed, once=once)

    def _attempts(self, step: int, drawn: Drawn) -> list[Attempt]:
        split = self._levels[drawn.level].split
        attempts = task_attempts(self._taskset, split, self._config, step=step, tasks=[(drawn.place, drawn.index)])
        self._trees |= {attempt.id: (step, drawn.level) for attempt in attempts}
        return attempts

    def lesson(self, trees: Sequence[Tree], *, teach: Callable[[Sequence[Tree]], Lesson]) -> Lesson:
        """What `teach` makes of a step's trees, with the metrics by level, which later steps are drawn by."""
        metrics = self.observe(trees)
        lesson = teach(trees)
        return replace(lesson, metrics=lesson.metrics | metrics)

    def observe(self, trees: Sequence[Tree]) -> dict[str, Any]:
        """The metrics of a step by level. They count for the draws of later steps."""
        places = [self._trees.pop(tree.id) for tree in trees]
        step = self._step_of(places[0][0])
        roots = [
            [tree.root for tree, (_, of) in zip(trees, places, strict=True) if of == level]
            for level in range(len(self._levels))
        ]
        draw = self.draw(step)
        metrics = {
            "success_by_level": self._named([success(level) for level in roots]),
            "trees_by_level": self._named([len(level) for level in roots]),
            "share_by_level": self._named(draw.shares),
            "estimate_by_level": self._named(draw.estimates),
        }
        self._records[step] = metrics
        return metrics

    def _step_of(self, drawn_for: int) -> int:
        """The step that learns from trees. Steps made of complete groups have trees drawn for several steps."""
        return drawn_for if self._config.overlap_by == "steps" else max(self._records, default=-1) + 1

    def _named(self, values: Sequence[Any]) -> dict[str, Any]:
        return {level.name: value for level, value in zip(self._levels, values, strict=True)}


def level_estimates(
    outcomes: Sequence[Sequence[tuple[float, int]]], *, num_levels: int, target: float, decay: float
) -> list[float]:
    """The expected success of every level, from its successes and trees in each step so far.

    A step counts `decay` times as much as the step after it. A level that was never played is taken to be at the
    target.

    Example:
        level_estimates([[(1.0, 4)], [(3.0, 4)]], num_levels=1, target=0.5, decay=0.5)  # [4.0 / 7.0]
    """
    right, trees = [0.0] * num_levels, [0.0] * num_levels
    for outcome in outcomes:
        for level, (won, played) in enumerate(outcome):
            right[level] = decay * right[level] + won
            trees[level] = decay * trees[level] + played
    return [(won + PRIOR * target) / (played + PRIOR) for won, played in zip(right, trees, strict=True)]


def level_shares(estimates: Sequence[float], *, target: float, floor: float, width: float) -> list[float]:
    """The share of each level in the tasks of a step: `floor`, and a part of what is left.

    Levels at or above the target, and those below, are weighted by exp(-distance from the target / width). The two
    sides are mixed so that the mean of the estimates is the target, as far as the floor allows. With levels on one
    side only, their weights decide alone.

    Example:
        level_shares([1.0, 0.0], target=0.25, floor=0.0, width=0.1)  # [0.25, 0.75]
    """
    near = [math.exp(-abs(estimate - target) / width) for estimate in estimates]
    rest = max(0.0, 1.0 - floor * len(near))
    easy = [weight if estimate >= target else 0.0 for weight, estimate in zip(near, estimates, strict=True)]
    hard = [weight - of_easy for weight, of_easy in zip(near, easy, strict=True)]
    if not any(easy) or not any(hard) or not rest:
        return [floor + rest * weight / sum(near) for weight in near]
    high, low = _mean(estimates, easy), _mean(estimates, hard)
    wanted = (target - floor * sum(estimates)) / rest
    part = min(1.0, max(0.0, (wanted - low) / (high - low)))
    return [
        floor + rest * (part * of_easy / sum(easy) + (1 - part) * of_hard / sum(hard))
        for of_easy, of_hard in zip(easy, hard, strict=True)
    ]


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def level_counts(shares: Sequence[float], num_tasks: int, *, offset: float) -> list[int]:
    """How many tasks of each level: shares times `num_tasks`, rounded up or down by a random `offset` in [0, 1).

    Example:
        level_counts([0.25, 0.75], 2, offset=0.4)  # [1, 1]
        level_counts([0.25, 0.75], 2, offset=0.6)  # [0, 2]
    """
    drawn = [level_at((task + offset) / num_tasks, shares) for task in range(num_tasks)]
    return [drawn.count(level) for level in range(len(shares))]


def level_at(point: float, shares: Sequence[float]) -> int:
    """The level at a point in [0, 1), where each level covers its share."""
    return min(bisect_right(list(accumulate(shares)), point), len(shares) - 1)
