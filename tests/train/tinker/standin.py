"""A service of the Tinker API in this process: a small model, LoRA adapters, and the manners of several servers.

Losses and reductions are written here once more, by the tables of the servers: nothing is shared with the backend but
the learner's module and optimiser.
"""

from __future__ import annotations

import copy
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import torch
from safetensors.torch import save
from torch import Tensor
from transformers import PreTrainedModel

from ramet.engine.tinker.service import Adam, Datum, LossName, Sampled, Sampler, ServerFacts, Trainer
from ramet.errors import EngineError
from ramet.train.local.policy import Lora, Policy, prepare

ALPHA = 32.0
OWN_BETAS = (0.9, 0.95)
OWN_BOUNDS = (0.8, 1.2)
MODEL = "tiny"


@dataclass(frozen=True, kw_only=True)
class Manners:
    """What a server does with what it is sent."""

    reduction: str = "sum"  # or row_mean; token_mean: over all tokens of a call, which no known server does
    snapshots: bool = True  # False, as SkyRL on JAX: one place for trained and sampled weights
    clips: bool = True
    betas: bool = True
    bounds: bool = True
    norms: bool = True  # whether optim_step reports the gradient norm


SKYRL_JAX = Manners(reduction="row_mean", snapshots=False, clips=False)
FSDP = Manners(snapshots=False, clips=False, betas=False, bounds=False)
HOSTED = Manners()


@dataclass
class StandIn:
    """`fault` is called with the name of every verb: it may raise, or return something to wait for."""

    model: PreTrainedModel
    manners: Manners = HOSTED
    fault: Callable[[str], Any] = lambda verb: None
    models: tuple[str, ...] = (MODEL,)
    gone: bool = False
    states: dict[str, Any] = field(default_factory=dict)
    trainers: list[StandInTrainer] = field(default_factory=list)
    verbs: list[str] = field(default_factory=list)
    generated: int = 0
    closed: bool = False

    async def enter(self, verb: str) -> None:
        self.verbs.append(verb)
        await anyio.lowlevel.checkpoint()
        waiting = self.fault(verb)
        if waiting is not None:
            await waiting
        if self.gone:
            await anyio.sleep_forever()

    async def describe(self) -> ServerFacts:
        await self.enter("describe")
        return ServerFacts(server="stand-in", sdk="none", models=self.models)

    async def create(self, *, base_model: str, rank: int, seed: int) -> Trainer:
        await self.enter("create")
        assert base_model in self.models
        self.trainers.append(StandInTrainer(self, adapted(self.model, rank, seed), rank))
        return self.trainers[-1]

    async def load_state(self, path: str, *, optimizer: bool) -> Trainer:
        await self.enter("load_state")
        if path not in self.states:
            raise EngineError(f"404: no checkpoint {path}")
        rank, weights, moments = copy.deepcopy(self.states[path])
        trainer = StandInTrainer(self, adapted(self.model, rank, 0), rank)
        trainer.policy.model.load_state_dict(weights)
        if optimizer:
            trainer.adam.load_state_dict(moments)
        self.trainers.append(trainer)
        return trainer

    async def sampler(self, path: str) -> Sampler:
        await self.enter("sampler")
        trainer = await self.load_state(path, optimizer=False)
        return await trainer.save_weights_for_sampler()

    async def check(self) -> None:
        if self.gone:
            raise EngineError("nothing answers at stand-in")

    async def drain(self) -> None:
        await self.enter("drain")

    def close(self) -> None:
        self.closed = True


def adapted(model: PreTrainedModel, rank: int, seed: int) -> Policy:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return prepare(copy.deepcopy(model), packed=False, lora=Lora(rank=rank, alpha=ALPHA))


class StandInTrainer:
    def __init__(self, service: StandIn, policy: Policy, rank: int) -> None:
        self.service, self.policy, self.rank = service, policy, rank
        self.adam = torch.optim.AdamW(policy.trained, lr=0.0, weight_decay=0.0)
        self.num_rows = 0
        self.unloaded = False

    async def forward(self, data: Sequence[Datum]) -> list[tuple[float, ...]]:
        await self.service.enter("forward")
        with torch.no_grad():
            return [tuple(self._logprobs(datum).tolist()) for datum in data]

    def _logprobs(self, datum: Datum) -> Tensor:
        logits = self.policy.core(torch.tensor([datum.token_ids]), use_cache=False).logits[0]
        return logits.log_softmax(-1).gather(1, torch.tensor(datum.targets)[:, None])[:, 0]

    async def forward_backward(
        self, data: Sequence[Datum], *, loss: LossName, bounds: tuple[float, float] | None = None
    ) -> list[tuple[float, ...]]:
        await self.service.enter("forward_backward")
        found = []
        all_weights = sum(sum(datum.weights) for datum in data)
        for datum in data:
            now = self._logprobs(datum)
            self._reduced(self._terms(now, datum, loss, bounds), datum, all_weights).backward()
            self.num_rows += 1
            found.append(tuple(now.detach().tolist()))
        return found

    def _terms(self, now: Tensor, datum: Datum, loss: LossName, bounds: tuple[float, float] | None) -> Tensor:
        then, advantages = (torch.tensor(one, dtype=now.dtype) for one in (datum.logprobs, datum.advantages))
        if loss == "cispo" and not self.service.manners.bounds:
            bounds = OWN_BOUNDS
        ratio = (now - then).exp()
        clamped = ratio if bounds is None else ratio.clamp(*bounds)
        if loss == "cispo":
            return -clamped.detach() * now * advantages
        if loss == "ppo":
            return -torch.minimum(ratio * advantages, clamped * advantages)
        assert loss == "importance_sampling"
        return -ratio * advantages

    def _reduced(self, terms: Tensor, datum: Datum, all_weights: float) -> Tensor:
        if self.service.manners.reduction == "sum":
            return terms.sum()
        weights = torch.tensor(datum.weights or (1.0,) * len(datum.targets), dtype=terms.dtype)
        if self.service.manners.reduction == "token_mean":
            return (weights * terms).sum() / all_weights
        return (weights * terms).sum() / weights.sum().clamp(min=1e-9)

    async def optim_step(self, adam: Adam) -> float | None:
        await self.service.enter("optim_step")
        manners = self.service.manners
        grads = [one.grad for one in self.policy.trained if one.grad is not None]
        if manners.reduction == "row_mean" and self.num_rows:
            for grad in grads:
                grad /= self.num_rows
        norm = float(torch.stack([grad.norm() for grad in grads]).norm()) if grads else 0.0
        if manners.clips and adam.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self.policy.trained, adam.max_grad_norm)
        own = {"betas": adam.betas, "eps": adam.eps, "weight_decay": adam.weight_decay}
        for group in self.adam.param_groups:
            group |= {"lr": adam.learning_rate} | (own if manners.betas else {"betas": OWN_BETAS, "eps": 1e-8})
        self.adam.step()
        self.adam.zero_grad()
        self.num_rows = 0
        return norm if manners.norms else None

    async def save_state(self, name: str) -> str:
        await self.service.enter("save_state")
        path = f"tinker://{id(self)}/weights/{name}"
        if path in self.service.states:
            raise EngineError(f"409: {path} exists")
        state = (self.rank, self.policy.model.state_dict(), self.adam.state_dict())
        self.service.states[path] = copy.deepcopy(state)
        return path

    async def save_weights_for_sampler(self) -> Sampler:
        await self.service.enter("save_weights_for_sampler")
        core = self.policy.core
        return StandInSampler(self.service, copy.deepcopy(core) if self.service.manners.snapshots else core)

    async def download(self, name: str) -> bytes:
        await self.service.enter("download")
        return archive(self.policy, self.rank)

    async def unload(self) -> None:
        await self.service.enter("unload")
        self.unloaded = True


@dataclass
class StandInSampler:
    service: StandIn
    core: PreTrainedModel

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
        await self.service.enter("sample")
        dice = torch.Generator().manual_seed(seed)
        fed, cache, ids, logprobs = torch.tensor([list(token_ids)]), None, [], []
        with torch.no_grad():
            while len(ids) < max_tokens and (not ids or ids[-1] not in stop_ids):
                out: Any = self.core(fed, past_key_values=cache, use_cache=True)
                cache, whole = out.past_key_values, out.logits[0, -1].float().log_softmax(-1)
                heat = (whole / temperature).softmax(-1) if temperature else None
                drawn = int(whole.argmax()) if heat is None else int(torch.multinomial(heat, 1, generator=dice))
                ids.append(drawn)
                logprobs.append(float(whole[drawn]))
                fed = torch.tensor([[drawn]])
        self.service.generated += len(ids)
        return Sampled(token_ids=tuple(ids), logprobs=tuple(logprobs), stopped=bool(ids) and ids[-1] in stop_ids)


def archive(policy: Policy, rank: int) -> bytes:
    """As SkyRL writes it: PEFT's names, and no target modules in the config."""
    config = {"r": rank, "lora_alpha": ALPHA, "target_modules": None, "peft_type": "LORA"}
    weights = {
        f"base_model.model.{name.replace('.default', '')}": one.detach().contiguous()
        for name, one in policy.core.named_parameters()
        if ".lora_" in name
    }
    files = {"adapter_config.json": json.dumps(config).encode(), "adapter_model.safetensors": save(weights)}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as packed:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return out.getvalue()
