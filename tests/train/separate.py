"""A second backend, shaped like a remote training service: its own sampler weights, summed losses, token advantages.

It shares nothing with the local backend but the optimiser and the checkpoint files: log-probs come from plain forward
passes, one row at a time, and the engine samples a copy of the weights that changes only when a version is published.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import compress
from pathlib import Path

import torch
from torch import Tensor

from ramet.engine.local import LocalEngine
from ramet.models.folders import load_model
from ramet.tokens.huggingface import load_renderer
from ramet.train.local import checkpoint
from ramet.train.local.learner import apply_gradients, clip_gradients, discard_gradients, make_learner
from ramet.train.local.policy import prepare
from ramet.train.loss import CLIP_BOUNDS, Loss, token_advantages
from ramet.train.metrics import Stats
from ramet.train.rows import Row
from ramet.train.settings import TrainConfig, WarmConfig


class SeparateBackend:
    supports_overlap = True

    def __init__(self, config: TrainConfig | WarmConfig) -> None:
        self.folder = Path(config.model)
        self.skip_zero_credit = config.update.skip_zero_credit
        model = load_model(self.folder, device="cpu")
        self.sampled = copy.deepcopy(model)
        self.learner = make_learner(prepare(model, packed=False), config.update)
        self.renderer = load_renderer(self.folder)
        self.engine = LocalEngine(self.sampled, renderer=self.renderer, cache_tokens=config.sampler.cache_tokens)

    @property
    def version(self) -> int:
        return self.engine.policy_version

    async def forward_backward(self, rows: Sequence[Row], *, loss: Loss, temperature: float) -> Stats:
        total, clipped, gaps, entropies, num_skipped, num_read = 0.0, [], [], [], 0, 0
        for row, advantage in zip(rows, token_advantages(rows, loss), strict=True):
            if advantage == 0 and self.skip_zero_credit:
                num_skipped += 1
                continue
            logprobs, entropy = self._logprobs(row, temperature)
            num_read += len(row.read)
            recorded = None if row.logprobs is None else torch.tensor(list(compress(row.logprobs, row.mask)))
            terms, outside = token_losses(logprobs, recorded, advantage, loss)
            terms.sum().backward()
            total += float(terms.detach().sum())
            clipped.append(outside.float())
            entropies.append(entropy)
            if recorded is not None and row.versions == (self.version,):
                gaps.append((logprobs.detach() - recorded).abs())
        gap = torch.cat(gaps) if gaps else None
        return Stats(
            loss=total,
            num_rows=len(rows),
            num_skipped=num_skipped,
            num_trained=sum(row.num_trained for row in rows),
            num_tokens=sum(len(row.read) for row in rows),
            num_read=num_read,
            num_batches=len(rows) - num_skipped,
            clip_fraction=float(torch.cat(clipped).mean()),
            logprob_gap=None if gap is None else float(gap.mean()),
            logprob_gap_max=None if gap is None else float(gap.max()),
            entropy=float(torch.cat(entropies).mean()),
            kl=None,
        )

    def _logprobs(self, row: Row, temperature: float) -> tuple[Tensor, Tensor]:
        ids = torch.tensor([row.token_ids])
        logits = self.learner.policy.core(ids[:, :-1], use_cache=False).logits[0] / temperature
        places = torch.tensor(row.trained) - 1
        whole = logits[places].log_softmax(-1)
        chosen = whole.gather(1, ids[0, places + 1][:, None])[:, 0]
        return chosen, -(whole.exp() * whole).sum(-1).detach()

    async def optim_step(self, *, learning_rate: float) -> float:
        norm = clip_gradients(self.learner)
        apply_gradients(self.learner, learning_rate=learning_rate)
        return norm

    async def discard(self) -> None:
        discard_gradients(self.learner)

    async def publish(self, version: int, *, fresh: bool = False) -> None:
        with self.engine.updating(version=version):
            self.sampled.load_state_dict(self.learner.policy.core.state_dict())

    async def save(self, run: Path, *, step: int, keep: int) -> Path:
        return checkpoint.save(self.learner, run, step=step, tokenizer=self.folder, keep=keep)

    async def load(self, folder: Path) -> int:
        step = checkpoint.load_state(self.learner, folder)
        await self.publish(step)
        return step

    def close(self) -> None:
        self.engine.close()


def token_losses(logprobs: Tensor, recorded: Tensor | None, advantage: float, loss: Loss) -> tuple[Tensor, Tensor]:
    """The loss of every token, to be summed, and which of them were clipped."""
    if loss.kind == "plain" or recorded is None:
        return -advantage * logprobs, torch.zeros_like(logprobs, dtype=torch.bool)
    low, high = loss.bounds or CLIP_BOUNDS[loss.kind]
    ratio = (logprobs - recorded).exp()
    if loss.kind == "cispo":
        return -ratio.clamp(low, high).detach() * advantage * logprobs, (ratio < low) | (ratio > high)
    outside = ratio > high if advantage > 0 else (ratio < low) & (advantage < 0)
    return -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage), outside
