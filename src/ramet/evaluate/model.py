"""Which model is evaluated: where its weights are, what it was trained on, and marks to know it and its machine by."""

from __future__ import annotations

import hashlib
import os
import platform
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ramet.config import EngineConfig
from ramet.errors import ConfigError, StoreError
from ramet.evaluate.items import Trained
from ramet.interfaces import Sized
from ramet.models.folders import OURS, check_packages, model_folder
from ramet.store import RunDir
from ramet.tasks.registry import load, spec_of

TRAINED = ("train", "warmstart")
STATE = "learner.safetensors"  # of a checkpoint: the optimiser's, not the model's
READ = 1 << 22  # bytes at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that was found."""

    name: str  # of a folder, or on a server
    trained: list[Trained]  # on these; empty where nobody wrote it down
    settings: dict[str, Any]  # that it was trained with, as far as an evaluation has them too


def model_of(name: str, tasks: Sequence[str] = ()) -> Model:
    """A run directory's newest checkpoint, or what else is called so; with what is known of its training.

    Options of the trained taskset count where all `tasks` are of it.
    """
    if name in OURS:
        return Model(name=name, trained=[], settings={})
    path = Path(name)
    if (path / "meta.json").is_file():
        path = _newest(RunDir.open(path))
    if path.is_dir():
        name = str(path.resolve())
    configs = list(_configs(path))
    trained = [_sizes(*part) for config in configs for part in _shown(config)]  # of all, not of the last alone
    return Model(name=name, trained=trained, settings=_kept(configs[0], tasks) if configs else {})


def _newest(run: RunDir) -> Path:
    if run.kind not in TRAINED:
        raise ConfigError(
            f"{run.path} was made by ramet {run.kind} and holds no model: give a run of {' or '.join(TRAINED)}"
        )
    # As `ramet.train.local.checkpoint.latest` has it, which would load torch to print a finished table.
    checkpoints = sorted(folder for folder in (run.path / "checkpoints").glob("step-*") if folder.is_dir())
    if not checkpoints:
        raise ConfigError(f"{run.path} has no checkpoint yet")
    return checkpoints[-1]


def _configs(folder: Path) -> Iterator[dict[str, Any]]:
    """The settings a checkpoint was trained with, then those of the model before it, as far as they were kept."""
    seen: set[Path] = set()
    while folder not in seen:
        seen.add(folder)
        config = _settings(folder.parent.parent if folder.parent.name == "checkpoints" else folder)
        if config is None:
            return
        yield config
        folder = Path(str(config.get("model", "")))


def _shown(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tasks of a training and of its supervised start, with options."""
    warm = config.get("warm", {})
    for part in [config, *([config | warm] if warm.get("steps") else [])]:
        if not part.get("run"):  # else it was shown the trees of another run, of whatever tasks these were
            yield str(part.get("task", "")), part.get("taskset", {})


def _kept(config: dict[str, Any], tasks: Sequence[str]) -> dict[str, Any]:
    """How the model was spoken to, and the limits it knows; tokens are what an evaluation varies."""
    kept = {name: config[name] for name in ("dialect", "show_budget") if name in config}
    limits = {name: one for name, one in config.get("budget", {}).items() if name != "tokens"}
    fixed = {name: one for name, one in limits.items() if not isinstance(one, list)}
    trained, options = spec_of(str(config.get("task", "")))[0], config.get("taskset", {})
    same = all(spec_of(task)[0] == trained for task in tasks)
    return kept | ({"budget": fixed} if fixed else {}) | ({"taskset": options} if options and same else {})


def _settings(run: Path) -> dict[str, Any] | None:
    try:
        if RunDir.open(run).kind not in TRAINED:
            return None
        return tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))
    except (StoreError, OSError, ValueError):
        return None


def _sizes(task: str, options: dict[str, Any]) -> Trained:
    name, split = spec_of(task)
    sizes = None
    with suppress(ConfigError):  # its files may be elsewhere: then its sizes are not known
        taskset = load(name, **options)
        sizes = taskset.sizes(split) if isinstance(taskset, Sized) else None
    return Trained(name, *(sizes or (float("-inf"), float("inf"))))


def facts_of(engine: EngineConfig) -> dict[str, Any]:
    """The model: its weights' hash, or its name on a server."""
    if engine.kind == "http":
        return {"model": engine.model, "server": engine.base_url}
    folder = model_folder(engine.model)
    return {"model": engine.model, "model_sha256": weights_hash(folder)}


def stamp_of(engine: EngineConfig) -> str:
    """What tells a model from another at the same place without reading it: sizes and times of its weight files."""
    files = [] if engine.kind == "http" else _weights(model_folder(engine.model))
    return " ".join(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)


def _weights(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.glob("*.safetensors")) if file.name != STATE]


def weights_hash(folder: Path) -> str:
    """SHA-256 over the names and bytes of the weight files of a folder."""
    digest = hashlib.sha256()
    for file in _weights(folder):
        digest.update(file.name.encode() + b"\0")
        with file.open("rb") as opened:
            while block := opened.read(READ):
                digest.update(block)
    return digest.hexdigest()


def hardware(*, local: bool) -> dict[str, Any]:
    """What computed it, as far as this process can tell."""
    facts: dict[str, Any] = {"cpu": _cpu(), "cores": _cores(), "system": platform.platform()}
    if local:
        check_packages("")
        import torch

        facts["torch"] = torch.__version__
        if torch.cuda.is_available():
            facts["gpu"] = torch.cuda.get_device_name()
    return facts


def _cores() -> int:
    able = cast(Any, getattr(os, "sched_getaffinity", None))
    return len(able(0)) if able is not None else os.cpu_count() or 1


def _cpu() -> str:
    try:
        lines: Sequence[str] = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.processor() or platform.machine()
