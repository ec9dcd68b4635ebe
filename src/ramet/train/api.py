"""`ramet.train(...)`: a training run from Python, with objects in the places where settings have names.

run = ramet.train("nano", task=Backwards(), rule=Mine(), steps=50, on_step=print)
ramet.train.resume(run.path, task=Backwards(), rule=Mine())
"""

from __future__ import annotations

import tomllib
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramet import plugins
from ramet.config import load, to_toml
from ramet.errors import ConfigError
from ramet.interfaces import Dialect, Rule, Taskset, World
from ramet.recipes import recipe_file
from ramet.store import RunDir
from ramet.tasks.registry import split_spec
from ramet.train import loop
from ramet.train.length import parse_length
from ramet.train.phase import OnStart, OpenBackend, ignore
from ramet.train.settings import TrainConfig
from ramet.train.track import OnStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a program passes in: a name or reference as in settings, or an object. None: as the settings say."""

    task: str | Taskset | tuple[Taskset, str] | None = None
    rule: str | Rule | None = None
    dialect: str | Dialect | None = None
    world: str | World | type[World] | None = None

    @contextmanager
    def settings(self, recorded: TrainConfig | None = None) -> Generator[dict[str, str]]:
        """The settings that name these parts. Within the block, the names of objects can be looked up.

        `recorded` are the settings of a run to be resumed: its objects keep their names.
        """
        kinds = {"task": "taskset", "rule": "rule", "dialect": "dialect", "world": "world"}
        with ExitStack() as stack:
            named: dict[str, str] = {}
            for name, kind in kinds.items():
                part, split = _with_split(getattr(self, name))
                if part is None or isinstance(part, str):
                    named |= {} if part is None else {name: part}
                    continue
                reference = None if recorded is None else _recorded_reference(recorded, name)
                reference = stack.enter_context(plugins.holding(part, kind, reference=reference))
                named[name] = f"{reference}:{split}" if split else reference
            yield named


def _with_split(part: Any) -> tuple[Any, str]:
    return part if isinstance(part, tuple) else (part, "")  # pyright: ignore[reportUnknownVariableType]


def _recorded_reference(config: TrainConfig, name: str) -> str:
    reference = split_spec(config.task)[0] if name == "task" else str(getattr(config, name))
    if not reference.startswith(plugins.GIVEN):
        raise ConfigError(f"this run has {name}={reference}: a resumed run keeps its settings")
    return reference


def train(
    config: TrainConfig | str | Path | None = None,
    *,
    task: str | Taskset | tuple[Taskset, str] | None = None,
    rule: str | Rule | None = None,
    dialect: str | Dialect | None = None,
    world: str | World | type[World] | None = None,
    runs: Path | str = "runs",
    open_backend: OpenBackend | None = None,
    on_step: OnStep = ignore,
    on_start: OnStart = ignore,
    **settings: Any,
) -> RunDir:
    """Run a training from its first step to its last, and return its run directory.

    `config` is a recipe by name or file, or a `TrainConfig`; `settings` override it. A task is `"craft:train"`, a
    taskset, or a taskset and the name of a split. It blocks, like the command: it runs an event loop of its own.

    Example:
        ramet.train("nano", task=Backwards(), rule=Mine(), steps=50, budget={"tokens": 300})
    """
    with Parts(task=task, rule=rule, dialect=dialect, world=world).settings() as named:
        resolved = _resolve(config, settings | named)
        return loop.train(resolved, runs=runs, open_backend=open_backend, on_step=on_step, on_start=on_start)


def _resolve(config: TrainConfig | str | Path | None, settings: dict[str, Any]) -> TrainConfig:
    if isinstance(config, TrainConfig):
        if not settings:
            return config
        return load(TrainConfig, base=tomllib.loads(to_toml(config)), flags=settings)
    file = None if config is None else recipe_file(str(config))
    return load(TrainConfig, file=file, flags=settings)


def resume(
    path: Path | str,
    *,
    task: Taskset | None = None,
    rule: Rule | None = None,
    dialect: Dialect | None = None,
    world: World | type[World] | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    open_backend: OpenBackend | None = None,
    on_step: OnStep = ignore,
    on_start: OnStart = ignore,
    accept_changes: bool = False,
    **settings: Any,
) -> RunDir:
    """Continue a run from its newest checkpoint. Objects that it was started with are passed in again.

    `steps` and `minutes` give it another length. Further settings are those that do not change what is learnt, like
    `save_every=1`. With `accept_changes`, files of plug-ins may have changed.
    """
    recorded = load(TrainConfig, file=RunDir.open(path).path / "config.toml")
    free = parse_length(settings, Path(path), TrainConfig)
    with Parts(task=task, rule=rule, dialect=dialect, world=world).settings(recorded):
        return loop.resume(
            path,
            steps=steps,
            minutes=minutes,
            open_backend=open_backend,
            on_step=on_step,
            on_start=on_start,
            accept_changes=accept_changes,
            **free,
        )
