"""Give a run another number of steps, or other settings of the machine: `ramet train --resume RUN steps=200`.

Most of what a step does depends on its number alone, so a run that is lengthened is the run that would have had so many
steps from the beginning. Two settings depend on the number of steps too, and `length_notes` says what that means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

from ramet.config import load, to_toml
from ramet.errors import ConfigError, StoreError
from ramet.store import RunDir
from ramet.store.atomic import write_text
from ramet.store.checkpoints import checkpoint_step, latest
from ramet.train.settings import TrainConfig, WarmConfig

LENGTH = ("steps", "minutes")
# What is learnt does not depend on these, but for rounding. A resumed run may change them, too.
FREE = (
    *("save_every", "keep_checkpoints", "keep_best", "track"),
    *("stop.fraction", "stop.least", "stop.window", "stop.no_signal_steps"),
    *("sampler.device", "sampler.max_batch", "sampler.cache_tokens", "collect.processes", "workers"),
    *("update.micro_batch_tokens", "update.gradient_checkpointing"),
    *("update.process", "update.device", "update.device_share"),
)
Config = TypeVar("Config", TrainConfig, WarmConfig)


def parse_length(given: Mapping[str, Any], run: Path, kind: type[TrainConfig] | type[WarmConfig]) -> dict[str, Any]:
    """The settings that a resumed run may change: its length, and as `settings` those in `FREE`, by their names."""
    accepted = [name for name in (*LENGTH, *FREE) if name.partition(".")[0] in kind.__dataclass_fields__]
    flat = dict(_flat(given))
    for name, value in flat.items():
        if name not in accepted:
            load(kind, flags={name: value})  # refuses what is no setting or has a wrong type
            command = "train {} model={} warm.steps=0" if kind is TrainConfig else "warmstart {} model={}"
            raise ConfigError(
                f"a resumed run keeps its {name} (it may change {', '.join(accepted)}); for another one start a new "
                f"run from it: ramet {command.format(run / 'config.toml', run)} {name}=..."
            )
        least = 1 if name == "steps" else 0
        number = isinstance(value, int if name == "steps" else (int, float)) and not isinstance(value, bool)
        if name in LENGTH and (not number or value < least):
            raise ConfigError(f"{name} is a number {'from 1 up' if name == 'steps' else 'above 0'}; got {value!r}")
    length = {name: value for name, value in flat.items() if name in LENGTH}
    free = {name: value for name, value in flat.items() if name in FREE}
    return length | ({"settings": free} if free else {})


def _flat(given: Mapping[str, Any], inside: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their whole names."""
    for name, value in given.items():
        if isinstance(value, dict) and value:
            yield from _flat(cast(dict[str, Any], value), f"{inside}{name}.")
        else:
            yield f"{inside}{name}", value


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


def change_settings(
    run: RunDir,
    config: Config,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Config:
    """Another length and other settings, also in the run directory. `meta.json` lists every change."""
    changes = {name: value for name, value in (("steps", steps), ("minutes", minutes)) if value is not None}
    changed = replace(load(type(config), file=run.path / "config.toml", flags=settings), **changes)
    if changed == config:
        return config
    done = checkpoint_step(latest(run.path))
    if changed.steps < done:
        raise ConfigError(f"steps={changed.steps}: {run.path} has already done {done} steps")
    meta = run.meta
    now = datetime.now(UTC).isoformat(timespec="seconds")
    if changes:
        entry = {"after": done, "from": config.steps, "to": changed.steps, "when": now}
        meta["lengthened"] = [*meta.get("lengthened", []), entry]
    if settings:
        entry = {"after": done, "settings": dict(settings), "when": now}
        meta["changed"] = [*meta.get("changed", []), entry]
    try:
        write_text(run.path / "config.toml", to_toml(changed))
    except OSError as error:
        raise StoreError(f"cannot write to {run.path}: {error.strerror}") from None
    run.write_meta(meta)
    return changed
