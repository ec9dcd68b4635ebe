"""Count, compare and list over many lines, in the shape of Oolong: long texts in which every line matters.

The lines come in pages, named by their line numbers. A clone's question is checked exactly if it is worded like the
root's and names its lines, `(lines 51-100)`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ramet.budget import Budget
from ramet.errors import ConfigError, did_you_mean
from ramet.interfaces import Oracle, TaskWorld, World
from ramet.tasks.aggregate.grammar import GRAMMAR, draw_lines
from ramet.tasks.aggregate.lines import (
    Line,
    named_lines,
    named_numbers,
    numbered_in_pages,
    pages,
    reference_of,
    topics_of,
    truth,
)
from ramet.tasks.aggregate.oracle import (
    CLONE_LINES,
    Counting,
    among,
    brief_question,
    counting_habits,
    pages_per_clone,
    split_lines,
)
from ramet.tasks.aggregate.query import Query, count, decide, grade, how, read_query, same_answer
from ramet.tasks.aggregate.working import WORKINGS
from ramet.tasks.dice import Dice
from ramet.tasks.erring import Habits
from ramet.tasks.files import WITH_META, TaskFile, read_context, task_file
from ramet.tasks.manner import make_manner
from ramet.tasks.oracle import Direct
from ramet.tasks.registry import check_index, observed_sizes, parse_range, split_tasks
from ramet.tasks.sources import named_source
from ramet.tasks.split import Split
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
WORDINGS = ("full", "brief")
BRIEF_KINDS = ("count", "most", "least", "compare")  # brief lines have neither date nor user
FILES = {"clinc": "clinc_aggregate", "crd3": "crd3_counts"}
FIELDS = (*WITH_META, ("context", list))


class Aggregate:
    """Requests to classify by topic and count. `lines`, `topics`, `users` and `page` are ranges (least, most) per task.

    `wording="brief"`: lines are a number and a request, and questions have few words. Of demonstrations: with
    `working="lines"` every line and every sum is written down; `clone_lines` is the most lines for one clone.
    """

    name = "aggregate"
    about = "count, compare and list over thousands of lines"
    size_unit = "lines"
    splits: Mapping[str, str] = {
        "train": "unlimited",
        "eval": "none of its sentences is in train",
        "long": "out of distribution: many more lines than in training",
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
        page: Sequence[int] | int = 50,
        kinds: Sequence[str] | str = tuple(QUESTIONS),
        seed: int = 0,
        data: str | Path | None = None,
        style: str = "cuts",
        mistakes: float = 0.0,
        ask_tokens: bool = False,
        wording: str = "full",
        working: str = "pages",
        clone_lines: int = CLONE_LINES,
    ) -> None:
        self.lines, self.long_lines = parse_range(lines, name="lines"), parse_range(long_lines, name="long_lines")
        self.topics, self.users = parse_range(topics, name="topics", least=2), parse_range(users, name="users")
        self.page = parse_range(page, name="page")
        if self.topics[1] > len(GRAMMAR):
            raise ConfigError(f"{self.name}: topics must be at most {len(GRAMMAR)}")
        if isinstance(clone_lines, bool) or not isinstance(clone_lines, int) or clone_lines < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"{self.name}: clone_lines is a whole number, 1 or more; got {clone_lines!r}")
        self.brief = self._choice(wording, WORDINGS, "wording") == "brief"
        self.line_by_line = self._choice(working, WORKINGS, "working") == "lines"
        self.clone_lines = clone_lines
        self.kinds = self._check_kinds(kinds)
        self.seed = seed
        self.data = data
        self.manner = make_manner(self.name, style=style, mistakes=mistakes, ask_tokens=ask_tokens)

    def _choice(self, given: str, accepted: Sequence[str], setting: str) -> str:
        if given not in accepted:
            raise ConfigError(f"{self.name} has no {setting} {given!r}: {did_you_mean(given, accepted)}")
        return given

    def _check_kinds(self, kinds: Sequence[str] | str) -> tuple[str, ...]:
        kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
        accepted = BRIEF_KINDS if self.brief else tuple(QUESTIONS)
        if self.brief and kinds == tuple(QUESTIONS):  # the default
            return BRIEF_KINDS
        if not kinds or any(kind not in accepted for kind in kinds):
            where = " with brief wording" if self.brief else ""
            raise ConfigError(f"{self.name}: kinds{where} must be some of {', '.join(accepted)}")
        return kinds

    def size(self, split: str) -> int | None:
        return len(self._file(split)) if "_" in split else None

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
            drawn = draw_question(dice, self.kinds, lines, topics)
            if drawn is not None:
                return self._task(split, index, topics, texts, labels, drawn)
        raise ConfigError(f"{self.name}: these options leave no question with one answer for {split}")

    def _page(self, split: str, index: int) -> int:
        """The lines per page of a task."""
        return Dice(self.name, self.seed, "page", split, index).between(*self.page)

    def _task(
        self,
        split: str,
        index: int,
        topics: list[str],
        texts: list[str],
        labels: list[int],
        drawn: tuple[Query, list[str]],
    ) -> Task:
        name, page = f"{self.name}:{split}/{index}", self._page(split, index)
        query, accepted = drawn
        reference: dict[str, Any] = {
            "kind": query.answers_with,
            "answer": ", ".join(accepted) or "none",
            "topics": topics,
            "labels": labels,
        }
        if self.brief:
            requests = [text.partition("Instance: ")[2] for text in texts]
            asked = f"{brief_question(query, topics)} {how(query)}"
            return Task(
                id=name,
                question=f"The context lists {len(texts)} requests in pages, one per line. {asked}",
                context=pages(numbered_in_pages(requests, page), page),
                reference=reference | {"brief": True},
            )
        about = f"The context lists {len(texts)} user requests, one per line, in pages, {among(topics)}"
        asked = query.text[:1].upper() + query.text[1:]
        return Task(
            id=name,
            question=f"{about} {asked}? {how(query)}",
            context=pages(texts, page),
            reference=reference,
        )

    def _file(self, split: str) -> TaskFile:
        name, _, rest = split.partition("_")
        return task_file(self.data, f"{FILES[name]}_{rest}", taskset=self.name, required=FIELDS)

    def _from_row(self, split: str, index: int) -> Task:
        row = self._file(split)[index]
        texts = "\n".join(read_context(row.fields, row.where).values()).split("\n")
        names, labels = (cast(list[Any], row.meta.get(field) or []) for field in ("labels", "item_labels"))
        if not all(isinstance(value, list) for value in (names, labels)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"{row.where}: fields 'meta.labels' and 'meta.item_labels' must be lists")
        numeric = row.meta.get("answer_type") == "number"
        if numeric and not re.fullmatch(r"-?\d{1,9}", row.fields["answer"]):
            raise ConfigError(f"{row.where}: field 'answer' must be a whole number, by 'meta.answer_type'")
        valid = all(type(label) is int and 0 <= label < len(names) for label in labels)
        if not valid or len(labels) not in (0, len(texts)):
            raise ConfigError(f"{row.where}: field 'meta.item_labels' must have the index of a label for every line")
        return Task(
            id=f"{self.name}:{split}/{index}",
            question=row.fields["question"],
            context=pages(texts, self._page(split, index)),
            reference={
                "kind": "number" if numeric else "label",
                "answer": row.fields["answer"],
                "topics": [str(name).replace("_", " ") for name in names] if labels else [],
                "labels": labels,
            },
        )

    def world(self, task: Task) -> World:
        return TaskWorld(task)

    def budget(self, task: Task) -> Budget:
        texts = list(task.context.values())
        together = pages_per_clone(task, self.clone_lines)
        heaviest = max(sum(map(len, texts[i : i + together])) for i in range(len(texts)))
        return Budget(
            tokens=2000 + 2000 * len(texts),
            nodes=8 + 8 * len(texts),
            depth=3,
            children=max(8, len(texts)),
            window=max(32_768, 16_384 + heaviest),  # a text has at most one token per character
            output_bytes=max(8192, 256 * len(texts)),
            reserve=64,
        )

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        """The root against the answer; a clone against the lines its goal names, if its question can be parsed."""
        del world
        if node.parent is None:
            return Verdict(score=grade(*truth(task), node.answer), how="exact")
        query, lines = read_query(node.goal), named_lines(task, node.goal)
        if query is None or lines is None or not query.fits(topics_of(task)):
            return None
        accepted = decide(query, count(query.part, lines), topics_of(task))
        return Verdict(score=grade(query.answers_with, accepted, node.answer), how="exact")

    def same(self, task: Task, one: str, other: str) -> bool:
        return same_answer(reference_of(task)["kind"], one, other)

    def same_goal(self, task: Task, goal: str, other: str) -> bool:
        """Whether both goals ask the same, and the first about all lines of the second."""
        query = read_query(goal)
        if query is None or query != read_query(other):
            return False
        return named_numbers(task, goal) >= named_numbers(task, other)

    def size_of(self, task: Task) -> float | None:
        """The number of lines."""
        return sum(text.count("\n") + 1 for text in task.context.values())

    def sizes(self, split: str) -> tuple[float, float] | None:
        if "_" in split:
            return observed_sizes(self, split_tasks(self, split))
        return self.long_lines if split == "long" else self.lines

    def source(self, split: str) -> str:
        """The data set of a split, to know what is beyond training."""
        return named_source(split)

    def split(self, task: Task, parts: int) -> Split:
        """For the controls of an evaluation: the same counts for neighbouring pages."""
        return split_lines(task, parts)

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Oracle:
        place, uniform = (task.id, seed), self.manner.is_uniform(task.id, seed)
        oracle, solo = (
            Counting(
                task,
                delegate=choice,
                dice_seed=place,
                uniform=uniform,
                line_by_line=self.line_by_line,
                clone_lines=self.clone_lines,
            )
            for choice in (delegate, False)
        )
        if not oracle.can_answer():
            direct = Direct(reference_of(task)["answer"])
            return self.manner.show(direct, solo=direct, habits=Habits(verb="find out"), seed=place)
        return self.manner.show(oracle, solo=solo, habits=counting_habits(task), seed=place)

    def self_check(self, task: Task) -> tuple[float, float]:
        kind, accepted = truth(task)
        right: str = reference_of(task)["answer"]
        wrong = str(int(right) + 1) if kind == "number" else f"{right}, something else"
        return grade(kind, accepted, right), grade(kind, accepted, wrong)


def draw_question(
    dice: Dice, kinds: Sequence[str], lines: Sequence[Line], topics: Sequence[str]
) -> tuple[Query, list[str]] | None:
    """A question with one right answer, and that answer; None if no draw gives one."""
    for _ in range(50):
        topic, other = dice.sample(topics, 2)
        first, second = dice.pick(lines), dice.pick(lines)
        year, _, month = first.month.partition("-")
        asked = QUESTIONS[dice.pick(kinds)].format(
            topic=topic, other=other, user=first.user, second=second.user, month=month, year=year
        )
        query = read_query(f"{asked}?")
        if query is None:
            raise AssertionError(f"not a question: {asked!r}")
        accepted = decide(query, count(query.part, lines), topics)
        clear = len(accepted) == 1 and accepted != ["none"] and len(set(query.names)) == len(query.names)
        if clear or query.answers_with != "label":
            return query, accepted
    return None
