"""Which model is evaluated: where its weights are, what it was trained on, and marks to know it and its machine by."""

from __future__ import annotations

import hashlib
import os
import platform
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from ramet.config import EngineConfig
from ramet.errors import ConfigError, StoreError
from ramet.evaluate.items import Trained, spec_of
from ramet.interfaces import Sized
from ramet.models import check_packages, model_folder
from ramet.store import RunDir
from ramet.tasks import load

TRAINED = ("train", "warmstart")
STATE = "learner.safetensors"  # of a checkpoint: the optimiser's, not the model's
READ = 1 << 22  # bytes at once


def model_of(name: str) -> tuple[str, list[Trained]]:
    """A run directory's newest checkpoint, or the name as it is; and what it was trained on, as far as is known."""
    path = Path(name)
    if not (path / "meta.json").is_file():
        return name, trained_on(path)
    run = RunDir.open(path)
    if run.kind not in TRAINED:
        raise ConfigError(
            f"{path} was made by ramet {run.kind} and holds no model: give a run of {' or '.join(TRAINED)}"
        )
    check_packages("")
    from ramet.train.checkpoint import latest

    newest = latest(path)
    if newest is None:
        raise ConfigError(f"{path} has no checkpoint yet")
    return str(newest.resolve()), trained_on(newest)


def trained_on(folder: Path) -> list[Trained]:
    """What a checkpoint was trained on, and what the model before it was; empty where nobody wrote it down."""
    found: list[Trained] = []
    seen: set[Path] = set()
    while folder not in seen:
        seen.add(folder)
        config = _settings(folder.parent.parent if folder.parent.name == "checkpoints" else folder)
        if config is None:
            break
        parts = [config, *([config | config["warm"]] if config.get("warm", {}).get("steps") else [])]
        for part in parts:
            if not part.get("run"):  # else it was shown the trees of another run, of whatever tasks these were
                found.append(_sizes(str(part.get("task", "")), part.get("options", {})))
        folder = Path(str(config.get("model", "")))
    return found


def _settings(run: Path) -> dict[str, Any] | None:
    try:
        if RunDir.open(run).kind not in TRAINED:
            return None
        return tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))
    except (StoreError, OSError, ValueError):
        return None


def _sizes(task: str, options: dict[str, Any]) -> Trained:
    name, split = spec_of(task)
    taskset = load(name, **options)
    sizes = taskset.sizes(split) if isinstance(taskset, Sized) else None
    return Trained(name, *(sizes or (float("-inf"), float("inf"))))


def facts_of(engine: EngineConfig) -> dict[str, Any]:
    """The model: its weights' hash, or its name on a server."""
    if engine.kind == "http":
        return {"model": engine.model, "server": engine.base_url}
    folder = model_folder(engine.model)
    return {"model": engine.model, "model_sha256": weights_hash(folder)}


def weights_hash(folder: Path) -> str:
    """SHA-256 over the names and bytes of the weight files of a folder."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        if file.name == STATE:
            continue
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
