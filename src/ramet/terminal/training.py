"""A training run in the terminal while it goes on: where it is, how long it will take, and which way its numbers go."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ramet.store import RunDir

BARS = "▁▂▃▄▅▆▇█"
HISTORY = 32  # steps in a curve
PACE = 10  # steps that say how long one takes
FRAMES_PER_SECOND = 2
SHOWN = (
    ("reward", "reward", ".3f"),
    ("success", "success", ".0%"),
    ("delegated", "delegated", ".0%"),
    ("nodes", "nodes a tree", ".1f"),
    ("tokens", "tokens a tree", ",.0f"),
    ("critical_path_tokens", "of these in a row", ",.0f"),
    ("loss", "loss", ".3f"),
    ("entropy", "entropy", ".2f"),
    ("gap", "gap", ".1e"),
    ("eval_success", "eval success", ".0%"),
)


class Watch:
    """Hears what a run tells, and draws it."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.name = ""
        self.totals: dict[str, int] = {}  # steps of every part
        self.records: dict[str, list[dict[str, Any]]] = {}  # of every part
        self.part = "train"
        self.kind = "train"
        self.times: list[float] = []  # when the steps of this part ended, and when it began

    def started(self, run: RunDir) -> None:
        settings = tomllib.loads((run.path / "config.toml").read_text(encoding="utf-8"))
        self.name, self.kind = str(run.path), run.kind
        self.totals = {"train": settings["steps"], "warm": settings.get("warm", {}).get("steps", 0)}
        self.records = {"train": run.metrics()}
        self.times = [self.now()]

    def tell(self, record: dict[str, Any]) -> None:
        part = record.get("part", "train")
        if part != self.part:
            self.part, self.times = part, self.times[-1:]
        self.records.setdefault(part, []).append(record)
        self.times.append(self.now())

    @property
    def left(self) -> int:
        """Steps of the run that are still to be done."""
        return self.totals.get("train", 0) - len(self.records.get("train", []))

    def frame(self) -> Group:
        if not self.name:
            return Group(Text("loading ...", style="dim"))
        records = self.records.get(self.part, [])
        lines: list[Any] = [self._headline(len(records))]
        if records:
            lines += [curves(records), *notes(records[-1])]
        return Group(*lines)

    def _headline(self, done: int) -> Table:
        total = self.totals.get(self.part, 0)
        left = time_left(self.times, total - done)
        line = Table.grid(padding=(0, 2))
        parts = [
            Text(self.name, style="bold"),
            Text("supervised start" if "warmstart" in (self.kind, f"{self.part}start") else "training"),
            Text(f"step {min(done + 1, total):,} of {total:,}"),
            ProgressBar(total=max(total, 1), completed=done, width=20),
            Text("done" if done >= total else "" if left is None else f"about {clock(left)} left", style="dim"),
        ]
        line.add_row(*parts)
        return line


def curves(records: Sequence[dict[str, Any]]) -> Table:
    """A line for every number: its name, what it is now, which way it went, and what it is at each depth."""
    grid = Table.grid(padding=(0, 2))
    for name, label, shape in SHOWN:
        values = [record.get(name) for record in records]
        if name.startswith("eval_"):
            values = [value for value in values if value is not None]  # only now and then
        known = [value for value in values if value is not None]
        if known:
            more = by_depth(records[-1]) if name == "success" else ""
            grid.add_row(label, Text(f"{known[-1]:{shape}}", justify="right"), sparkline(values[-HISTORY:]), more)
    return grid


def by_depth(record: dict[str, Any]) -> str:
    """Success of roots, of their clones, of the clones of those.

    Example:
        by_depth({"success_by_depth": [0.25, None, 0.5]})  # "by depth: 25% · – · 50%"
    """
    shares: list[float | None] = record.get("success_by_depth") or []
    return "by depth: " + " · ".join("–" if share is None else f"{share:.0%}" for share in shares) if shares else ""


def notes(record: dict[str, Any]) -> list[Text]:
    return [Text(str(record["note"]), style="yellow")] if "note" in record else []


def sparkline(values: Sequence[float | None]) -> str:
    """The course of a number; a gap where there is none.

    Example:
        sparkline([0.0, 1.0, None, 0.5])  # "▁█ ▅"
    """
    known = [value for value in values if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    step = (high - low) / (len(BARS) - 1)
    return "".join(" " if value is None else BARS[round((value - low) / step) if step else 0] for value in values)


def time_left(times: Sequence[float], steps: int) -> float | None:
    """How long so many steps will take, by the pace of the last ones.

    Example:
        time_left([0.0, 10.0, 30.0], 4)  # 60.0
    """
    recent = times[-PACE - 1 :]
    return None if len(recent) < 2 or steps < 0 else steps * (recent[-1] - recent[0]) / (len(recent) - 1)


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    Example:
        clock(3725.2)  # "1:02:05"
        clock(65.0)  # "1:05"
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@contextmanager
def shown(watch: Watch, console: Console) -> Generator[None]:
    """Draw what `watch` knows until the block ends; the last picture stays."""
    with Live(get_renderable=watch.frame, console=console, refresh_per_second=FRAMES_PER_SECOND):
        yield
