"""Read task files: JSON lines, gzipped or not. Errors name the file, the line and the field."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from ramet.errors import ConfigError
from ramet.types import clean

Fields = dict[str, Any]
Required = tuple[tuple[str, type], ...]  # fields that a row must have, with their types
QUESTION: Required = (("question", str), ("answer", str))
WITH_META: Required = (*QUESTION, ("meta", dict))


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a task file."""

    fields: Fields
    where: str  # file and row, for errors

    @property
    def meta(self) -> Fields:
        """The object `meta`; empty when there is none."""
        value: object = self.fields.get("meta") or {}
        if not isinstance(value, dict):
            raise ConfigError(f"{self.where}: field 'meta' is {type(value).__name__}; dict is wanted")
        return cast(Fields, value)


@dataclass(frozen=True, slots=True)
class TaskFile:
    """The rows of a task file."""

    path: Path
    rows: tuple[Fields, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return Row(self.rows[index], f"{self.path}, row {index + 1}")


def task_file(data: str | Path | None, name: str, *, taskset: str, required: Required = QUESTION) -> TaskFile:
    """The task file `name` in the data folder."""
    path = data_file(data, name, taskset=taskset)
    return TaskFile(path, read_lines(path, required))


def data_file(data: str | Path | None, name: str, *, taskset: str) -> Path:
    """The path of the file `name` (`.jsonl`, `.jsonl.gz` or `.json`) in the data folder."""
    if data is None:
        raise ConfigError(f"{taskset} reads {name} from a data folder: give --data PATH")
    folder = Path(data)
    if not folder.is_dir():
        raise ConfigError(f"the data folder {folder} does not exist")
    for suffix in (".jsonl.gz", ".jsonl", ".json", ""):
        if (folder / f"{name}{suffix}").is_file():
            return folder / f"{name}{suffix}"
    raise ConfigError(f"{folder} has no {name}.jsonl.gz or {name}.jsonl, which {taskset} reads")


def read_lines(file: Path, required: Required = QUESTION) -> tuple[Fields, ...]:
    """Every line as a dict with its required fields. The result is cached until the file changes."""
    try:
        state = file.stat()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    return _read(file, required, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=16)
def _read(file: Path, required: Required, changed: int, size: int) -> tuple[Fields, ...]:
    rows: list[Fields] = []
    try:
        with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    rows.append(_parse(line, required, f"{file}, line {number}"))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise ConfigError(f"cannot read {file}: {error}") from None
    return tuple(rows)


def _parse(line: str, required: Required, where: str) -> Fields:
    try:
        loaded: object = json.loads(clean(line))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(loaded, dict):
        raise ConfigError(f"{where}: an object with fields is wanted")
    row = cast(Fields, loaded)
    for field, kind in required:
        if not isinstance(row.get(field), kind):
            problem = "is missing" if field not in row else f"is {type(row[field]).__name__}"
            raise ConfigError(f"{where}: field {field!r} {problem}; {kind.__name__} is wanted")
    read_context(row, where)
    return row


def read_context(row: Mapping[str, Any], where: str) -> dict[str, str]:
    """The texts of a row by title; paragraphs with the same title are joined."""
    texts: dict[str, list[str]] = {}
    entries: object = row.get("context")
    if entries is None:
        return {}
    if isinstance(entries, dict):
        entries = [{"title": title, "text": text} for title, text in cast(dict[str, Any], entries).items()]
    if not isinstance(entries, list):
        raise ConfigError(f"{where}: field 'context' must be a list of {{title, text}} or an object of texts")
    for entry in cast(list[Any], entries):
        pair = (entry.get("title"), entry.get("text")) if isinstance(entry, dict) else (None, None)  # pyright: ignore
        title, text = cast(tuple[object, object], pair)
        if not isinstance(title, str) or not isinstance(text, str):
            raise ConfigError(f"{where}: entries of field 'context' must have a title and a text, both strings")
        paragraphs = texts.setdefault(title, [])
        if text not in paragraphs:  # a repeated paragraph counts once
            paragraphs.append(text)
    return {title: "\n".join(filter(None, paragraphs)) for title, paragraphs in texts.items()}
