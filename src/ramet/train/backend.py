"""The seam of training: where weights live, how they are sampled and changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ramet.interfaces import Engine
from ramet.tokens.render import TokenRenderer
from ramet.train.loss import Loss
from ramet.train.metrics import Stats
from ramet.train.rows import Row


class Backend(Protocol):
    """One policy that can be sampled and trained, wherever it lives.

    For every update, the loop calls `forward_backward` one or more times, then `optim_step` or `discard`. After the one
    or more updates of a step it calls `publish`: version n is the policy after n steps. An error leaves the weights as
    they were.
    """

    supports_overlap: bool  # whether trees may be sampled while `forward_backward` and `optim_step` run

    @property
    def engine(self) -> Engine: ...
    @property
    def renderer(self) -> TokenRenderer: ...
    @property
    def version(self) -> int:
        """The version that new completions are sampled from; -1 while weights change, and between updates of a step."""
        ...

    async def forward_backward(self, rows: Sequence[Row], *, loss: Loss, temperature: float) -> Stats:
        """Add the gradient of the loss over `rows` to those of earlier calls; `temperature` is that of sampling."""
        ...

    async def logprobs(self, rows: Sequence[Row], *, temperature: float) -> Sequence[tuple[float, ...]]:
        """Log-probs under the current weights, in the shape of `Row.logprobs`: 0 where the mask is False."""
        ...

    async def optim_step(self, *, learning_rate: float, last: bool = True) -> float | None:
        """Clip and apply the gradient; returns its norm before clipping, None where a server does not report it.

        A norm that is not finite is a TrainError.
        """
        ...

    async def discard(self) -> None: ...  # drops the gradient

    async def publish(self, version: int, *, fresh: bool = False) -> None:
        """From now on the engine samples the current weights as `version`; with `fresh`, from an empty cache."""
        ...

    async def save(self, run: Path, *, step: int, keep: int) -> Path:
        """Write a checkpoint under `run`, then delete all but the newest `keep`."""
        ...

    async def load(self, checkpoint: Path) -> int:
        """Restore weights and optimiser, publish them; returns the steps done."""
        ...

    def close(self) -> None: ...
