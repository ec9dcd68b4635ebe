"""The metadata of a llama.cpp model file (GGUF, versions 2 and 3): what comes before its tensors.

The `gguf` package reads the same, and takes seconds for the vocabulary of a model.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

MAGIC, VERSIONS = b"GGUF", (2, 3)
STRING, ARRAY = 8, 9  # types of a value
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def read_metadata(path: Path) -> dict[str, Any]:
    """Every value by its key. A damaged file raises `ValueError`.

    Example:
        read_metadata(Path("model.gguf"))["tokenizer.ggml.model"]
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = _Reader(data)
        if reader.take(4) != MAGIC or reader.number("I") not in VERSIONS:
            raise ValueError("it is not a GGUF file of version 2 or 3")
        reader.number("Q")  # of tensors
        return {reader.string(): reader.value(reader.number("I")) for _ in range(reader.count())}


class _Reader:
    """Goes through the file once, from its beginning."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.place = 0

    def take(self, size: int) -> bytes:
        start, end = self.place, self.place + size
        if end > len(self.data):
            raise ValueError("the file ends too early")
        self.place = end
        return self.data[start:end]

    def number(self, kind: str) -> Any:
        return self.numbers(kind, 1)[0]

    def numbers(self, kind: str, count: int) -> tuple[Any, ...]:
        return struct.unpack(f"<{count}{kind}", self.take(count * struct.calcsize(f"<{kind}")))

    def count(self) -> int:
        """A number of entries, each of which has a byte or more."""
        count = self.number("Q")
        if count > len(self.data) - self.place:
            raise ValueError("the file ends too early")
        return count

    def string(self) -> str:
        return self.take(self.number("Q")).decode()

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self._array()
        if kind not in NUMBERS:
            raise ValueError(f"a value has the unknown type {kind}")
        return self.number(NUMBERS[kind])

    def _array(self) -> list[Any]:
        kind, count = self.number("I"), self.count()
        if kind in NUMBERS:
            return list(self.numbers(NUMBERS[kind], count))
        return [self.value(kind) for _ in range(count)]
