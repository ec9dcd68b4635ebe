"""What a round of the soak test is, and what it reports."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True, kw_only=True)
class Report:
    """What one round did to the program, and what it found broken."""

    done: Counter[str] = field(default_factory=Counter[str])  # by kind of fault
    broken: list[str] = field(default_factory=list[str])
    slowest_s: float | None = None  # the longest time between a deadline or cancellation and its effect

    def check(self, holds: bool, what: str) -> None:
        """Note what is broken unless it holds."""
        if not holds:
            self.broken.append(what)

    def measured(self, seconds: float, *, limit: float) -> None:
        """Note how late something ended."""
        self.slowest_s = max(seconds, self.slowest_s or 0.0)
        self.done["ended late" if seconds > limit else "ended in time"] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a round may use: a folder of its own, its dice, and a tiny model."""

    folder: Path
    dice: random.Random
    model: Callable[[], Path]


Round = Callable[[Place], Report]
