"""Give a run another number of steps: `ramet train --resume RUN steps=200`.

Most of what a step does depends on its number alone, so a run that is lengthened is the run that would have had so many
steps from the beginning. Two settings depend on the number of steps too, and `length_notes` says what that means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from ramet.config import inner_name, load, to_toml
from ramet.errors import ConfigError, StoreError
from ramet.store import RunDir
from ramet.store.atomic import write_text
from ramet.store.checkpoints import checkpoint_step, latest
from ramet.train.settings import TrainConfig, WarmConfig

LENGTH = ("steps", "minutes")  # settings that a resumed run may change
Config = TypeVar("Config", TrainConfig, WarmConfig)


def parse_length(given: Mapping[str, Any], run: Path, kind: type[TrainConfig] | type[WarmConfig]) -> dict[str, Any]:
    """The settings that a resumed run may change, and nothing else."""
    accepted = [name for name in LENGTH if name in kind.__dataclass_fields__]
    for name, value in given.items():
        if name not in accepted:
            key = inner_name(name, value)
            command = "train {} model={} warm.steps=0" if kind is TrainConfig else "warmstart {} model={}"
            raise ConfigError(
                f"a resumed run keeps its settings, except {' and '.join(accepted)}; for another {key} start a new "
                f"run from it: ramet {command.format(run / 'config.toml', run)} {key}=..."
            )
        least = 1 if name == "steps" else 0
        if isinstance(value, bool) or not isinstance(value, int if name == "steps" else (int, float)) or value < least:
            raise ConfigError(f"{name} is a number {'from 1 up' if name == 'steps' else 'above 0'}; got {value!r}")
    return dict(given)


def length_notes(run: RunDir, kind: type[TrainConfig] | type[WarmConfig], steps: int | None) -> list[str]:
    """What another number of steps changes besides the end of the run, a sentence each."""
    config = load(kind, file=run.path / "config.toml")
    if steps is None or steps == config.steps or not config.steps:
        return []
    done, notes = checkpoint_step(latest(run.path)), list[str]()
    if config.update.schedule != "constant" and done < steps:
        before = config.update.rate_at(done, config.steps) if done < config.steps else 0.0
        after = config.update.rate_at(done, steps)
        notes.append(
            f"the {config.update.schedule} schedule of the learning rate now ends at step {steps}: step {done + 1} "
            f"has {after:.3g} instead of {before:.3g}"
        )
    if isinstance(config, TrainConfig) and config.refill:
        notes.append(
            "tasks that replaced others so far (refill) were taken from those after the last step, so some of them "
            "come again"
        )
    return notes


def change_length(run: RunDir, config: Config, *, steps: int | None = None, minutes: float | None = None) -> Config:
    """The settings with another length, also in the run directory. `meta.json` lists every change."""
    changes = {name: value for name, value in (("steps", steps), ("minutes", minutes)) if value is not None}
    changed = replace(config, **changes)
    if changed == config:
        return config
    done = checkpoint_step(latest(run.path))
    if changed.steps < done:
        raise ConfigError(f"steps={changed.steps}: {run.path} has already done {done} steps")
    meta = run.meta
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = {"after": done, "from": config.steps, "to": changed.steps, "when": now}
    meta["lengthened"] = [*meta.get("lengthened", []), entry]
    try:
        write_text(run.path / "config.toml", to_toml(changed))
    except OSError as error:
        raise StoreError(f"cannot write to {run.path}: {error.strerror}") from None
    run.write_meta(meta)
    return changed
