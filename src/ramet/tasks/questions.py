"""Many questions from a file: a line each, or a JSON object each with "question" and, if wanted, "id" and "context"."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from ramet.config import to_toml
from ramet.errors import ConfigError, StoreError
from ramet.inputs.open import as_stored
from ramet.inputs.settings import RunConfig
from ramet.inputs.texts import read_text
from ramet.store import RunDir, slug
from ramet.store.atomic import write_text
from ramet.store.run_dir import json_lines
from ramet.tasks.files import read_context
from ramet.tasks.provenance import plugin_facts
from ramet.tasks.question import RunPlan, named_task, plan_question, unknown_taskset
from ramet.types import Tree, clean

ANSWERS = "answers.jsonl"
MAX_FILE = 256 * 2**20  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question of a file."""

    id: str
    question: str
    context: Mapping[str, str]

    @property
    def digest(self) -> str:
        """What tells this question from another one with the same id."""
        return hashlib.sha256(json.dumps([self.question, dict(self.context)]).encode()).hexdigest()[:16]


def read_questions(file: str, *, stdin: BinaryIO | None = None) -> list[Asked]:
    """The questions of a file. Without an `id`, it is the number of the line, or `line 7` if a row has the id 7."""
    lines = [(number, line) for number, line in enumerate(_lines(file, stdin), start=1) if line.strip()]
    if not lines:
        raise ConfigError(f"{file} has no questions")
    asked = [(number, _parse(line, f"{file}, line {number}")) for number, line in lines]
    seen: set[str] = set()
    for number, one in asked:
        if one.id and one.id in seen:
            raise ConfigError(f"{file}, line {number}: the id {one.id!r} is used twice")
        seen.add(one.id)
    return [one if one.id else replace(one, id=_free_id(number, seen)) for number, one in asked]


def _free_id(number: int, taken: Collection[str]) -> str:
    return f"line {number}" if str(number) in taken else str(number)


def _lines(file: str, stdin: BinaryIO | None) -> Sequence[str]:
    return read_text(file, limit=MAX_FILE, stdin=stdin).split("\n")


def _parse(line: str, where: str) -> Asked:
    """A line that starts with a brace is a JSON object. The id is empty if it has none."""
    return (_parse_row if line.lstrip().startswith("{") else _parse_line)(line, where)


def _parse_line(line: str, where: str) -> Asked:
    question = clean(line.strip())
    if problem := unknown_taskset(question):
        raise ConfigError(f"{where}: {problem}")
    if named_task(question, {}) is not None:
        raise ConfigError(f"{where}: {question} is a task of a taskset: ramet eval runs those")
    return Asked(id="", question=question, context={})


def _parse_row(line: str, where: str) -> Asked:
    try:
        loaded: object = json.loads(clean(line))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not valid JSON: {error}") from None
    row = cast(dict[str, Any], loaded) if isinstance(loaded, dict) else {}
    question, name = row.get("question"), row.get("id", "")
    if not isinstance(question, str) or not question.strip():
        raise ConfigError(f"{where}: an object with a field 'question' is wanted")
    if isinstance(name, bool) or not isinstance(name, (str, int)):
        raise ConfigError(f"{where}: field 'id' is {type(name).__name__}; str is wanted")
    return Asked(id=str(name), question=question.strip(), context=read_context(row, where))


def plan_asked(config: RunConfig, asked: Asked, *, texts: Mapping[str, str]) -> RunPlan:
    """The tree of one question: the texts of the command and those of its row, and functions of its own state."""
    return plan_question(replace(config, question=asked.question), {**texts, **asked.context}, id=asked.id)


class AnswerFile:
    """The run directory of the questions of one file under the same settings, and their answers so far."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.path = run.path / ANSWERS

    @classmethod
    def open(cls, file: str, config: RunConfig, *, runs: Path) -> AnswerFile:
        """The directory of an earlier command with the same settings, or a new one."""
        kept = as_stored(config)
        facts = plugin_facts(config)
        key = hashlib.sha256((to_toml(kept) + "".join(map(str, facts.values()))).encode()).hexdigest()[:8]
        name = "stdin" if file == "-" else Path(file).stem
        path = runs / f"questions-{slug(name)}-{key}"
        if path.exists():
            return cls(RunDir.open(path))
        return cls(RunDir.create_at(path, config=kept, kind="run", facts={"questions": name, **facts}))

    def answers(self) -> Iterator[dict[str, Any]]:
        """Every complete line."""
        if not self.path.exists():
            return
        for line in json_lines(self.path):
            try:
                row: object = json.loads(line)
            except (ValueError, RecursionError):  # a killed process may have left part of one
                continue
            if isinstance(row, dict):
                yield cast(dict[str, Any], row)

    def missing(self, asked: Sequence[Asked]) -> list[Asked]:
        """The questions that have no answer here yet: new ones, then those that failed, whose lines are dropped."""
        rows = list(self.answers())
        known = {(row.get("id"), row.get("digest")): "error" in row for row in rows}
        again = {(one.id, one.digest) for one in asked if known.get((one.id, one.digest))}
        if again:
            self._rewrite([row for row in rows if (row.get("id"), row.get("digest")) not in again])
        new = [one for one in asked if (one.id, one.digest) not in known]
        return new + [one for one in asked if known.get((one.id, one.digest))]

    def _rewrite(self, rows: Sequence[Mapping[str, Any]]) -> None:
        try:
            write_text(self.path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        except OSError as failure:
            raise StoreError(f"cannot write {self.path}: {failure.strerror}") from None

    def add(self, asked: Asked, tree: Tree | None, *, error: str | None = None) -> dict[str, Any]:
        """Store the tree, then its answer; the line that was added."""
        facts: dict[str, Any] = {"id": asked.id, "question": asked.question, "answer": None, "digest": asked.digest}
        if tree is not None:
            self.run.write([tree])
            usage = {"tokens": tree.usage.tokens, "nodes": len(tree.nodes), "seconds": round(tree.seconds, 3)}
            facts |= {"answer": tree.answer, "stop": str(tree.root.stop), **usage, "tree": tree.id}
        facts |= {} if error is None else {"error": error}
        try:
            with self.path.open("ab+") as sink:
                sink.seek(max(0, sink.seek(0, 2) - 1))
                start = b"\n" if sink.read(1) not in (b"", b"\n") else b""  # after part of a line
                sink.write(start + json.dumps(facts, ensure_ascii=False).encode(errors="replace") + b"\n")
        except OSError as failure:
            raise StoreError(f"cannot write {self.path}: {failure.strerror}") from None
        return facts
