"""A taskset of another package's tasks: the rows and the scores come from a process in which that package runs.

Rows and scorers are other people's code. They run off the event loop, with a limit in seconds; what they raise becomes
a verdict of 0 with the reason, and never ends a run. The module of the process has three functions, called with a place
(a name or a file) and its arguments as JSON: `splits`, `row` and `score`. Rows with tools have a world whose functions
they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from ramet.budget import Budget
from ramet.errors import ConfigError
from ramet.interfaces import Oracle, TaskWorld, World
from ramet.tasks.grader import Grader, Unfinished
from ramet.tasks.oracle import Direct
from ramet.tasks.peers.sessions import Sessions
from ramet.tasks.peers.world import ToolWorld
from ramet.tasks.registry import check_index, check_split
from ramet.types import Node, Task, Verdict, clean

LOADING_S, SCORING_S, CALL_S = 300.0, 60.0, 30.0
WRONG = "I do not know"


class PeerTasks:
    """Tasks of another package. `args` are the arguments of its loader.

    A score divided by `max_score`, within 0 and 1, is the verdict on the root; clones get a copy of it.
    """

    def __init__(
        self,
        source: str,
        place: str,
        *,
        about: str,
        helper: Grader,
        args: Mapping[str, Any],
        max_score: float,
        seconds: float,
        sessions: Sessions | None = None,
        call_s: float = CALL_S,
    ) -> None:
        self.name = f"{source}:{place}"
        self.about = about
        self.grader = helper
        self.place = place
        self.seconds = _above_zero(source, "seconds", seconds)
        self.max_score = _above_zero(source, "max_score", max_score)
        self.sessions = sessions  # None: rows have no tools
        self.call_s = _above_zero(source, "call_s", call_s)
        self._args = _to_json(source, args)
        self._row = lru_cache(maxsize=4096)(self._load_row)
        self._sizes: dict[str, int] | None = None

    @property
    def splits(self) -> Mapping[str, str]:
        """The splits that have rows. Asking for them loads the tasks, once."""
        return {split: f"{size:,} rows" for split, size in self.sizes_by_split().items()}

    def sizes_by_split(self) -> dict[str, int]:
        if self._sizes is None:
            self._sizes = cast(dict[str, int], self._call("splits", seconds=LOADING_S))
        return self._sizes

    def size(self, split: str) -> int | None:
        return self.sizes_by_split()[check_split(self, split)]

    def task(self, split: str, index: int) -> Task:
        check_index(self, split, index)
        row = self._row(split, index)
        return Task(
            id=f"{self.name}:{split}/{index}",
            question=clean(row["question"]),
            context={clean(key): clean(text) for key, text in row["context"].items()},
            reference={"answer": row["answer"], "split": split, "index": index},
        )

    def world(self, task: Task) -> World:
        known = _known(task)
        tools = self._row(known["split"], known["index"]).get("tools")
        if self.sessions is None or not tools:
            return TaskWorld(task)
        place = (self.place, self._args, known["split"], known["index"])
        return ToolWorld(task, self.sessions, place, tools=tools, call_s=self.call_s, opening_s=LOADING_S)

    def budget(self, task: Task) -> Budget:
        size = len(task.question) + sum(map(len, task.context.values()))
        return Budget(tokens=12_000, nodes=16, depth=2, window=16_384 + 2 * size, result_bytes=8192)

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        return self._grade(task, node.answer, world) if node.parent is None else None

    def source(self, split: str) -> str:
        """The data set of a split, to know what is beyond training."""
        return f"{self.name} {self._args}"

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Oracle:
        del delegate, seed
        return Direct(self._answer(task))

    def self_check(self, task: Task) -> tuple[float, float]:
        return self._grade(task, self._answer(task)).score, self._grade(task, WRONG).score

    def _answer(self, task: Task) -> str:
        answer = _known(task)["answer"]
        if answer is None:
            raise ConfigError(f"{self.name} has a scorer but no reference answer for {task.id}, so it has no oracle")
        return answer

    def _grade(self, task: Task, answer: str | None, world: World | None = None) -> Verdict:
        if answer is None:
            return Verdict(score=0.0, how="exact", reason="no answer")
        known = _known(task)
        try:
            if isinstance(world, ToolWorld):
                found = world.score(clean(answer), seconds=self.seconds)
            else:
                found = self._call("score", known["split"], known["index"], clean(answer), seconds=self.seconds)
        except Unfinished as fault:
            return Verdict(score=0.0, how="exact", reason=f"cannot be scored: {fault}")
        if found["score"] is None:
            return Verdict(score=0.0, how="exact", reason=f"cannot be scored: {found['reason']}")
        share = found["score"] / self.max_score
        return Verdict(score=min(1.0, max(0.0, share)), how="exact", reason=found["reason"])

    def _load_row(self, split: str, index: int) -> dict[str, Any]:
        return self._call("row", split, index, seconds=LOADING_S)

    def _call(self, function: str, *arguments: Any, seconds: float) -> Any:
        """Call a function in the process. What cannot be loaded is one line; what cannot be scored is `Unfinished`."""
        try:
            return self.grader.call(function, self.place, self._args, *arguments, seconds=seconds)
        except Unfinished as fault:
            if function == "score":
                raise
            raise ConfigError(f"{self.name} cannot be loaded: {fault}") from None


def _above_zero(source: str, name: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise ConfigError(f"{source}: {name} is a number above 0; got {value!r}")
    return value


def _to_json(source: str, args: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(args), sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{source}: args are numbers, texts, lists and tables: {error}") from None


def _known(task: Task) -> dict[str, Any]:
    return cast(dict[str, Any], task.reference)
