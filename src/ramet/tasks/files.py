"""Reading task files: JSON lines, gzipped or not. A bad one names the file, the line and the field."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from ramet.errors import ConfigError
from ramet.types import clean

Fields = dict[str, Any]
REQUIRED = {"question": str, "answer": str}


def data_file(data: str | Path | None, name: str, *, taskset: str) -> Path:
    """The file `name` (`.jsonl`, `.jsonl.gz` or `.json`) in the data folder."""
    if data is None:
        raise ConfigError(f"{taskset} reads {name} from a data folder: give --data PATH")
    folder = Path(data)
    if not folder.is_dir():
        raise ConfigError(f"the data folder {folder} does not exist")
    for suffix in (".jsonl.gz", ".jsonl", ".json", ""):
        if (folder / f"{name}{suffix}").is_file():
            return folder / f"{name}{suffix}"
    raise ConfigError(f"{folder} has no {name}.jsonl.gz or {name}.jsonl, which {taskset} reads")


def read_lines(file: Path, required: tuple[tuple[str, type], ...] = tuple(REQUIRED.items())) -> tuple[Fields, ...]:
    """Every line as a dict, its required fields checked. Read once, and again when the file has changed."""
    try:
        state = file.stat()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    return _read(file, required, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=16)
def _read(file: Path, required: tuple[tuple[str, type], ...], changed: int, size: int) -> tuple[Fields, ...]:
    rows: list[Fields] = []
    try:
        with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    rows.append(_checked(line, required, f"{file}, line {number}"))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise ConfigError(f"cannot read {file}: {error}") from None
    return tuple(rows)


def _checked(line: str, required: tuple[tuple[str, type], ...], where: str) -> Fields:
    try:
        loaded: object = json.loads(clean(line))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(loaded, dict):
        raise ConfigError(f"{where}: an object with fields is wanted")
    row = cast(Fields, loaded)
    for field, kind in required:
        if not isinstance(row.get(field), kind):
            found = "is missing" if field not in row else f"is {type(row[field]).__name__}"
            raise ConfigError(f"{where}: field {field!r} {found}; {kind.__name__} is wanted")
    context_of(row, where)
    return row


def context_of(row: Mapping[str, Any], where: str) -> dict[str, str]:
    """Texts by title; paragraphs with the same title are joined."""
    texts: dict[str, str] = {}
    entries: object = row.get("context")
    if entries is None:
        return {}
    if isinstance(entries, dict):
        entries = [{"title": title, "text": text} for title, text in cast(dict[str, Any], entries).items()]
    if not isinstance(entries, list):
        raise ConfigError(f"{where}: field 'context' is a list of {{title, text}} or an object of texts")
    for entry in cast(list[Any], entries):
        pair = (entry.get("title"), entry.get("text")) if isinstance(entry, dict) else (None, None)  # pyright: ignore
        title, text = cast(tuple[object, object], pair)
        if not isinstance(title, str) or not isinstance(text, str):
            raise ConfigError(f"{where}: field 'context' holds entries of title and text, both strings")
        before = texts.get(title, "")
        if text not in before:  # the same paragraph twice counts once
            texts[title] = f"{before}\n{text}" if before else text
        texts.setdefault(title, text)
    return texts
