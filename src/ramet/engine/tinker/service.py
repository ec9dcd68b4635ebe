"""The verbs of the Tinker API that ramet uses, in plain records.

    create, load_state                    an adapter that can be trained
    forward, forward_backward, optim_step
    save_state, save_weights_for_sampler
    sample

`sdk.py` puts the vendor's client behind them; tests put a model in this process there. Everything that fails raises an
`EngineError` of one line. Nothing here waits: `Calls` sets the deadlines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

LossName = Literal["cross_entropy", "importance_sampling", "ppo", "cispo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Datum:
    """One row as the API wants it: position i of every field belongs to the prediction of token i + 1.

    Example:
        The tokens 5, 6, 7, of which the last is trained: Datum(token_ids=(5, 6), targets=(6, 7),
        logprobs=(0.0, -0.1), advantages=(0.0, 0.5))
    """

    token_ids: tuple[int, ...]
    targets: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    advantages: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()  # empty: not sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam:
    """One step of AdamW."""

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 0.0  # 0: gradients are not clipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What one request brought. The token that ended it is among the tokens."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool  # by one of `stop_ids`, not by `max_tokens`


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What a server reports about itself."""

    server: str
    sdk: str
    models: tuple[str, ...]
    windows: tuple[int | None, ...] = ()  # longest sequence of each model, as far as known


class Sampler(Protocol):
    """One published version of the weights."""

    async def sample(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
        stop_ids: Sequence[int],
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> Sampled:
        """Cancelling ends the waiting only: the server goes on to the end of the request."""
        ...


class Trainer(Protocol):
    """An adapter on the server."""

    async def forward(self, data: Sequence[Datum]) -> list[tuple[float, ...]]:
        """The log-probs of the targets."""
        ...

    async def forward_backward(
        self, data: Sequence[Datum], *, loss: LossName, bounds: tuple[float, float] | None = None
    ) -> list[tuple[float, ...]]:
        """Add a gradient to those since the last step; returns the log-probs of the targets. `bounds`: of the ratio."""
        ...

    async def optim_step(self, adam: Adam) -> float | None:
        """Apply the gradient; returns its norm if the server reports it."""
        ...

    async def save_state(self, name: str) -> str:
        """Save weights and optimiser; returns the tinker:// path. A name can be used once."""
        ...

    async def save_weights_for_sampler(self) -> Sampler:
        """Publish the current weights."""
        ...

    async def download(self, name: str) -> bytes:
        """The adapter as a .tar.gz, saved on the server under `name`."""
        ...

    async def unload(self) -> None:
        """Free the adapter on the server, if the server can do that."""
        ...


class Service(Protocol):
    """A connection to a server."""

    async def describe(self) -> ServerFacts: ...
    async def create(self, *, base_model: str, rank: int, seed: int) -> Trainer: ...
    async def load_state(self, path: str, *, optimizer: bool) -> Trainer:
        """A new adapter with saved weights, and with their optimiser state."""
        ...

    async def sampler(self, path: str) -> Sampler:
        """Weights that were saved for sampling."""
        ...

    async def check(self) -> None:
        """Raise `EngineError` if nothing answers at the address of the server."""
        ...

    async def drain(self) -> None:
        """Wait until the server has ended the samples whose callers were cancelled."""
        ...

    def close(self) -> None: ...
