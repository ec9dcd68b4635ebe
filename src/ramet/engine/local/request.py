"""One request and its state inside the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ramet.engine.local.cache import Page
from ramet.types import Meter


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are sampled. Temperature 0 is greedy, and reports log-probs at temperature 1."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """A prompt and the tokens sampled after it.

    `planned` tokens have been handed to the device to compute; `ids` are the tokens known on the host. While a step is
    in flight, `planned` runs ahead of `ids`.
    """

    ids: list[int]
    sampling: Sampling
    node_id: str = ""
    meter: Meter = field(default_factory=Meter)
    deliver: Callable[[Request], None] = lambda request: None

    prompt_tokens: int = 0
    version: int = -1  # version of the weights that sampled the first token
    cached_tokens: int = 0
    logprobs: list[float] = field(default_factory=list[float])
    finish: Literal["stop", "length"] | None = None
    error: str | None = None
    cancelled: bool = False

    admissions: int = 0  # how often it was admitted
    salt: int = 0  # of the part of the cache that it uses
    slot: int = -1  # index of its state on the device while it runs
    pages: list[Page] = field(default_factory=list[Page])
    linked: int = 0  # leading pages that are full and in the tree
    synced: int = 0  # leading pages whose numbers the device has
    planned: int = 0
    prefill_end: int = 0  # tokens to compute before the next one can be sampled
    draws: int = 0  # tokens sampled or being sampled

    filtered: bool = field(init=False)  # whether top_p or top_k leaves tokens out

    def __post_init__(self) -> None:
        self.filtered = self.sampling.top_p < 1 or self.sampling.top_k > 0
        self.prompt_tokens = len(self.ids)
        self.prefill_end = len(self.ids)

    @property
    def sampled(self) -> list[int]:
        return self.ids[self.prompt_tokens :]

    @property
    def done(self) -> bool:
        return self.finish is not None or self.error is not None or self.cancelled

    def accept(self, token: int, logprob: float, decode: Callable[[Sequence[int]], str]) -> None:
        """Append a sampled token; sets `finish` when it was the last."""
        sampling, logprobs = self.sampling, self.logprobs
        self.ids.append(token)
        logprobs.append(logprob)
        self.meter.tokens = number = len(logprobs)
        if token in sampling.stop_tokens or (sampling.stop and self._completes_stop(decode)):
            self.finish = "stop"
        elif number >= sampling.max_tokens:
            self.finish = "length"

    def _completes_stop(self, decode: Callable[[Sequence[int]], str]) -> bool:
        """Whether the newest token completes a stop string. A character takes up to four tokens."""
        longest = max(map(len, self.sampling.stop))
        tail = decode(self.ids[max(self.prompt_tokens, len(self.ids) - 4 * longest - 4) :])
        return any(mark in tail for mark in self.sampling.stop)
