"""Texts from files and from standard input. Nothing that is not text, or too large, gets any further."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import BinaryIO

from ramet.errors import ConfigError

STDIN = "-"  # as a source: standard input
STDIN_KEY = "stdin"


def read_texts(sources: Sequence[str], *, limit: int, stdin: BinaryIO | None = None) -> dict[str, str]:
    """The text of every source, by the name of its file. Together they have at most `limit` bytes.

    A source is a file, a pattern like `notes/*.md`, or `-`.
    """
    if sources.count(STDIN) > 1:
        raise ConfigError("standard input can be read once: give - once")
    sources = [file for source in sources for file in _files(source)]
    texts: dict[str, str] = {}
    left = limit
    for source, key in zip(sources, unique_names(sources), strict=True):
        data = _read(source, left + 1, stdin)
        if len(data) > left:
            raise ConfigError(
                f"{_shown(source)} is too large: all texts together may have {limit:,} bytes (context_bytes)"
            )
        left -= len(data)
        texts[key] = decode(data, _shown(source))
    return texts


def read_text(source: str, *, limit: int, stdin: BinaryIO | None = None) -> str:
    """The text of one file of at most `limit` bytes."""
    data = _read(source, limit + 1, stdin)
    if len(data) > limit:
        raise ConfigError(f"{_shown(source)} is too large: it may have {limit:,} bytes")
    return decode(data, _shown(source))


def decode(data: bytes, name: str) -> str:
    """UTF-8 as text, without the byte order mark some editors write. Anything else is refused."""
    if b"\0" in data:
        raise ConfigError(f"{name} is not a text file: it has zero bytes; convert it to UTF-8 text first")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{name} is not a text file: byte {error.start:,} is not UTF-8; convert it to UTF-8 text first"
        ) from None


def unique_names(sources: Sequence[str]) -> list[str]:
    """A key for each source: its file name, with as many of its folders as make it unique.

    Example:
        unique_names(["a.md", "x/b.md", "y/b.md"])  # ["a.md", "x/b.md", "y/b.md"]
        unique_names(["notes/a.md", "-"])           # ["a.md", "stdin"]
    """
    parts = [(STDIN_KEY,) if source == STDIN else PurePath(source).parts[-64:] for source in sources]
    lengths = [1] * len(parts)
    names = ["/".join(part[-1:]) for part in parts]
    while True:
        longer = [
            place for place, name in enumerate(names) if names.count(name) > 1 and lengths[place] < len(parts[place])
        ]
        if not longer:
            return _numbered(names)
        for place in longer:
            lengths[place] += 1
            names[place] = "/".join(parts[place][-lengths[place] :])


def _numbered(names: Sequence[str]) -> list[str]:
    """The same names, with a number where one is repeated."""
    found: list[str] = []
    for name in names:
        number, candidate = 2, name
        while candidate in found:
            number, candidate = number + 1, f"{name} ({number})"
        found.append(candidate)
    return found


def _files(source: str) -> list[str]:
    """The files that a source means: those that match, if it is a pattern and not the name of a file."""
    path = os.path.expanduser(source)
    if source == STDIN or "\0" in path or not glob.has_magic(path) or os.path.exists(path):
        return [source]
    found = sorted(file for file in glob.glob(path, recursive=True) if os.path.isfile(file))
    if not found:
        raise ConfigError(f"no file matches {source}")
    return found


def _read(source: str, most: int, stdin: BinaryIO | None) -> bytes:
    """At most `most` bytes of a source."""
    if source == STDIN:
        if stdin is None:
            raise ConfigError("there is no standard input here: give a file")
        data = stdin.read(most)
        if not data:
            raise ConfigError("standard input is empty: pipe a text into the command, or leave out -")
        return data
    path = Path(source).expanduser()
    try:
        if path.is_dir():
            raise ConfigError(f"{source} is a folder: give its files, like '{source.rstrip('/')}/*.md'")
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror}") from None
    except ValueError:  # a zero byte in the name
        raise ConfigError(f"cannot read {source!r}: that is not a file name") from None


def _shown(source: str) -> str:
    return "standard input" if source == STDIN else source
