"""Metrics of a run for TensorBoard, Weights & Biases or trackio, beside what the run directory always has.

For anything else pass a function as `on_step` to `train`.
"""

# All three are optional, so the type checker may not find them.
# pyright: standard, reportMissingImports=false

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, cast

from ramet.errors import ConfigError, did_you_mean

OnStep = Callable[[dict[str, Any]], None]
# Failures of a tracker: a full disk, a server that does not respond, a value it does not accept.
FAULTS = (ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError)
PROJECT = "ramet"


class Tracker(Protocol):
    """Receives the metrics of a step. `part` is train, or warm for a supervised start."""

    def log(self, step: int, record: Mapping[str, float], *, part: str) -> None: ...
    def close(self) -> None: ...


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in a step's record; lists and tables become one number per position or name.

    Example:
        scalars({"loss": 0.5, "success_by_depth": [1.0, None, 0.5], "note": "slow", "logprob_gap": None})
        # {"loss": 0.5, "success_by_depth/0": 1.0, "success_by_depth/2": 0.5}
        scalars({"stops": {"window": 0.25}})  # {"stops/window": 0.25}
    """
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, list):
            value = {str(place): one for place, one in enumerate(cast(list[Any], value))}
        if isinstance(value, Mapping):
            found |= {f"{name}/{key}": number for key, number in scalars(cast(Mapping[str, Any], value)).items()}
        elif isinstance(value, int | float):
            found[name] = float(value)
    return found


@contextlib.contextmanager
def tracking(trackers: Sequence[Tracker], on_step: OnStep) -> Iterator[OnStep]:
    """An `on_step` that also reports to trackers. A tracker that fails causes one warning and gets nothing more."""
    working = list(trackers)

    def report(record: dict[str, Any]) -> None:
        numbers = scalars(record)
        step = int(numbers.pop("step"))
        for tracker in list(working):
            try:
                tracker.log(step, numbers, part=str(record.get("part", "train")))
            except FAULTS as error:
                working.remove(tracker)
                _warn(tracker, error)
        on_step(record)

    try:
        yield report
    finally:
        for tracker in working:
            try:
                tracker.close()
            except FAULTS as error:
                _warn(tracker, error)


def _warn(tracker: Tracker, error: Exception) -> None:
    reason = " ".join(str(error).split()) or type(error).__name__
    name = type(tracker).__name__
    message = f"{name} failed and is ignored from now on: {reason}. The run directory has all metrics"
    warnings.warn(message, RuntimeWarning, stacklevel=3)


class TensorBoard:
    """Event files in the run directory: `tensorboard --logdir runs`."""

    def __init__(self, run: Path, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        del settings
        self.writer = SummaryWriter(str(run / "tensorboard"))

    def log(self, step: int, record: Mapping[str, float], *, part: str) -> None:
        for name, value in record.items():
            self.writer.add_scalar(f"{part}/{name}", value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class Wandb:
    """A run of the project `ramet`, on the server or, with WANDB_MODE=offline, in the run directory."""

    def __init__(self, run: Path, settings: Mapping[str, Any]) -> None:
        import wandb

        self.fault: type[Exception] = wandb.Error
        try:
            self.run = wandb.init(project=PROJECT, name=run.name, dir=str(run), config=dict(settings))
        except self.fault as error:
            raise ConfigError(f"track: wandb: {' '.join(str(error).split())}") from None
        for part in ("train", "warm"):  # each has its own step counter
            self.run.define_metric(f"{part}/*", step_metric=f"{part}/step")

    def log(self, step: int, record: Mapping[str, float], *, part: str) -> None:
        try:
            self.run.log({f"{part}/{name}": value for name, value in record.items()} | {f"{part}/step": step})
        except self.fault as error:
            raise RuntimeError(str(error)) from error

    def close(self) -> None:
        self.run.finish()


class Trackio:
    """A run of the project `ramet` on this machine: `trackio show --project ramet`."""

    def __init__(self, run: Path, settings: Mapping[str, Any]) -> None:
        with contextlib.redirect_stdout(sys.stderr):  # standard output may be JSON
            import trackio

            self.trackio = trackio
            self.run = trackio.init(
                project=PROJECT, name=run.name, config=dict(settings), resume="allow", auto_log_cpu=False
            )

    def log(self, step: int, record: Mapping[str, float], *, part: str) -> None:
        self.run.log({f"{part}/{name}": value for name, value in record.items()}, step=step)

    def close(self) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self.trackio.finish()


TRACKERS: dict[str, Callable[[Path, Mapping[str, Any]], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
}


def check_trackers(names: Sequence[str]) -> None:
    """Report unknown or missing packages before anything is loaded."""
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"track: unknown tracker {name!r}: {did_you_mean(name, TRACKERS)}")
        if find_spec(name) is None:
            raise ConfigError(f"track: {name} is not installed: pip install 'ramet[{name}]'")


def open_trackers(names: Sequence[str], run: Path, settings: Mapping[str, Any]) -> list[Tracker]:
    check_trackers(names)
    for name in names:
        import_module(name)
    return [TRACKERS[name](run, settings) for name in names]
