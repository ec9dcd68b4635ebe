"""Any dataset of the `reasoning-gym` package: a hundred puzzles, each with its own generator and scorer.

The package runs in a separate process: its scorers compute with model output, and some of its generators print, use
global random numbers or iterate over sets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any, cast

from ramet.budget import Budget
from ramet.errors import ConfigError, did_you_mean
from ramet.interfaces import Oracle, TaskWorld, World
from ramet.tasks.dice import Dice, in_eval
from ramet.tasks.erring import Habits
from ramet.tasks.grader import Grader, Unfinished
from ramet.tasks.manner import make_manner
from ramet.tasks.oracle import Direct
from ramet.tasks.registry import check_index
from ramet.types import Node, Task, Verdict

ONE_IN = 4  # one in so many questions is for evaluation; with fewer, slow generators take long to find one
TRIES = 200
MAKING_S, SCORING_S = 120.0, 10.0
WRONG = ("", "I do not know")
HELPER = Grader(__name__, library="reasoning_gym")


class Gym:
    """One dataset by name. `params` are the parameters of the dataset; `size` is the number of tasks per split."""

    name = "gym"
    about = "any dataset of reasoning-gym, with its own scorer"
    grader = HELPER
    splits: Mapping[str, str] = {
        "train": "`size` questions",
        "eval": "`size` questions, none of them in train",
    }

    def __init__(
        self,
        *,
        dataset: str = "chain_sum",
        params: Mapping[str, Any] | None = None,
        seed: int = 0,
        size: int = 1000,
        mistakes: float = 0.0,
    ) -> None:
        if size < 1:
            raise ConfigError(f"gym: size must be a whole number from 1 up; got {size}")
        self.dataset = dataset
        self.params = _to_json(params or {})
        self.seed = seed
        self._size = size
        self.manner = make_manner(self.name, mistakes=mistakes)

    def size(self, split: str) -> int | None:
        return self._size

    def task(self, split: str, index: int) -> Task:
        check_index(self, split, index)
        try:
            question, answer = HELPER.call("make", *self._place(split, index), seconds=MAKING_S)
        except Unfinished as fault:
            raise ConfigError(f"gym: {self.dataset} could not make {split}/{index}: {fault}") from None
        known = {"answer": answer, "split": split, "index": index}
        return Task(id=f"{self.name}:{split}/{index}", question=question, reference=known)

    def world(self, task: Task) -> World:
        return TaskWorld(task)

    def budget(self, task: Task) -> Budget:
        # A root that delegates writes the question again; some answers are long lists of moves.
        size = len(task.question)
        return Budget(
            tokens=12_000 + size,
            nodes=16,
            depth=2,
            window=16_384 + 2 * size,
            result_bytes=8192,
            output_bytes=32_768,
        )

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        del world
        return self._grade(task, node.answer) if node.parent is None else None

    def source(self, split: str) -> str:
        """The data set of a split, to know what is beyond training."""
        return self.dataset

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Oracle:
        del delegate
        direct = Direct(self._answer(task))
        return self.manner.show(direct, solo=direct, habits=Habits(verb="solve it"), seed=(task.id, seed))

    def self_check(self, task: Task) -> tuple[float, float]:
        right = self._grade(task, self._answer(task)).score
        return right, min(self._grade(task, wrong).score for wrong in WRONG)

    def _answer(self, task: Task) -> str:
        answer = _known(task)["answer"]
        if answer is None:
            raise ConfigError(f"gym: {self.dataset} has a scorer but no reference answers, so it has no oracle")
        return answer

    def _grade(self, task: Task, answer: str | None) -> Verdict:
        if answer is None:
            return Verdict(score=0.0, how="exact", reason="no answer")
        known = _known(task)
        try:
            place = self._place(known["split"], known["index"])
            score = HELPER.call("score", *place, answer, seconds=SCORING_S)
        except Unfinished as fault:
            return Verdict(score=0.0, how="exact", reason=f"cannot be scored: {fault}")
        return Verdict(score=min(1.0, max(0.0, score)), how="exact")

    def _place(self, split: str, index: int) -> tuple[str, str, int, int, str, int]:
        return self.dataset, self.params, self.seed, self._size, split, index


def _to_json(params: object) -> str:
    """The parameters as JSON with sorted keys."""
    if not isinstance(params, Mapping):
        raise ConfigError(f"gym: params must be a table, like params.min_terms=2; got {params!r}")
    given = dict(cast(Mapping[str, Any], params))
    for name in ("seed", "size"):
        if name in given:
            raise ConfigError(f"gym: {name} is an option of gym, not one of params")
    try:
        return json.dumps(given, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"gym: params must be numbers, texts, lists and objects: {error}") from None


def _known(task: Task) -> dict[str, Any]:
    return cast(dict[str, Any], task.reference)


# In the grader process.


def make(dataset: str, params: str, seed: int, size: int, split: str, index: int) -> tuple[str, str | None]:
    """A question and its answer; None if the dataset has no reference answers."""
    _, entry = _entry(dataset, params, seed, size, split, index)
    answer = entry["answer"]
    return _question(entry), None if answer is None else str(answer)


def score(dataset: str, params: str, seed: int, size: int, split: str, index: int, answer: str) -> float:
    """The score by the dataset's own scorer."""
    source, entry = _entry(dataset, params, seed, size, split, index)
    return float(source.score_answer(answer=answer, entry=entry))


@lru_cache(maxsize=4096)
def _entry(dataset: str, params: str, seed: int, size: int, split: str, index: int) -> tuple[Any, dict[str, Any]]:
    """The first entry at this index, over many seeds, whose text belongs to the split."""
    for attempt in range(TRIES):
        # Entries of a dataset use consecutive seeds, so neighbouring seeds would repeat entries.
        start = Dice("gym", seed, split, attempt).below(2**31)
        source = _dataset(dataset, params, start, size)
        entry = source[index]
        if in_eval(_question(entry), one_in=ONE_IN) == (split == "eval"):
            return source, entry
    raise ConfigError(f"gym: {dataset} with these params has too few questions for both train and eval")


def _question(entry: Mapping[str, Any]) -> str:
    return str(entry["question"]).strip()


@lru_cache(maxsize=TRIES)
def _dataset(name: str, params: str, seed: int, size: int) -> Any:
    from reasoning_gym.factory import DATASETS, create_dataset  # pyright: ignore

    kinds = cast(Mapping[str, tuple[Any, Any]], DATASETS)
    if name not in kinds:
        raise ConfigError(f"gym: reasoning-gym has no dataset {name!r}: {did_you_mean(name, sorted(kinds))}")
    known = [field.name for field in fields(kinds[name][1]) if field.name not in ("seed", "size")]
    given = json.loads(params)
    for param in given:
        if param not in known:
            raise ConfigError(f"gym: {name} has no parameter {param!r}: {did_you_mean(param, known)}")
    try:
        return cast(Any, create_dataset(name, seed=seed, size=size, **given))
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"gym: {name} does not accept these params: {error}") from None
