"""Verdicts of a judge by content, in memory and in a file, so that a resumed run asks nothing twice.

A line of the file has the key and the verdict of one question, or what a number of questions cost. A process that is
killed may leave part of a line, which is ignored.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ramet.errors import StoreError
from ramet.store.atomic import write_text
from ramet.types import Judgement, Verdict, is_score


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a judge said. Without a verdict, none of its replies could be parsed."""

    verdict: Verdict | None


class JudgeCache:
    """At most `most` verdicts, the newest ones, and what judging has cost. Without a path nothing is written.

    Example:
        JudgeCache(run.path / "judge.jsonl", most=100_000)
    """

    def __init__(self, path: Path | None = None, *, most: int) -> None:
        self.path = path
        self.most = most
        self.calls = 0  # spent so far, by earlier processes of the run too
        self.tokens = 0
        self._entries: dict[str, Entry] = {}
        self._lines = 0  # of the file
        self._unwritten: list[str] = []
        self._unwritten_calls = 0
        self._unwritten_tokens = 0
        self._read()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def add(self, key: str, entry: Entry) -> None:
        """Keep what a judge said."""
        self._keep(key, entry)
        self._unwritten.append(_entry_line(key, entry))

    def spend(self, *, calls: int, tokens: int) -> None:
        """Count what was spent on judging."""
        self.calls += calls
        self.tokens += tokens
        self._unwritten_calls += calls
        self._unwritten_tokens += tokens

    def write(self) -> None:
        """Append what is new to the file; rewrite it when more than half of its lines are outdated."""
        if self.path is None or not (self._unwritten or self._unwritten_calls):
            return
        lines = [*self._unwritten, _line({"calls": self._unwritten_calls, "tokens": self._unwritten_tokens})]
        try:
            if self._lines + len(lines) > 4 * self.most + 1000:
                self._rewrite(self.path)
            else:
                with self.path.open("ab") as file:
                    file.write("".join(lines).encode())
                self._lines += len(lines)
        except OSError as error:
            raise StoreError(f"cannot write {self.path}: {error.strerror}") from None
        self._unwritten, self._unwritten_calls, self._unwritten_tokens = [], 0, 0

    def _keep(self, key: str, entry: Entry) -> None:
        self._entries[key] = entry
        while len(self._entries) > self.most:
            del self._entries[next(iter(self._entries))]

    def _rewrite(self, path: Path) -> None:
        """One line for all costs, and the entries that are kept."""
        lines = [_line({"calls": self.calls, "tokens": self.tokens})]
        lines += [_entry_line(key, entry) for key, entry in self._entries.items()]
        write_text(path, "".join(lines))
        self._lines = len(lines)

    def _read(self) -> None:
        if self.path is None or not self.path.exists():
            return
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror}") from None
        if data and not data.endswith(b"\n"):  # cut off: what follows must begin on a line of its own
            self._unwritten.append("\n")
        for line in data.decode(errors="replace").split("\n"):
            self._lines += 1
            try:
                self._read_record(json.loads(line))
            except (ValueError, KeyError, TypeError, RecursionError):
                continue

    def _read_record(self, record: dict[str, Any]) -> None:
        if "key" not in record:
            self.calls += int(record["calls"])
            self.tokens += int(record["tokens"])
            return
        self._keep(str(record["key"]), Entry(verdict=_verdict(record["verdict"])))


def _verdict(record: dict[str, Any] | None) -> Verdict | None:
    if record is None:
        return None
    fields: dict[str, Any] = record | {"judgement": Judgement(**record["judgement"])}
    if not is_score(fields["score"]):
        raise ValueError("no score")
    return Verdict(**fields)


def _entry_line(key: str, entry: Entry) -> str:
    return _line({"key": key, "verdict": None if entry.verdict is None else asdict(entry.verdict)})


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=True) + "\n"
