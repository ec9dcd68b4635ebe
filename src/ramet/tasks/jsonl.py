"""The user's own questions: a file of JSON lines, and a choice of how answers are checked.

A row is {"question", "answer"} and, if wanted, "aliases" (other accepted answers), "context" (a list of {title, text}
or an object of texts) and "id". Anything else in it is kept for a check of one's own, and never shown to a model.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from difflib import get_close_matches
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, cast

from ramet.agent.tree import TaskWorld
from ramet.budget import Budget
from ramet.errors import ConfigError
from ramet.interfaces import World
from ramet.tasks.check import NUMBER, exact_match, f1, last_number, normalise, same_number
from ramet.tasks.files import Fields, context_of, read_lines
from ramet.tasks.oracle import Move, Relay, View
from ramet.tasks.registry import check_index, observed_sizes, rows_of
from ramet.types import Node, Task, Verdict, clean

CHECKS = ("exact", "number", "f1", "regex", "judge")
TOKEN = re.compile(r"\w+|[^\w\s]")
WINDOW = 16_384
WRONG = "zqx"
Check = Callable[[str, Fields], object]


class JsonLines:
    """Questions from `file` (`.jsonl` or `.jsonl.gz`).

    `check` says when an answer is right: "exact" (the same words, without regard to case, articles and punctuation),
    "number" (the same last number), "f1" (words in common), "regex" (`answer` is a pattern found anywhere in it; give
    a text that matches as the first alias), "judge" (a judge must be given), or a function of one's own as
    "module:function" or "file.py:function": it takes the answer and the row, and returns a bool or a score from 0 to 1.
    `eval_share` of the questions, chosen by what they say, are kept for evaluation.
    """

    name = "jsonl"
    about = "questions and answers from a file of your own"
    splits: Mapping[str, str] = {
        "train": "all questions but those of eval",
        "eval": "a share of the questions; the same question is never in train too",
        "all": "every line of the file",
    }

    def __init__(self, *, file: str | Path | None = None, check: str = "exact", eval_share: float = 0.2) -> None:
        if not 0 <= eval_share <= 1:
            raise ConfigError(f"jsonl: eval_share is a number from 0 to 1; got {eval_share}")
        self.file = file
        self.check = check
        self.eval_share = eval_share
        self._own = _function(check) if ":" in check else None
        if self._own is None and check not in CHECKS:
            hint = "".join(f"did you mean {near}? " for near in get_close_matches(check, CHECKS, n=1))
            raise ConfigError(f"jsonl has no check {check!r}: {hint}accepted are {', '.join(CHECKS)}, module:function")
        self._rows: dict[str, list[Fields]] | None = None

    def size(self, split: str) -> int | None:
        return len(self._split(split))

    def task(self, split: str, index: int) -> Task:
        check_index(self, split, index)
        row = self._split(split)[index]
        texts = context_of(row, str(self.file))
        return Task(
            id=clean(str(row.get("id", f"{self.name}:{split}/{index}"))),
            question=clean(row["question"]),
            context={clean(title): clean(text) for title, text in texts.items()},
            reference={field: value for field, value in row.items() if field not in ("question", "context")},
        )

    def world(self, task: Task) -> World:
        return TaskWorld(task)

    def budget(self, task: Task) -> Budget:
        # A root that delegates writes the question and the titles once more, and passes the answer on.
        answer = len(_row(task)["answer"].encode(errors="replace"))
        size = len(task.question) + sum(map(len, task.context)) + 2 * answer
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
        if node.parent is not None or self.check == "judge":
            return None
        return Verdict(score=self._score(task, node.answer), how="exact")

    def same(self, task: Task, one: str, other: str) -> bool:
        """Whether one would be right if the other were the reference, as far as the check can tell."""
        del task
        if self.check == "number":
            return bool(same_number(one, other))
        return bool(same_words(one, other) or same_words(other, one))

    def size_of(self, task: Task) -> float | None:
        """What the row says in a field `size`, if it has one."""
        size = _row(task).get("size")
        return None if isinstance(size, bool) or not isinstance(size, (int, float)) else size

    def sizes(self, split: str) -> tuple[float, float] | None:
        return observed_sizes(self, rows_of(self, split))

    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Reader:
        del seed
        return Reader(task, self._answer(task), delegate=delegate)

    def self_check(self, task: Task) -> tuple[float, float]:
        return self._score(task, self._answer(task)), self._score(task, WRONG)

    def _split(self, split: str) -> list[Fields]:
        """The rows of a split, in the order of the file."""
        if self._rows is None:
            rows = _read(self.file, self.check)
            held = [in_share(row["question"], self.eval_share) for row in rows]
            self._rows = {
                "all": rows,
                "train": [row for row, kept in zip(rows, held, strict=True) if not kept],
                "eval": [row for row, kept in zip(rows, held, strict=True) if kept],
            }
        return self._rows[split]

    def _answer(self, task: Task) -> str:
        """A text that is right: the answer, or what matches it."""
        row = _row(task)
        if self.check != "regex":
            return row["answer"]
        for text in [*row.get("aliases", []), row["answer"]]:
            if re.search(row["answer"], text):
                return text
        raise ConfigError(f"jsonl: {task.id} has no example: give a text that matches its pattern as an alias")

    def _score(self, task: Task, answer: str | None) -> float:
        row = _row(task)
        accepted = [row["answer"], *row.get("aliases", [])]
        if answer is None:
            return 0.0
        if self._own is not None:
            whole = {**row, "question": task.question, "context": dict(task.context)}
            return _checked_score(self._own(answer, whole), f"jsonl: {self.check} on {task.id}")
        if self.check == "number":
            return max(same_number(answer, one) for one in accepted)
        if self.check == "f1":
            return f1(answer, accepted)
        if self.check == "regex":
            return float(re.search(row["answer"], answer) is not None)
        return max(same_words(answer, one) for one in accepted)


def same_words(answer: str, wanted: str) -> float:
    """1 when the words are the same. Where punctuation is all there is to tell texts apart, it counts.

    Example:
        same_words("The red house.", "red house")  # 1.0
        same_words("5", "-5")                      # 0.0
    """
    if NUMBER.fullmatch(wanted.strip()):
        said = answer.strip().removesuffix(".")
        plain = NUMBER.fullmatch(said) is not None
        return float(plain and Decimal(said.replace(",", "")) == Decimal(wanted.strip().replace(",", "")))
    if not normalise(wanted):
        return float(answer.strip().casefold() == wanted.strip().casefold())
    return exact_match(answer, [wanted])


def in_share(question: str, share: float) -> bool:
    """Whether a question is kept for evaluation: decided by its words, so that its copies are too."""
    digest = hashlib.sha256(" ".join(clean(question).split()).encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _row(task: Task) -> Fields:
    return cast(Fields, task.reference)


# Reading.


def _read(file: str | Path | None, check: str) -> list[Fields]:
    """Every row, each checked as far as its check needs."""
    if file is None:
        raise ConfigError("jsonl reads a file of yours: give its path as the option file")
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(f"jsonl: the file {path} does not exist")
    rows = list(read_lines(path))
    seen: set[str] = set()
    for place, row in enumerate(rows):
        fault = _fault(row, check, seen)
        if fault is not None:
            raise ConfigError(f"{path}, line {_line(path, place)}: {fault}")
    return rows


def _fault(row: Fields, check: str, seen: set[str]) -> str | None:
    """What is wrong with a row, if anything is."""
    aliases: object = row.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(one, str) for one in cast(list[object], aliases)):
        return "field 'aliases' is a list of texts"
    if "id" in row:
        if isinstance(row["id"], bool) or not isinstance(row["id"], (str, int)):
            return f"field 'id' is {type(row['id']).__name__}; str is wanted"
        if str(row["id"]) in seen:
            return f"field 'id' repeats {row['id']!r}"
        seen.add(str(row["id"]))
    for field in ("question", "answer"):
        if not row[field].strip():
            return f"field {field!r} is empty"
    return _wrong_answer(row["answer"], check)


def _wrong_answer(answer: str, check: str) -> str | None:
    if check == "number" and last_number(answer) is None:
        return f"field 'answer' holds no number: {answer[:60]!r}"
    if check == "regex":
        try:
            re.compile(answer)
        except (re.error, OverflowError, RecursionError) as error:
            return f"field 'answer' is not a pattern: {error}"
    return None


def _line(file: Path, place: int) -> int:
    """The line of a row: empty lines are no rows."""
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        return [number for number, line in enumerate(lines, start=1) if line.strip()][place]


# A check of one's own.


def _function(spec: str) -> Check:
    """The function that "module:function" or "file.py:function" names."""
    place, _, name = spec.rpartition(":")
    try:
        module = _load(Path(place)) if place.endswith(".py") else import_module(place)
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"jsonl: cannot import the check {spec}: {error}") from None
    found = getattr(module, name, None)
    if not callable(found):
        raise ConfigError(f"jsonl: {place} has no function {name!r}")
    return found


def _load(file: Path) -> Any:
    spec = spec_from_file_location(f"ramet_check_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = sys.modules[spec.name] = module_from_spec(spec)  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def _checked_score(value: object, where: str) -> float:
    if not isinstance(value, (bool, int, float)) or not 0 <= value <= 1:
        raise ConfigError(f"{where} returned {value!r}; a bool or a number from 0 to 1 is wanted")
    return float(value)


# The oracle.


class Reader(Relay):
    """Passes the question on together with the texts, as many as a window holds."""

    def __init__(self, task: Task, answer: str, *, delegate: bool) -> None:
        super().__init__(task.question, answer, delegate=delegate)
        self.keys = fitting(task.context)

    def move(self, view: View) -> Move:
        if self.delegate and view.depth == 0 and view.turn > 0:
            return Move(answer=self.answer)  # what the clone said, also where that has several lines
        move = super().move(view)
        return replace(move, asks=tuple(replace(ask, context=self.keys) for ask in move.asks))


def fitting(context: Mapping[str, str]) -> tuple[str, ...]:
    """The first keys whose texts fill at most half a window."""
    keys: list[str] = []
    room = WINDOW // 4  # a text has up to two tokens per word, counting the space
    for key, text in context.items():
        room -= len(TOKEN.findall(text))
        if room < 0:
            break
        keys.append(key)
    return tuple(keys)
