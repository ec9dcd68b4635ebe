"""The local backend: one module in this process that the engine samples from and the learner trains."""

# pyright: standard

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio.to_thread
import torch
from torch import Tensor

from ramet.engine.local import LocalEngine
from ramet.models.folders import load_model, model_folder
from ramet.tokens.huggingface import load_renderer
from ramet.tokens.render import TokenRenderer
from ramet.train.local.checkpoint import load_state, save
from ramet.train.local.forward import row_logprobs
from ramet.train.local.gradients import LogprobFn, current_logprobs, forward_backward
from ramet.train.local.learner import (
    Learner,
    add_gradients,
    apply_gradients,
    clip_gradients,
    discard_gradients,
    make_learner,
    missing_bytes,
)
from ramet.train.local.overhead import Overhead
from ramet.train.local.policy import Lora, Policy, prepare
from ramet.train.loss import Loss, Selection, select
from ramet.train.metrics import Stats
from ramet.train.rows import Row
from ramet.train.settings import TrainConfig, WarmConfig

T = TypeVar("T")
Reference = Callable[[Sequence[Row], float], Tensor]  # log-probs of rows at a temperature
BETWEEN_VERSIONS = -1


class LocalBackend:
    """Engine and learner of one run. They share the weights, so publishing a version costs nothing.

    With `threaded`, updates run in a worker thread, so that trees of the next step continue meanwhile.
    """

    supports_overlap = True

    def __init__(
        self,
        learner: Learner,
        engine: LocalEngine,
        *,
        renderer: TokenRenderer,
        folder: Path,
        micro_batch_tokens: int,
        skip_zero_credit: bool = False,
        reference: Reference | None = None,
        threaded: bool = False,
    ) -> None:
        self.learner = learner
        self.engine = engine
        self.renderer = renderer
        self.folder = folder  # where the model came from; its tokenizer goes into every checkpoint
        self.micro_batch_tokens = micro_batch_tokens
        self.skip_zero_credit = skip_zero_credit
        self.reference = reference
        self.threaded = threaded
        self._between = False  # whether some, but not all updates of a step have been made
        self._overhead = Overhead(learner.policy.core)

    @property
    def version(self) -> int:
        """The version of the weights; no valid number in the middle of an optimiser step, or between two of a step."""
        return self.engine.policy_version if self.learner.consistent and not self._between else BETWEEN_VERSIONS

    async def forward_backward(self, rows: Sequence[Row] | Selection, *, loss: Loss, temperature: float) -> Stats:
        """The gradient of `rows`, or of what was selected of them in another process."""
        skips = self.skip_zero_credit
        selected = rows if isinstance(rows, Selection) else select(rows, loss, skip_zero_credit=skips)
        work = partial(
            forward_backward,
            self.learner.policy,
            selected,
            loss=loss,
            micro_batch_tokens=self.micro_batch_tokens,
            temperature=temperature,
            version=self.engine.policy_version,
            entropy=any(row.logprobs is not None for row in selected.rows),
            reference=self._reference_at(temperature) if loss.kl else None,
            after_backward=partial(add_gradients, self.learner),
        )
        return await self._compute(work)

    def _reference_at(self, temperature: float) -> LogprobFn | None:
        reference = self.reference
        return None if reference is None else lambda batch: reference(batch, temperature)

    async def logprobs(self, rows: Sequence[Row], *, temperature: float) -> list[tuple[float, ...]]:
        work = partial(
            current_logprobs,
            self.learner.policy,
            rows,
            micro_batch_tokens=self.micro_batch_tokens,
            temperature=temperature,
        )
        return await self._compute(work)

    async def optim_step(self, *, learning_rate: float, last: bool = True) -> float:
        return await self._run(partial(self._optim_step, learning_rate, last=last))

    def _optim_step(self, learning_rate: float, *, last: bool) -> float:
        """The engine rests while weights change; what it samples after the last update has the next version."""
        norm = clip_gradients(self.learner)
        with self.engine.updating(version=None if last else self.engine.policy_version):
            apply_gradients(self.learner, learning_rate=learning_rate)
            self._between = not last
        return norm

    async def discard(self) -> None:
        discard_gradients(self.learner)

    async def publish(self, version: int, *, fresh: bool = False) -> None:
        if fresh or version != self.engine.policy_version:
            with self.engine.updating(version=version):
                pass
        self._between = False

    async def save(self, run: Path, *, step: int, keep: int) -> Path:
        return await self._run(partial(save, self.learner, run, step=step, tokenizer=self.folder, keep=keep))

    async def load(self, checkpoint: Path) -> int:
        step = load_state(self.learner, checkpoint)
        await self.publish(step, fresh=True)
        return step

    def close(self) -> None:
        """Stop the engine and free the memory, on the GPU too: the next model takes a share of what is free."""
        self.engine.close()
        self._overhead.restore()
        del self.engine, self.learner, self.reference
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _compute(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run a forward or backward pass, which may compile kernels."""

        def undisturbed() -> T:
            with self.engine.undisturbed():
                return work()

        return self._run(undisturbed)

    def _run(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run an update, in a worker thread if trees continue meanwhile. A cancelled caller waits for its end."""
        return anyio.to_thread.run_sync(work) if self.threaded else _call(work)


async def _call(work: Callable[[], T]) -> T:
    return work()


def open_backend(config: TrainConfig | WarmConfig) -> LocalBackend:
    """Load the model of a run and make it ready to be sampled and trained."""
    policy = load_policy(config)
    learner = make_learner(policy, config.update)
    reference = _load_reference(config) if config.loss.kl else None
    sampler, renderer = config.sampler, load_renderer(model_folder(config.model))
    engine = LocalEngine(  # last: by default its cache takes half of the memory that is left
        policy.core,
        renderer=renderer,
        max_batch=sampler.max_batch,
        cache_tokens=sampler.cache_tokens,
        spare_bytes=missing_bytes(learner),
        window=sampler.window,
        keep_cache=sampler.keep_cache,
    )
    return _backend(config, learner, engine, renderer, reference)


def learning_backend(config: TrainConfig | WarmConfig, engine: LocalEngine) -> LocalBackend:
    """The same for a process that only learns: `engine` stands in for that of another process."""
    learner = make_learner(load_policy(config), config.update)
    reference = _load_reference(config) if config.loss.kl else None
    return _backend(config, learner, engine, load_renderer(model_folder(config.model)), reference, threaded=False)


def _backend(
    config: TrainConfig | WarmConfig,
    learner: Learner,
    engine: LocalEngine,
    renderer: TokenRenderer,
    reference: Reference | None,
    *,
    threaded: bool | None = None,
) -> LocalBackend:
    overlaps = isinstance(config, TrainConfig) and config.overlap > 0
    return LocalBackend(
        learner,
        engine,
        renderer=renderer,
        folder=model_folder(config.model),
        micro_batch_tokens=config.update.micro_batch_tokens,
        skip_zero_credit=config.update.skip_zero_credit,
        reference=reference,
        threaded=overlaps if threaded is None else threaded,
    )


def load_policy(config: TrainConfig | WarmConfig, *, trains: bool = True) -> Policy:
    """The model of a run with its adapters, if it has any. Without `trains` it is only sampled."""
    sampler, update = config.sampler, config.update
    model = load_model(model_folder(config.model), device=sampler.device, dtype=sampler.dtype)
    lora = Lora(rank=update.lora_rank, alpha=update.lora_alpha) if update.lora_rank else None
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        return prepare(
            model,
            packed=update.packed,
            checkpointing=update.gradient_checkpointing and trains,
            lora=lora,
            compiled=update.compile and trains,
        )


def _load_reference(config: TrainConfig | WarmConfig) -> Reference:
    """Log-probs under the model as it was before the run, which the KL term pulls towards."""
    model = load_model(model_folder(config.model), device=config.sampler.device, dtype=config.sampler.dtype)
    policy = prepare(model, packed=config.update.packed)

    def logprobs(rows: Sequence[Row], temperature: float) -> Tensor:
        return row_logprobs(policy, rows, temperature=temperature).logprobs

    return logprobs
