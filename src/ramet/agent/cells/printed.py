"""What a cell prints."""

from __future__ import annotations

from dataclasses import dataclass, field

from ramet.agent.wording import head, num_bytes


@dataclass(slots=True)
class Printed:
    """A cell's output up to a limit in bytes; the rest is only counted."""

    limit: int
    parts: list[str] = field(default_factory=list[str])
    kept: int = 0  # bytes
    total: int = 0  # characters

    def __call__(self, stream: str, text: str) -> None:
        self.total += len(text)
        if self.kept < self.limit:
            self.parts.append(head(text, self.limit - self.kept))
            whole = len(self.parts[-1]) == len(text)
            self.kept = self.kept + num_bytes(text) if whole else self.limit

    @property
    def text(self) -> str:
        return self.within(self.limit)

    def within(self, limit: int) -> str:
        """The output in at most `limit` bytes, with a mark that gives its full length if it is cut."""
        text = "".join(self.parts)
        if len(text) == self.total and num_bytes(text) <= limit:
            return text
        mark = f"\n… ({self.total:,} characters in all)"
        return head(text, limit - num_bytes(mark)) + head(mark, limit)
