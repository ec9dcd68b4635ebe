"""A training run in the terminal: progress, time left and the course of its metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ramet.errors import EngineError
from ramet.evaluate.format import share
from ramet.store import RunDir
from ramet.store.checkpoints import WARM, best_folder, newest_model, read_best
from ramet.terminal.console import command, out, print_json, warn
from ramet.train.track import scalars
from ramet.train.watch import CEASED, STOPPED

SHARE = "share"  # how a number is written: as `share` does, else a format
BARS = "▁▂▃▄▅▆▇█"
HISTORY = 32  # steps in a curve
PACE = 10  # steps whose mean duration gives the time left
FRAMES_PER_SECOND = 2
SHOWN = (
    ("reward", "reward", ".3f"),
    ("success", "success", SHARE),
    ("delegated", "delegated", SHARE),
    ("nodes", "nodes per tree", ".1f"),
    ("tokens", "tokens per tree", ",.0f"),
    ("critical_path_tokens", "critical path", ",.0f"),
    ("loss", "loss", ".3f"),
    ("entropy", "entropy", ".2f"),
    ("logprob_gap", "logprob gap", ".1e"),
    ("eval_success", "eval success", SHARE),
    ("judge_success", "judge success", SHARE),
    ("judge_failed", "judge: no verdict", ",.0f"),
    ("judge_capped", "judge: over its limit", ",.0f"),
    ("unchecked", "checks that failed", ",.0f"),
    ("passed_on", "passed their goal on", SHARE),
    ("impossible", "impossible goals", SHARE),
    ("unearned", "right without work", SHARE),
    ("refused", "refused per tree", ".2f"),
    ("faults", "faults per tree", ".2f"),
    ("repairs", "repairs per tree", ".2f"),
    ("root_stops/window", "roots: window full", SHARE),
    ("root_stops/budget", "roots: out of tokens", SHARE),
    ("root_stops/turns", "roots: out of turns", SHARE),
    ("root_stops/deadline", "roots: out of time", SHARE),
)
PRINTED = (
    ("reward", "reward", ".3f"),
    ("success", "success", SHARE),
    ("delegated", "delegated", SHARE),
    ("nodes", "nodes", ".1f"),
    ("tokens", "tokens", ",.0f"),
    ("loss", "loss", ".3f"),
    ("grad_norm", "grad norm", ".3g"),
    ("judge_success", "judge success", SHARE),
    ("judge_failed", "no verdict", ",.0f"),
    ("judge_capped", "not judged", ",.0f"),
    ("unchecked", "checks failed", ",.0f"),
    ("passed_on", "passed on", SHARE),
    ("impossible", "impossible", SHARE),
    ("unearned", "unearned", SHARE),
    ("refused", "refused", ".2f"),
    ("faults", "faults", ".2f"),
    ("root_stops/window", "window full", SHARE),
    ("logprob_gap", "logprob gap", ".1e"),
    ("collect_s", "collect", ".1f"),
    ("learn_s", "learn", ".1f"),
    ("eval_success", "eval success", SHARE),
    ("eval_delegated", "eval delegated", SHARE),
    ("eval_tokens", "eval tokens", ",.0f"),
)
# Signs of trouble: not shown while they are 0.
HIDDEN_AT_ZERO = {
    *(
        "unchecked",
        "passed_on",
        "impossible",
        "unearned",
        "refused",
        "faults",
        "repairs",
        "judge_failed",
        "judge_capped",
    ),
    *(f"root_stops/{stop}" for stop in ("window", "budget", "turns", "repeats", "deadline")),
}
OF_ORACLE = " (oracle)"  # after the name of a number that demonstrations have, and not the model
OF_TREES = ("reward", "success", "delegated", "nodes", "tokens", "critical_path_tokens")


class TrainingView:
    """Collects the metrics of a run and draws them."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.name = ""
        self.totals: dict[str, int] = {}  # steps of each part: train, warm
        self.records: dict[str, list[dict[str, Any]]] = {}  # metrics of each part
        self.part = "train"
        self.kind = "train"
        self.steps_taken = 0  # in this process
        self.times: list[float] = []  # start of this part, then the end of each of its steps

    def on_start(self, run: RunDir) -> None:
        settings = run.settings
        self.name, self.kind = str(run.path), run.kind
        self.totals = {"train": settings["steps"], WARM: settings.get(WARM, {}).get("steps", 0)}
        self.part = "train" if settings["steps"] else WARM
        self.records = {"train": run.metrics()}
        self.times = [self.now()]

    def on_step(self, record: dict[str, Any]) -> None:
        part = record.get("part", "train")
        if part != self.part:
            self.part, self.times = part, self.times[-1:]
        self.records.setdefault(part, []).append(record)
        self.steps_taken += 1
        self.times.append(self.now())

    @property
    def shows_oracle(self) -> bool:
        """Whether the trees are demonstrations: their numbers are those of the oracle, not of the model."""
        return "warmstart" in (self.kind, f"{self.part}start")

    @property
    def steps_left(self) -> int:
        """Steps of the run that remain."""
        return self.totals.get("train", 0) - steps_done(self.records.get("train", []))

    @property
    def was_complete(self) -> bool:
        """Whether all steps had been done before this process started."""
        return not self.steps_taken and not self.steps_left

    def frame(self) -> Group:
        if not self.name:
            return Group(Text("loading ...", style="dim"))
        records = self.records.get(self.part, [])
        lines: list[Any] = [self._headline(steps_done(records))]
        if records:
            lines += [curves(records, oracle=self.shows_oracle), *notes(records[-1])]
        return Group(*lines)

    def _headline(self, done: int) -> Table:
        total = self.totals.get(self.part, 0)
        left = time_left(self.times, total - done)
        line = Table.grid(padding=(0, 2))
        parts = [
            Text(self.name, style="bold"),
            Text("supervised start" if self.shows_oracle else "training"),
            Text(f"step {min(done + 1, total):,} of {total:,}"),
            ProgressBar(total=max(total, 1), completed=done, width=20),
            Text("done" if done >= total else "" if left is None else f"about {clock(left)} left", style="dim"),
        ]
        line.add_row(*parts)
        return line


def steps_done(records: Sequence[dict[str, Any]]) -> int:
    """The number of steps after the last record. Metrics of some steps may be missing: a file can lose lines."""
    return records[-1]["step"] + 1 if records else 0


def curves(records: Sequence[dict[str, Any]], *, oracle: bool = False) -> Table:
    """One line per metric: name, newest value, course, and success by depth. `oracle`: of its demonstrations."""
    grid = Table.grid(padding=(0, 2))
    numbers = [scalars(record) for record in records]
    for name, label, shape in SHOWN:
        values = [record.get(name) for record in numbers]
        if name.startswith("eval_"):
            values = [value for value in values if value is not None]  # evaluated only every few steps
        known = [value for value in values if value is not None]
        if known and (name not in HIDDEN_AT_ZERO or any(known)):
            more = by_depth(records[-1]) if name == "success" else ""
            whose = OF_ORACLE if oracle and name in OF_TREES else ""
            newest = Text(written(known[-1], shape), justify="right")
            grid.add_row(f"{label}{whose}", newest, sparkline(values[-HISTORY:]), more)
    return grid


def written(value: float, shape: str) -> str:
    """A number as `SHOWN` and `PRINTED` want it."""
    return share(value) if shape == SHARE else f"{value:{shape}}"


def by_depth(record: dict[str, Any]) -> str:
    """Success of roots, of their children, and so on.

    Example:
        by_depth({"success_by_depth": [0.25, None, 0.5]})  # "by depth: 25% · – · 50%"
    """
    shares: list[float | None] = record.get("success_by_depth") or []
    return "by depth: " + " · ".join("–" if value is None else share(value) for value in shares) if shares else ""


def notes(record: dict[str, Any]) -> list[Text]:
    """What is unusual about a step: nothing to learn from it, or the reason why the run stops after it."""
    return [Text(str(record[name]), style="yellow") for name in ("note", CEASED, STOPPED) if name in record]


def sparkline(values: Sequence[float | None]) -> str:
    """The course of a number; a space where there is no value.

    Example:
        sparkline([0.0, 1.0, None, 0.5])  # "▁█ ▅"
    """
    known = [value for value in values if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    step = (high - low) / (len(BARS) - 1)
    return "".join(" " if value is None else BARS[round((value - low) / step) if step else 0] for value in values)


def time_left(times: Sequence[float], steps: int) -> float | None:
    """How long the remaining steps will take, at the pace of the last ones.

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
def live_view(view: TrainingView, console: Console) -> Generator[None]:
    """Draw the view until the block ends; the last frame stays on the screen."""
    with Live(get_renderable=view.frame, console=console, refresh_per_second=FRAMES_PER_SECOND):
        yield


class Training(Protocol):
    """A training that reports its run directory and its steps, like `partial(train, config)`."""

    def __call__(self, *, on_step: Callable[[dict[str, Any]], None], on_start: Callable[[RunDir], None]) -> RunDir: ...


def watch_training(training: Training, *, as_json: bool = False) -> RunDir:
    """Run a training and show it: drawn in a terminal, else one line per step. Prints how to resume it."""
    view, started = TrainingView(), list[RunDir]()
    live = out.is_terminal and not as_json

    def on_start(run: RunDir) -> None:
        started.append(run)
        view.on_start(run)
        if not as_json and not live:
            out.print(str(run.path), style="dim")

    def on_step(record: dict[str, Any]) -> None:
        view.on_step(record)
        if as_json:
            print_json(record, indent=None)
        elif not live:
            out.print(step_line(record, oracle=view.shows_oracle))

    try:
        with live_view(view, out) if live else nullcontext():
            run = training(on_step=on_step, on_start=on_start)
    except (KeyboardInterrupt, EngineError):  # a server that is gone can come back
        if started and started[0].path.exists() and not as_json:
            out.print(f"resume with: {resume_command(started[0])}", style="dim")
        raise
    if view.was_complete and view.totals["train"]:
        steps = view.totals["train"]
        warn(f"{run.path} has done all its steps ({steps:,}); to lengthen it: {resume_command(run)} steps={2 * steps}")
    if not as_json:
        _print_ending(run, view)
    return run


def _print_ending(run: RunDir, view: TrainingView) -> None:
    out.print(f"{newest_model(run.path) or run.path}  ({run_command(run)})", style="dim")
    for line in ending(run, view.records.get("train", []), view.steps_left):
        out.print(line, style="dim", soft_wrap=True)


def ending(run: RunDir, records: Sequence[dict[str, Any]], steps_left: int) -> list[str]:
    """Why a run ended before its last step, or has none, and how to go on."""
    if not run.settings["steps"]:
        return [f"the supervised start is done; to go on with RL: {resume_command(run)} steps=N"]
    if not steps_left:
        return []
    reason = records[-1].get(STOPPED) if records else None
    if reason is None:
        return [f"the time limit is reached; resume with: {resume_command(run)}"]
    best = read_best(run.path)
    lines = [f"stopped after step {records[-1]['step'] + 1}: {reason}"]
    if best is not None:
        lines.append(f"go on from the best, {share(best.value)} after step {best.step}, with: {restart_command(run)}")
    return [*lines, f"resume all the same with: {resume_command(run)}"]


def restart_command(run: RunDir) -> str:
    """Start a new run like this one with its best model, which needs no supervised start."""
    settings = run.settings
    skip = " warm.steps=0" if settings.get("warm") else ""
    return f"{command()} {run.kind} {run.path / 'config.toml'} model={best_folder(run.path)}{skip}"


def run_command(run: RunDir) -> str:
    """Run the model of a training on a task that it was trained on."""
    settings = run.settings
    return f"{command()} run {settings['task']}/0 --model {run.path}"


def resume_command(run: RunDir) -> str:
    return f"{command()} {run.kind} --resume {run.path}"


def step_line(record: dict[str, Any], *, oracle: bool = False) -> Text:
    """One step in one line. `oracle`: its trees are demonstrations.

    Example:
        str(step_line({"step": 3, "loss": 0.25, "note": "slow"}))  # "step 4  loss 0.250  slow"
    """
    step = f"step {record['step'] + 1}"
    parts = [f"{record['part']} {step}" if "part" in record else step]
    numbers = scalars(record)
    for name, label, shape in PRINTED:
        value = numbers.get(name)
        if value is not None and (value or name not in HIDDEN_AT_ZERO):
            whose = OF_ORACLE if oracle and name in OF_TREES else ""
            parts.append(f"{label}{whose} {written(value, shape)}")
    text = Text("  ".join(parts))
    for note in notes(record):
        text.append("  ").append_text(note)
    return text
