"""How the demonstrations of a taskset act: options that all tasksets with an oracle share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ramet.errors import ConfigError, did_you_mean
from ramet.interfaces import Oracle
from ramet.tasks.dice import Dice
from ramet.tasks.erring import Erring, Habits

STYLES = ("cuts", "uniform", "mixed")
UNIFORM_SHARE = 0.8  # of demonstrations in the style "mixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """`style`: where nodes split; `mistakes`: share of nodes that make one; `ask_tokens`: ask for what clones need.

    `cuts` splits at random places, `uniform` by the same rule at every depth, `mixed` draws one for each demonstration.
    """

    style: str = "cuts"
    mistakes: float = 0.0
    ask_tokens: bool = False

    def is_uniform(self, *place: object) -> bool:
        """Whether the demonstration of this task and seed is uniform."""
        return self.style == "uniform" or (self.style == "mixed" and Dice("style", *place).chance(UNIFORM_SHARE))

    def show(self, oracle: Oracle, *, solo: Oracle, habits: Habits, seed: Sequence[object]) -> Oracle:
        """The oracle as it is, or making mistakes; `solo` solves the same task without clones."""
        if not self.mistakes:
            return oracle
        return Erring(oracle, solo=solo, habits=habits, mistakes=self.mistakes, seed=seed)


@runtime_checkable
class HasManner(Protocol):
    """A taskset whose demonstrations can act in several ways."""

    @property
    def manner(self) -> Manner: ...


def make_manner(taskset: str, *, style: str = "cuts", mistakes: float = 0.0, ask_tokens: bool = False) -> Manner:
    """The options, checked."""
    if style not in STYLES:
        raise ConfigError(f"{taskset} has no style {style!r}: {did_you_mean(style, STYLES)}")
    if isinstance(mistakes, bool) or not 0 <= mistakes <= 1:
        raise ConfigError(f"{taskset}: mistakes is a share from 0 to 1; got {mistakes!r}")
    if not isinstance(ask_tokens, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"{taskset}: ask_tokens is true or false; got {ask_tokens!r}")
    return Manner(style=style, mistakes=mistakes, ask_tokens=ask_tokens)
