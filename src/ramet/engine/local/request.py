"""One request on its way through the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ramet.engine.local.cache import Page
from ramet.types import Meter


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. Temperature 0 takes the likeliest, and its log-prob is that of temperature 1."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """A prompt and what has been sampled after it.

    Two clocks: `planned` tokens have been handed to the device to compute, `ids` are known here. With a step in flight
    the first runs ahead of the second.
    """

    ids: list[int]
    sampling: Sampling
    node_id: str = ""
    meter: Meter = field(default_factory=Meter)
    deliver: Callable[[Request], None] = lambda sequence: None

    prompt_tokens: int = 0
    version: int = -1  # weights that sampled the first token
    cached_tokens: int = 0
    logprobs: list[float] = field(default_factory=list[float])
    finish: Literal["stop", "length"] | None = None
    error: str | None = None
    cancelled: bool = False

    admissions: int = 0  # how often it began to run
    slot: int = -1  # where its state lives on the device while it runs
    pages: list[Page] = field(default_factory=list[Page])
    linked: int = 0  # leading pages that are full, and in the tree
    tabled: int = 0  # leading pages that the device knows of
    planned: int = 0
    goal: int = 0  # tokens to compute before the next one can be sampled
    draws: int = 0  # tokens sampled or being sampled

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.ids)
        self.goal = len(self.ids)

    @property
    def sampled(self) -> list[int]:
        return self.ids[self.prompt_tokens :]

    @property
    def prefilling(self) -> bool:
        return self.planned < self.goal

    @property
    def done(self) -> bool:
        return self.finish is not None or self.error is not None or self.cancelled

    def accept(self, token: int, logprob: float, decode: Callable[[Sequence[int]], str]) -> None:
        """One more token is known."""
        sampling = self.sampling
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.meter.tokens = len(self.logprobs)
        if token in sampling.stop_tokens or (sampling.stop and self._spelled(decode)):
            self.finish = "stop"
        elif len(self.logprobs) >= sampling.max_tokens:
            self.finish = "length"

    def _spelled(self, decode: Callable[[Sequence[int]], str]) -> bool:
        """Whether the newest token completed a stop string. A character takes up to four tokens."""
        longest = max(map(len, self.sampling.stop))
        tail = decode(self.ids[max(self.prompt_tokens, len(self.ids) - 4 * longest - 4) :])
        return any(mark in tail for mark in self.sampling.stop)
