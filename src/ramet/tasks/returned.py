"""What methods of a taskset return, checked: one of your own may return anything, and a mistake is one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from typing import TypeVar, cast, get_args, get_type_hints

from ramet.budget import Budget
from ramet.errors import PluginError, did_you_mean
from ramet.interfaces import Move, Oracle, Taskset, World
from ramet.types import Task, Verdict, is_score

T = TypeVar("T")
HOW: tuple[str, ...] = get_args(get_type_hints(Verdict)["how"])


def split_size(taskset: Taskset, split: str) -> int | None:
    """The number of tasks in a split; None if it is unlimited."""
    size = taskset.size(split)
    if size is not None and (not isinstance(cast(object, size), Integral) or size < 0):
        raise _fault(taskset, "size", "a number of tasks, or None if there is no end", size)
    return size


def task_at(taskset: Taskset, split: str, index: int) -> Task:
    """A task by its place in a split."""
    return _checked(taskset.task(split, index), Task, taskset, "task")


def budget_of(taskset: Taskset, task: Task) -> Budget:
    """The limits that the taskset sets for a task."""
    return _checked(taskset.budget(task), Budget, taskset, "budget")


def world_of(taskset: Taskset, task: Task) -> World:
    """A new world for a task."""
    world = taskset.world(task)
    if not hasattr(world, "functions") or not hasattr(world, "context"):
        raise _fault(taskset, "world", "an object with functions and context, such as ramet.TaskWorld(task)", world)
    return world


def oracle_of(taskset: Taskset, task: Task, *, delegate: bool, seed: int) -> Oracle:
    """The oracle of a task."""
    oracle = taskset.oracle(task, delegate=delegate, seed=seed)
    if not callable(getattr(oracle, "move", None)):
        raise _fault(taskset, "oracle", "an object with a method move, such as ramet.Direct(answer)", oracle)
    return oracle


def checked_move(move: object, oracle: Oracle) -> Move:
    """A move of an oracle."""
    return _checked(move, Move, oracle, "move")


def self_check_of(taskset: Taskset, task: Task) -> tuple[float, float]:
    """The scores of a right and of a wrong solution."""
    scores = cast(object, taskset.self_check(task))
    pair = cast(Sequence[float], scores) if isinstance(scores, (tuple, list)) else ()
    if len(pair) != 2 or not all(map(is_score, pair)):
        wanted = "two scores from 0 to 1, of a right and of a wrong solution"
        raise _fault(taskset, "self_check", wanted, cast(object, scores))
    return pair[0], pair[1]


def checked_verdict(verdict: object, giver: object, *, where: str, by: str) -> Verdict | None:
    """A verdict that `giver` returned, with its score as a float.

    `by` is what the giver is called, `where` the node that the verdict is about.
    """
    if verdict is None:
        return None
    if not isinstance(verdict, Verdict):
        raise _fault(giver, "verdict", "ramet.Verdict or None", verdict)
    if not is_score(verdict.score):
        raise PluginError(f"{by} gave {where} the score {verdict.score!r}: a score is a number from 0 to 1")
    verdict = replace(verdict, score=float(verdict.score))  # of numpy, it could not be stored
    if verdict.how not in HOW:
        raise PluginError(
            f"{by} gave {where} a verdict with how={verdict.how!r}: {did_you_mean(str(verdict.how), HOW)}"
        )
    return verdict


def _checked(found: object, kind: type[T], giver: object, method: str) -> T:
    if not isinstance(found, kind):
        raise _fault(giver, method, f"ramet.{kind.__name__}", found)
    return found


def _fault(giver: object, method: str, wanted: str, got: object) -> PluginError:
    shown = str(got) if isinstance(got, int) else type(got).__name__
    return PluginError(f"{type(giver).__name__}.{method} must return {wanted}; got {shown}")
