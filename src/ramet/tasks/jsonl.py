"""Your own questions: a file of JSON lines, and a choice of how answers are checked.

A row has "question" and "answer", and optionally "aliases" (other accepted answers), "context" (a list of {title, text}
or an object of texts), "parts" (smaller questions with their answers) and "id". Other fields are passed to a custom
check, and never shown to a model.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

from ramet.budget import Budget
from ramet.errors import ConfigError, did_you_mean
from ramet.interfaces import Ask, Move, Oracle, TaskWorld, View, World
from ramet.tasks.check import exact_match, f1, normalise
from ramet.tasks.custom_check import CustomCheck
from ramet.tasks.dice import Dice
from ramet.tasks.erring import Habits, Wrong
from ramet.tasks.files import Fields, read_context, read_lines
from ramet.tasks.grader import Grader, Unfinished
from ramet.tasks.manner import make_manner
from ramet.tasks.multihop.plans import key_sentence
from ramet.tasks.numbers import last_number, same_number
from ramet.tasks.parts import Asker, Part, find_part, parts_fault, read_parts
from ramet.tasks.registry import check_index, finite_number, observed_sizes, split_tasks
from ramet.tasks.sources import file_source
from ramet.types import Node, Task, Verdict, clean

CHECKS = ("exact", "number", "f1", "regex", "judge")
TOKEN = re.compile(r"\w+|[^\w\s]")
WINDOW = 16_384
MOST_WORDS = WINDOW // 4  # in the texts of one clone: a word takes up to two tokens, counting the space
MOST_CLONES = 8
QUOTE = "Quote from your texts (part {} of {}) what helps to answer:"
PART = re.compile(r"\(part (\d+) of \d+\)")
WRONG = "zqx"
SECONDS = 5.0  # for matching a pattern
HELPER = Grader(__name__, library="re")


class JsonLines:
    """Questions from `file` (`.jsonl` or `.jsonl.gz`).

    `check` decides when an answer is right: "exact" (the same words, ignoring case, articles and punctuation),
    "number" (the same last number), "f1" (words in common), "regex" (`answer` is a pattern that matches anywhere; the
    first alias is a text that matches), "judge" (needs a judge), or a custom check as "module:function" or
    "file.py:function": it takes the answer and the row, and returns a bool or a score from 0 to 1. It runs in a process
    of its own, for at most `check_seconds` per answer.
    `eval_share` of the questions, selected by their text, are for evaluation.
    """

    name = "jsonl"
    about = "questions and answers from a file of your own"
    splits: Mapping[str, str] = {
        "train": "all questions except those of eval",
        "eval": "a share of the questions, none of them in train",
        "all": "every line of the file",
    }

    def __init__(
        self,
        *,
        file: str | Path | None = None,
        check: str = "exact",
        check_seconds: float = 30.0,
        eval_share: float = 0.2,
        mistakes: float = 0.0,
        ask_tokens: bool = False,
    ) -> None:
        self.manner = make_manner(self.name, mistakes=mistakes, ask_tokens=ask_tokens)
        if not 0 <= eval_share <= 1:
            raise ConfigError(f"jsonl: eval_share must be a number from 0 to 1; got {eval_share}")
        self.file = file
        self.check = check
        self.eval_share = eval_share
        self.seconds = SECONDS
        if not check_seconds > 0:
            raise ConfigError(f"jsonl: check_seconds must be a number above 0; got {check_seconds}")
        self._custom = CustomCheck(check, seconds=check_seconds) if ":" in check else None
        if self._custom is None and check not in CHECKS:
            raise ConfigError(f"jsonl has no check {check!r}: {did_you_mean(check, [*CHECKS, 'module:function'])}")
        self._rows: dict[str, list[Fields]] | None = None

    def size(self, split: str) -> int | None:
        return len(self._split(split))

    def task(self, split: str, index: int) -> Task:
        check_index(self, split, index)
        row = self._split(split)[index]
        texts = read_context(row, str(self.file))
        return Task(
            id=clean(str(row.get("id", f"{self.name}:{split}/{index}"))),
            question=clean(row["question"]),
            context={clean(title): clean(text) for title, text in texts.items()},
            reference={field: value for field, value in row.items() if field not in ("question", "context")},
        )

    def world(self, task: Task) -> World:
        return TaskWorld(task)

    def budget(self, task: Task) -> Budget:
        # A root that delegates writes the titles once and the question for every clone again.
        answer = len(_row(task)["answer"].encode(errors="replace"))
        copies = max(1, len(groups_of(task.context)))
        size = copies * len(task.question) + sum(map(len, task.context)) + 2 * answer
        return Budget(
            tokens=12_000 + size,
            nodes=16,
            depth=2,
            window=WINDOW + 2 * size,
            result_bytes=8192 + answer,
            output_bytes=32_768 + 4 * answer,
        )

    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None:
        del world
        part = find_part(read_parts(_row(task)), node.goal) if node.parent is not None else None
        if self.check == "judge" or (node.parent is not None and part is None):
            return None
        try:
            return Verdict(score=self._score(task, node.answer, part), how="exact")
        except Unfinished as fault:
            return Verdict(score=0.0, how="exact", reason=f"cannot be checked: {fault}")

    @property
    def grader(self) -> Grader | None:
        """Patterns and custom checks run in another process: some take longer than the age of the universe."""
        return self._custom.grader if self._custom is not None else HELPER if self.check == "regex" else None

    def same(self, task: Task, one: str, other: str) -> bool:
        """Whether `one` would be right if `other` were the reference, by this check or by their words."""
        del task
        if self.check == "number":
            return bool(same_number(one, other))
        return bool(same_words(one, other) or same_words(other, one))

    def size_of(self, task: Task) -> float | None:
        """The number in the field `size` of the row, if any."""
        return finite_number(_row(task).get("size"))

    def sizes(self, split: str) -> tuple[float, float] | None:
        return observed_sizes(self, split_tasks(self, split))

    def source(self, split: str) -> str:
        """The data set of a split, to know what is beyond training."""
        return file_source(self.file)

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Oracle:
        parts = read_parts(_row(task))
        if parts and delegate:
            return Asker(parts, self._answer(task))
        oracle, solo = (Reader(task, self._answer(task), delegate=choice) for choice in (delegate, False))
        return self.manner.show(oracle, solo=solo, habits=quoting_habits(oracle), seed=(task.id, seed))

    def self_check(self, task: Task) -> tuple[float, float]:
        right, wrong = self._score(task, self._answer(task)), 0.0
        with suppress(Unfinished):  # a check that raises at a wrong answer has not accepted it
            wrong = self._score(task, WRONG)
        return right, wrong

    def _split(self, split: str) -> list[Fields]:
        """The rows of a split, in the order of the file."""
        if self._rows is None:
            rows = _read(self.file, self.check)
            held_out = [in_share(row["question"], self.eval_share) for row in rows]
            self._rows = {
                "all": rows,
                "train": [row for row, held in zip(rows, held_out, strict=True) if not held],
                "eval": [row for row, held in zip(rows, held_out, strict=True) if held],
            }
        return self._rows[split]

    def _answer(self, task: Task) -> str:
        """A right answer: the answer, or a text that matches its pattern."""
        row = _row(task)
        if self.check != "regex":
            return row["answer"]
        for text in [*row.get("aliases", []), row["answer"]]:
            if re.search(row["answer"], text):
                return text
        raise ConfigError(f"jsonl: {task.id} has no alias that matches its pattern: give one as an example")

    def _score(self, task: Task, answer: str | None, part: Part | None = None) -> float:
        """The score of an answer to the question, or to one of its parts."""
        row: Fields = _row(task) if part is None else {"answer": part.answer, "question": part.question}
        accepted = [row["answer"], *row.get("aliases", [])]
        if answer is None:
            return 0.0
        if self._custom is not None:
            whole = {"question": task.question, **row, "context": dict(task.context)}
            return self._custom.score(clean(answer), whole, task_id=task.id)
        if self.check == "number" and (part is None or last_number(part.answer) is not None):
            return max(same_number(answer, text) for text in accepted)
        if self.check == "f1":
            return f1(answer, accepted)
        if self.check == "regex" and part is None:  # the answer of a part is a text, and no pattern
            return float(HELPER.call("matches", row["answer"], clean(answer), seconds=self.seconds))
        return max(same_words(answer, text) for text in accepted)


def same_words(answer: str, wanted: str) -> float:
    """1 if the words are the same. Punctuation counts only for texts without words.

    Example:
        same_words("The red house.", "red house")  # 1.0
        same_words("5", "-5")                      # 0.0
    """
    if not normalise(wanted):
        return float(answer.strip().casefold() == wanted.strip().casefold())
    return exact_match(answer, [wanted])


def in_share(question: str, share: float) -> bool:
    """Whether a question is for evaluation. Its words decide, so copies are in the same split."""
    digest = hashlib.sha256(" ".join(clean(question).split()).encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _row(task: Task) -> Fields:
    return cast(Fields, task.reference)


# Parsing.


def _read(file: str | Path | None, check: str) -> list[Fields]:
    """Read and check every row."""
    if file is None:
        raise ConfigError("jsonl reads your own file: give its path as taskset.file=PATH")
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"jsonl: {path} is not a regular file" if path.exists() else f"jsonl: the file {path} does not exist"
        )
    rows = list(read_lines(path))
    seen: set[str] = set()
    for place, row in enumerate(rows):
        fault = _fault(row, check, seen)
        if fault is not None:
            raise ConfigError(f"{path}, line {_line(path, place)}: {fault}")
    return rows


def _fault(row: Fields, check: str, seen: set[str]) -> str | None:
    """What is wrong with a row, or None."""
    aliases: object = row.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in cast(list[object], aliases)):
        return "field 'aliases' must be a list of texts"
    if "id" in row:
        if isinstance(row["id"], bool) or not isinstance(row["id"], (str, int)):
            return f"field 'id' is {type(row['id']).__name__}; str is wanted"
        if str(row["id"]) in seen:
            return f"field 'id' repeats {row['id']!r}"
        seen.add(str(row["id"]))
    for field in ("question", "answer"):
        if not row[field].strip():
            return f"field {field!r} is empty"
    keys = [*read_context(row, "parts")] if "parts" in row else []
    return _wrong_answer(row["answer"], check) or parts_fault(row, keys)


def _wrong_answer(answer: str, check: str) -> str | None:
    if check == "number" and last_number(answer) is None:
        return f"field 'answer' has no number: {answer[:60]!r}"
    if check == "regex":
        try:
            re.compile(answer)
        except (re.error, OverflowError, RecursionError) as error:
            return f"field 'answer' is not a valid pattern: {error}"
    return None


def _line(file: Path, place: int) -> int:
    """The line number of a row: empty lines are not rows."""
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        return [number for number, line in enumerate(lines, start=1) if line.strip()][place]


def matches(pattern: str, answer: str) -> bool:
    """Whether a pattern matches anywhere; runs in the grader."""
    return re.search(pattern, answer) is not None


# The oracle.


class Reader:
    """Has clones quote from the texts what helps, each from a part of them, and answers. Without texts it answers."""

    def __init__(self, task: Task, answer: str, *, delegate: bool) -> None:
        self.task = task
        self.answer = answer
        self.delegate = delegate
        self.groups = groups_of(task.context)

    def move(self, view: View) -> Move:
        if view.depth > 0:
            return Move(answer=self._quote(view.goal))
        if self.delegate and self.groups and view.turn == 0:
            asks = [Ask(goal=self._goal(number), context=group) for number, group in enumerate(self.groups, start=1)]
            return Move(asks=tuple(asks))
        return Move(answer=self.answer)

    def _goal(self, number: int) -> str:
        return f"{QUOTE.format(number, len(self.groups))} {self.task.question}"

    def _quote(self, goal: str) -> str:
        """The sentence of the clone's texts that helps most."""
        number = int(PART.findall(goal)[0])
        texts = [self.task.context[key] for key in self.groups[number - 1]]
        return key_sentence(" ".join(texts), self.task.question, self.answer)


def groups_of(context: Mapping[str, str]) -> list[tuple[str, ...]]:
    """The keys in groups, one per clone: half of the words each, but no more than fill half a window.

    A text that is too long for a clone is left out, and so are those for which there are no more clones.

    Example:
        groups_of({"a": "one", "b": "two", "c": "three"})  # [("a",), ("b",), ("c",)]
    """
    sizes = {key: len(TOKEN.findall(text)) for key, text in context.items()}
    sizes = {key: size for key, size in sizes.items() if size <= MOST_WORDS}
    limit = min(MOST_WORDS, max(sum(sizes.values()) // 2, max(sizes.values(), default=0)))
    groups: list[tuple[str, ...]] = []
    room = 0
    for key, size in sizes.items():
        if groups and size <= room:
            groups[-1] += (key,)
        else:
            groups.append((key,))
            room = limit
        room -= size
    return groups[:MOST_CLONES]


# Its mistakes.


def quoting_habits(reader: Reader) -> Habits:
    """A clone that gets none of its texts reports that; its parent then passes them on."""

    def no_texts(ask: Ask, dice: Dice) -> Wrong:
        del dice
        return Wrong(ask=replace(ask, context=()), line=f"I passed on no texts: it needs {', '.join(ask.context)}")

    def missing_texts(view: View) -> str | None:
        return "I was given no texts" if view.depth > 0 and view.keys == () else None

    return Habits(
        verb="find out",
        works_alone=not reader.groups,
        spoil=no_texts,
        impossible=missing_texts,
        label=lambda ask: f"what {', '.join(ask.context)} says",
    )
