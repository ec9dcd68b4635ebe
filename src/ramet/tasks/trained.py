"""Models by name: the checkpoint of a run directory, a folder, a built-in model, or a name on a server.

A checkpoint brings settings of its training along: its dialect, its prompt and its limits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ramet.errors import ConfigError, StoreError, did_you_mean
from ramet.models.folders import BUILTIN_MODELS
from ramet.store import RunDir
from ramet.store.checkpoints import best_folder, latest, newest_model
from ramet.tasks.registry import check_split, load_taskset, parse_spec
from ramet.tasks.returned import budget_of, task_at

TRAINING_KINDS = ("train", "warmstart")
SHARED = ("dialect", "show_budget", "allow_same_goal", "allow_impossible", "instructions", "delegate_instructions")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """What a name means: the model as an engine takes it, and settings of its training."""

    name: str
    settings: dict[str, Any]


def find_named_model(name: str, tasks: Sequence[str] = (), *, on_server: bool = False) -> FoundModel:
    """What `--model` means. `on_server`: the command names a server, so plain names are the server's.

    A path that leads nowhere is an error: it is not taken for the name of a model on a server.
    """
    if name in BUILTIN_MODELS:
        return FoundModel(name=name, settings={})
    checkpoint = find_checkpoint(Path(name).expanduser())
    if checkpoint is None:
        check_is_name(name, on_server=on_server)
        return FoundModel(name=name, settings={})
    if on_server and not os.path.isabs(name):
        raise ConfigError(f"{name} is a model on this machine: leave out the server, or give the model's name there")
    if on_server:
        return FoundModel(name=name, settings={})
    configs = list(training_configs(checkpoint))
    settings = shared_settings(configs[0], tasks) if configs else {}
    return FoundModel(name=str(checkpoint.resolve()), settings=settings)


def find_checkpoint(path: Path) -> Path | None:
    """The model folder that a path means: of a run directory and of its `best`, the newest checkpoint; None if none."""
    if (path / "meta.json").is_file():
        return newest_checkpoint(RunDir.open(path))
    if not path.is_dir():
        return None
    if (path / "config.json").is_file():
        return path
    newest = latest(path)
    if newest is None:
        raise ConfigError(
            f"{path} is neither a run directory nor a model folder: it has no meta.json and no config.json"
        )
    return newest


def check_model(name: str, *, on_server: bool) -> None:
    """Raise if a name is a path that leads to no model on this machine."""
    if name not in BUILTIN_MODELS and (on_server or find_checkpoint(Path(name).expanduser()) is None):
        check_is_name(name, on_server=on_server)


def check_is_name(name: str, *, on_server: bool) -> None:
    """Raise if a name is a path to nothing. Names on servers have slashes too, like Qwen/Qwen3-4B."""
    first = name.partition("/")[0]
    starts = name.startswith(("./", "../", "~")) or (name.startswith("/") and not on_server)
    if os.path.exists(name) or not (starts or ("/" in name and first and os.path.isdir(first))):
        return
    parent = Path(name).expanduser().parent
    beside = [str(parent / entry) for entry in os.listdir(parent)] if parent.is_dir() else []
    nearest = did_you_mean(name, sorted(beside)) if beside else ""
    hint = f": {nearest.partition(' (')[0]}" if nearest.startswith("did you mean") else ""
    raise ConfigError(f"there is no run directory and no model folder {name}{hint}")


def newest_checkpoint(run: RunDir) -> Path:
    if run.kind not in TRAINING_KINDS:
        kinds = " or ".join(TRAINING_KINDS)
        raise ConfigError(f"{run.path} was made by ramet {run.kind} and holds no model: give a run of {kinds}")
    checkpoint = newest_model(run.path)
    if checkpoint is None:
        raise ConfigError(f"{run.path} has no checkpoint yet")
    return checkpoint


def training_configs(folder: Path) -> Iterator[dict[str, Any]]:
    """The settings a checkpoint was trained with, then those of the model it started from, as far as they are known."""
    seen: set[Path] = set()
    while folder not in seen:
        seen.add(folder)
        config = _read_config(run_of(folder))
        if config is None:
            return
        yield config
        folder = Path(str(config.get("model", "")))


def run_of(folder: Path) -> Path:
    """The run directory of a checkpoint, of the best one too; other folders are returned as they are.

    Example:
        run_of(Path("runs/nano/best/checkpoints/step-000007"))  # Path("runs/nano")
    """
    if folder.parent.name != "checkpoints":
        return folder
    run = folder.parent.parent
    return run.parent if run == best_folder(run.parent) else run


def shared_settings(config: dict[str, Any], tasks: Sequence[str]) -> dict[str, Any]:
    """Dialect, prompt and limits of the training. Tokens are left out: an evaluation varies them.

    Taskset options are taken over if all `tasks` are from the same taskset.
    """
    shared = {name: config[name] for name in SHARED if name in config}
    limits = {name: value for name, value in config.get("budget", {}).items() if name != "tokens"}
    fixed = {name: value for name, value in limits.items() if not isinstance(value, list)}
    trained, options = parse_spec(str(config.get("task", "")))[0], config.get("taskset", {})
    same = all(parse_spec(task)[0] == trained for task in tasks)
    return shared | ({"budget": fixed} if fixed else {}) | ({"taskset": options} if options and same else {})


def trained_window(folder: str) -> int | None:
    """The window that a model was trained with, by its settings or else its tasks; None if that is not known."""
    for config in training_configs(Path(folder)):
        window = config.get("budget", {}).get("window")
        if window is not None:
            return max(cast(list[int], window)) if isinstance(window, list) else int(window)
        with suppress(ConfigError):  # its files may be on another machine
            name, split = parse_spec(str(config.get("task", "")))
            taskset = load_taskset(name, **config.get("taskset", {}))
            return budget_of(taskset, task_at(taskset, check_split(taskset, split), 0)).window
    return None


def _read_config(run: Path) -> dict[str, Any] | None:
    try:
        opened = RunDir.open(run)
        return opened.settings if opened.kind in TRAINING_KINDS else None
    except StoreError:
        return None
