"""The settings under `collect`: where the trees of a training run are played."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.errors import ConfigError
from ramet.plugins import GIVEN


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectConfig:
    """Trees are played in this process, or in others that send their engine calls to it."""

    processes: int = 0  # that play trees; 0: this process plays them

    def __post_init__(self) -> None:
        if self.processes < 0:
            raise ConfigError(f"collect.processes is a whole number from 0 up; got {self.processes!r}")


def check_references(collect: CollectConfig, **references: str) -> None:
    """Refuse objects of a Python program where other processes play trees: they cannot find them by name."""
    given = [name for name, reference in references.items() if reference.startswith(GIVEN)]
    if collect.processes and given:
        raise ConfigError(
            f"collect.processes={collect.processes} needs {given[0]} by reference, like file.py:Name: another process "
            "cannot use an object of this program"
        )
