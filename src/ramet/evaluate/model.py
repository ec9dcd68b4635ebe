"""The model of an evaluation: its weights, what it was trained on, and what identifies it and its machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ramet import plugins
from ramet.engine.settings import EngineConfig
from ramet.errors import ConfigError
from ramet.evaluate.items import Trained
from ramet.interfaces import HasSizes
from ramet.models.folders import BUILTIN_MODELS, model_folder
from ramet.models.packages import check_packages
from ramet.store.checkpoints import STATE
from ramet.tasks.registry import check_split, load_taskset, parse_spec
from ramet.tasks.sources import source_of
from ramet.tasks.trained import find_checkpoint, shared_settings, training_configs

BLOCK = 1 << 22  # bytes read at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model, and what is known of its training."""

    name: str  # a folder, or a name on a server
    trained: list[Trained]  # empty: not known
    settings: dict[str, Any]  # of its training, those that an evaluation has too
    taken_over: tuple[str, ...] = ()  # of these, what this evaluation does not override, as words


def not_overridden(settings: Mapping[str, Any], given: Mapping[str, Any], *, inside: str = "") -> Iterator[str]:
    """Settings that `given` does not contain, as words.

    Example:
        [*not_overridden({"budget": {"nodes": 3, "turns": 4}}, {"budget": {"nodes": 8}})]  # ["budget.turns=4"]
    """
    for key, value in settings.items():
        own = given.get(key)
        if isinstance(value, dict):
            table = cast(dict[str, Any], own) if isinstance(own, dict) else {}
            yield from not_overridden(cast(dict[str, Any], value), table, inside=f"{inside}{key}.")
        elif key not in given:
            yield f"{inside}{key}={value if isinstance(value, str) else json.dumps(value)}"


def find_model(name: str, tasks: Sequence[str] = ()) -> Model:
    """The newest checkpoint of a run directory, a model folder, a built-in model, or a name on a server.

    Without a name, it is the only model of a server, of which nothing is known.
    Taskset options of the training are taken over if all `tasks` are from the same taskset.
    """
    if not name or name in BUILTIN_MODELS:
        return Model(name=name, trained=[], settings={})
    path = Path(name).expanduser()
    if (path / "meta.json").is_file() or (path / "checkpoints").is_dir():
        path = find_checkpoint(path) or path
    if path.is_dir():
        name = str(path.resolve())
    configs = list(training_configs(path))
    trained = [_trained_range(*part) for config in configs for part in _trained_tasks(config)]
    return Model(name=name, trained=trained, settings=shared_settings(configs[0], tasks) if configs else {})


def _trained_tasks(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tasks of a training and of its supervised start, with their options."""
    warm = config.get("warm", {})
    for part in [config, *([config | warm] if warm.get("steps") else [])]:
        if not part.get("run"):  # else it replays the trees of another run, whose tasks are not known here
            yield str(part.get("task", "")), part.get("taskset", {})


def _trained_range(task: str, options: dict[str, Any]) -> Trained:
    name, split = parse_spec(task)
    sizes = source = None
    with suppress(ConfigError):  # its files may be on another machine: then its sizes are not known
        taskset = load_taskset(name, **options)
        name, split = taskset.name, check_split(taskset, split)
        source = source_of(taskset, split)
        sizes = taskset.sizes(split) if isinstance(taskset, HasSizes) else None
    return Trained(name, *(sizes or (float("-inf"), float("inf"))), source)


def engine_facts(engine: EngineConfig) -> dict[str, Any]:
    """What identifies the model: the hash of its weights, or its name on a server or for an engine of your own."""
    if engine.kind in ("http", "tinker"):
        return {"model": engine.model, "server": engine.base_url}
    if engine.kind != "local":
        return {"model": engine.model, "engine": plugins.shortened(engine.kind)}
    folder = model_folder(engine.model)
    return {"model": engine.model, "model_sha256": weights_hash(folder)}


def weights_stamp(engine: EngineConfig) -> str:
    """Names, sizes and times of the weight files: cheap to compare, and different after any change."""
    files = [] if engine.kind != "local" else _weight_files(model_folder(engine.model))
    return " ".join(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)


def _weight_files(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.glob("*.safetensors")) if file.name != STATE]


def weights_hash(folder: Path) -> str:
    """SHA-256 over the names and bytes of the weight files of a folder."""
    digest = hashlib.sha256()
    for file in _weight_files(folder):
        digest.update(file.name.encode() + b"\0")
        with file.open("rb") as opened:
            while block := opened.read(BLOCK):
                digest.update(block)
    return digest.hexdigest()


def hardware(*, local: bool) -> dict[str, Any]:
    """The machine of this process; with `local`, also torch and the GPU."""
    facts: dict[str, Any] = {"cpu": _cpu_name(), "cores": _num_cores(), "system": platform.platform()}
    if local:
        check_packages()
        import torch

        facts["torch"] = torch.__version__
        if torch.cuda.is_available():
            facts["gpu"] = torch.cuda.get_device_name()
    return facts


def _num_cores() -> int:
    affinity = cast(Any, getattr(os, "sched_getaffinity", None))
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _cpu_name() -> str:
    try:
        lines: Sequence[str] = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
