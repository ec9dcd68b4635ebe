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
from transformers import PreTrainedModel

from ramet.engine.local import LocalEngine
from ramet.models.folders import load_model
from ramet.tokens.huggingface import load_renderer
from ramet.train.local import checkpoint
from ramet.train.local.learner import apply_gradients, clip_gradients, discard_gradients, make_learner
from ramet.train.local.policy import prepare
from ramet.train.loss import CLIP_BOUNDS, Loss, share, token_advantages, totals
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
        self.reference = copy.deepcopy(model) if config.loss.kl else None
        self.learner = make_learner(prepare(model, packed=False), config.update)
        self.between = False  # whether the learner's weights are not those of a version
        self.renderer = load_renderer(self.folder)
        self.engine = LocalEngine(self.sampled, renderer=self.renderer, cache_tokens=config.sampler.cache_tokens)

    @property
    def version(self) -> int:
        return -1 if self.between else self.engine.policy_version

    async def forward_backward(self, rows: Sequence[Row], *, loss: Loss, temperature: float) -> Stats:
        total, clipped, gaps, entropies, kls, num_skipped, num_read = 0.0, [], [], [], [], 0, 0
        counted = totals(rows)
        for row, advantage in zip(rows, token_advantages(rows, loss), strict=True):
            if advantage == 0 and self.skip_zero_credit and not loss.kl:
                num_skipped += 1
                continue
            logprobs, entropy = self._logprobs(row, temperature)
            num_read += len(row.read)
            recorded, proximal = (
                None if values is None else torch.tensor(list(compress(values, row.mask)))
                for values in (row.logprobs, row.proximal)
            )
            terms, outside = token_losses(logprobs, recorded, proximal, advantage, loss)
            if loss.kl:
                kl = self._kl(row, logprobs, recorded if proximal is None else proximal, loss, temperature)
                terms = terms + loss.kl * share(row, counted, loss) * kl
                kls.append(kl.detach())
            terms.sum().backward()
            total += float(terms.detach().sum())
            clipped.append(outside.float())
            entropies.append(entropy)
            if recorded is not None and proximal is None and row.versions == (self.version,):
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
            kl=float(torch.cat(kls).mean()) if kls else None,
        )

    def _kl(self, row: Row, logprobs: Tensor, then: Tensor | None, loss: Loss, temperature: float) -> Tensor:
        assert self.reference is not None
        with torch.no_grad():
            ahead = self._logprobs(row, temperature, self.reference)[0]
        kl = (ahead - logprobs).exp() - (ahead - logprobs) - 1
        return (
            kl if loss.kl_gradient == "plain" else kl * (logprobs - (logprobs.detach() if then is None else then)).exp()
        )

    def _logprobs(self, row: Row, temperature: float, model: PreTrainedModel | None = None) -> tuple[Tensor, Tensor]:
        ids = torch.tensor([row.token_ids])
        logits = (model or self.learner.policy.core)(ids[:, :-1], use_cache=False).logits[0] / temperature
        places = torch.tensor(row.trained) - 1
        whole = logits[places].log_softmax(-1)
        chosen = whole.gather(1, ids[0, places + 1][:, None])[:, 0]
        return chosen, -(whole.exp() * whole).sum(-1).detach()

    async def logprobs(self, rows: Sequence[Row], *, temperature: float) -> list[tuple[float, ...]]:
        found: list[tuple[float, ...]] = []
        for row in rows:
            with torch.no_grad():
                values = iter(self._logprobs(row, temperature)[0].tolist())
            found.append(tuple(next(values) if trained else 0.0 for trained in row.mask))
        return found

    async def optim_step(self, *, learning_rate: float, last: bool = True) -> float:
        norm = clip_gradients(self.learner)
        apply_gradients(self.learner, learning_rate=learning_rate)
        self.between = True
        return norm

    async def discard(self) -> None:
        discard_gradients(self.learner)

    async def publish(self, version: int, *, fresh: bool = False) -> None:
        with self.engine.updating(version=version):
            self.sampled.load_state_dict(self.learner.policy.core.state_dict())
        self.between = False

    async def save(self, run: Path, *, step: int, keep: int) -> Path:
        return checkpoint.save(self.learner, run, step=step, tokenizer=self.folder, keep=keep)

    async def load(self, folder: Path) -> int:
        step = checkpoint.load_state(self.learner, folder)
        await self.publish(step)
        return step

    def close(self) -> None:
        self.engine.close()


def token_losses(
    logprobs: Tensor, recorded: Tensor | None, proximal: Tensor | None, advantage: float, loss: Loss
) -> tuple[Tensor, Tensor]:
    """The loss of every token, to be summed, and which of them were clipped."""
    if loss.kind == "plain" or recorded is None:
        return -advantage * logprobs, torch.zeros_like(logprobs, dtype=torch.bool)
    low, high = loss.bounds or CLIP_BOUNDS[loss.kind]
    anchor = proximal if proximal is not None else logprobs.detach() if loss.ceiling else recorded
    ratio = (logprobs - anchor).exp()
    weight = (anchor - recorded).exp().clamp(max=loss.ceiling) if loss.ceiling else torch.ones_like(recorded)
    if loss.kind == "cispo":
        return -ratio.clamp(low, high).detach() * advantage * weight * logprobs, (ratio < low) | (ratio > high)
    outside = ratio > high if advantage > 0 else (ratio < low) & (advantage < 0)
    return -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage) * weight, outside
