"""Count, compare and list over many lines, in the shape of Oolong: long texts in which every line matters.

The lines come in pages, named by their line numbers. A question about some of the lines, worded like the question about
all of them and naming them, `(lines 51-100)`, is checked exactly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ramet.agent.tree import TaskWorld
from ramet.budget import Budget
from ramet.errors import ConfigError
from ramet.interfaces import World
from ramet.tasks.aggregate.grammar import GRAMMAR, draw_lines
from ramet.tasks.aggregate.lines import Line, held, named_lines, pages, topics_of, truth
from ramet.tasks.aggregate.oracle import Counting, among, pages_per_clone
from ramet.tasks.aggregate.query import Query, count, decide, grade, how, read_query, same_answer
from ramet.tasks.dice import Dice
from ramet.tasks.files import context_of, data_file, read_lines
from ramet.tasks.oracle import Oracle, Relay
from ramet.tasks.registry import check_index, observed_sizes, rows_of, span
from ramet.types import Node, Task, Verdict

QUESTIONS = {
    "count": "How many requests belong to the topic '{topic}'",
    "user": "How many of the requests by user {user} belong to the topic '{topic}'",
    "month": "How many requests dated in month {month} of {year} belong to the topic '{topic}'",
    "most": "Which topic is the most common",
    "least": "Which topic is the least common",
    "compare": "Is the topic '{topic}' more common than, less common than, or of the same frequency as '{other}'",
    "top_user": "Which user has the most requests of the topic '{topic}'",
    "more_user": "Which of the users {user} and {second} has more requests of the topic '{topic}'",
    "users": "Which users have requests dated in month {month} of {year} of the topic '{topic}'",
}
FILES = {"clinc": "clinc_aggregate", "crd3": "crd3_counts"}
FIELDS = (("question", str), ("answer", str), ("context", list), ("meta", dict))


class Aggregate:
    """Requests to be sorted by topic and counted. `lines`, `topics` and `users` are (least, most) of a task."""

    name = "aggregate"
    about = "count, compare and list over thousands of lines"
    splits: Mapping[str, str] = {
        "train": "without end",
        "eval": "never in train: not one of its sentences is",
        "long": "out of distribution: many more lines than any trained on",
        "clinc_train": "clinc_aggregate_train of the data folder: real requests",
        "clinc_eval": "clinc_aggregate_eval of the data folder",
        "crd3_train": "crd3_counts_train of the data folder: turns of transcripts",
        "crd3_eval": "crd3_counts_eval of the data folder",
    }

    def __init__(
        self,
        *,
        lines: Sequence[int] | int = (100, 400),
        long_lines: Sequence[int] | int = (2000, 2000),
        topics: Sequence[int] | int = (3, len(GRAMMAR)),
        users: Sequence[int] | int = (3, 8),
        page: int = 50,
        kinds: Sequence[str] | str = tuple(QUESTIONS),
        seed: int = 0,
        data: str | Path | None = None,
    ) -> None:
        self.lines, self.long_lines = span(lines, name="lines"), span(long_lines, name="long_lines")
        self.topics, self.users = span(topics, name="topics", least=2), span(users, name="users")
        if self.topics[1] > len(GRAMMAR) or page < 1:
            raise ConfigError(f"{self.name}: there are {len(GRAMMAR)} topics, and a page has 1 line or more")
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if not kinds or any(kind not in QUESTIONS for kind in kinds):
            raise ConfigError(f"{self.name}: kinds are some of {', '.join(QUESTIONS)}")
        self.page = page
        self.kinds = tuple(kinds)
        self.seed = seed
        self.data = data

    def size(self, split: str) -> int | None:
        return len(read_lines(self._file(split), FIELDS)) if "_" in split else None

    def task(self, split: str, index: int) -> Task:
        check_index(self, split, index)
        if "_" in split:
            return self._from_row(split, index)
        dice = Dice(self.name, self.seed, split, index)
        topics = sorted(dice.sample(sorted(GRAMMAR), dice.between(*self.topics)))
        number = dice.between(*(self.long_lines if split == "long" else self.lines))
        users = dice.between(*self.users)
        for _ in range(100):
            texts, labels = draw_lines(dice, number, topics, users, held_out=split != "train")
            lines = [Line(text, topics[label]) for text, label in zip(texts, labels, strict=True)]
            found = draw_question(dice, self.kinds, lines, topics)
            if found is not None:
                return self._task(f"{self.name}:{split}/{index}", topics, texts, labels, found)
        raise ConfigError(f"{self.name}: these knobs leave no question with one answer for {split}")

    def _task(
        self, name: str, topics: list[str], texts: list[str], labels: list[int], found: tuple[Query, list[str]]
    ) -> Task:
        query, accepted = found
        about = f"The context lists {len(texts)} user requests, one per line, in pages, {among(topics)}"
        asked = query.text[:1].upper() + query.text[1:]
        return Task(
            id=name,
            question=f"{about} {asked}? {how(query)}",
            context=pages(texts, self.page),
            reference={
                "kind": query.answers_with,
                "answer": ", ".join(accepted) or "none",
                "topics": topics,
                "labels": labels,
            },
        )

    def _file(self, split: str) -> Path:
        name, _, rest = split.partition("_")
        return data_file(self.data, f"{FILES[name]}_{rest}", taskset=self.name)

    def _from_row(self, split: str, index: int) -> Task:
        file = self._file(split)
        row, where = read_lines(file, FIELDS)[index], f"{file}, line {index + 1}"
        texts = "\n".join(context_of(row, where).values()).split("\n")
        meta = cast(dict[str, Any], row["meta"])
        names, labels = (cast(list[Any], meta.get(field) or []) for field in ("labels", "item_labels"))
        numeric = meta.get("answer_type") == "number"
        if numeric and not re.fullmatch(r"-?\d{1,9}", row["answer"]):
            raise ConfigError(f"{where}: field 'answer' is a whole number, as 'meta.answer_type' says")
        whole = len(labels) in (0, len(texts)) and all(type(one) is int and 0 <= one < len(names) for one in labels)
        if not whole:
            raise ConfigError(f"{where}: field 'meta.item_labels' holds the number of a label for each of the lines")
        return Task(
            id=f"{self.name}:{split}/{index}",
            question=row["question"],
            context=pages(texts, self.page),
            reference={
                "kind": "number" if numeric else "label",
                "answer": row["answer"],
                "topics": [str(name).replace("_", " ") for name in names] if labels else [],
                "labels": labels,
            },
        )

    def world(self, task: Task) -> World:
        return TaskWorld(task)

    def budget(self, task: Task) -> Budget:
        texts = list(task.context.values())
        together = pages_per_clone(task)
        heaviest = max(sum(map(len, texts[i : i + together])) for i in range(len(texts)))
        return Budget(
            tokens=2000 + 2000 * len(texts),
            nodes=8 + 8 * len(texts),
            depth=3,
            children=max(8, len(texts)),
            window=max(32_768, 16_384 + heaviest),  # no text has more tokens than characters
            output_bytes=max(8192, 256 * len(texts)),
            reserve=64,
        )

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        """The root against the answer; a clone against the lines its goal names, if it asks a question we know."""
        del world
        if node.parent is None:
            return Verdict(score=grade(*truth(task), node.answer), how="exact")
        query, lines = read_query(node.goal), named_lines(task, node.goal)
        if query is None or lines is None or not query.fits(topics_of(task)):
            return None
        accepted = decide(query, count(query.part, lines), topics_of(task))
        return Verdict(score=grade(query.answers_with, accepted, node.answer), how="exact")

    def same(self, task: Task, one: str, other: str) -> bool:
        return same_answer(held(task)["kind"], one, other)

    def size_of(self, task: Task) -> float | None:
        """Lines."""
        return sum(text.count("\n") + 1 for text in task.context.values())

    def sizes(self, split: str) -> tuple[float, float] | None:
        if "_" in split:
            return observed_sizes(self, rows_of(self, split))
        return self.long_lines if split == "long" else self.lines

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Oracle:
        oracle = Counting(task, delegate=delegate, dice_seed=(task.id, seed))
        if oracle.knows():
            return oracle
        return Relay(task.question, held(task)["answer"], delegate=delegate)

    def self_check(self, task: Task) -> tuple[float, float]:
        kind, accepted = truth(task)
        right: str = held(task)["answer"]
        wrong = str(int(right) + 1) if kind == "number" else f"{right}, something else"
        return grade(kind, accepted, right), grade(kind, accepted, wrong)


def draw_question(
    dice: Dice, kinds: Sequence[str], lines: Sequence[Line], topics: Sequence[str]
) -> tuple[Query, list[str]] | None:
    """A question with one right answer, and that answer; None when these lines seem to have none."""
    for _ in range(50):
        topic, other = dice.sample(topics, 2)
        some, more = dice.pick(lines), dice.pick(lines)
        year, _, month = some.month.partition("-")
        asked = QUESTIONS[dice.pick(kinds)].format(
            topic=topic, other=other, user=some.user, second=more.user, month=month, year=year
        )
        query = read_query(f"{asked}?")
        if query is None:
            raise AssertionError(f"not a question: {asked!r}")
        accepted = decide(query, count(query.part, lines), topics)
        clear = len(accepted) == 1 and accepted != ["none"] and len(set(query.names)) == len(query.names)
        if clear or query.answers_with != "label":
            return query, accepted
    return None
