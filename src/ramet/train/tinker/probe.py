"""Find out what a server of the Tinker API does with what it is sent.

Servers accept the same verbs and do different things with them: they divide losses by different counts, and some ignore
gradient clipping, betas or the bounds of a ratio without an error. `probe` trains an adapter of its own for a few
steps, looks at gradient norms and log-probs, and throws the adapter away.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from ramet.engine.tinker.calls import Calls
from ramet.engine.tinker.service import Adam, Datum, Sampled, Sampler, ServerFacts, Service, Trainer
from ramet.errors import ConfigError, EngineError, did_you_mean
from ramet.train.tinker.datum import Reduction

T = TypeVar("T")
IDS = tuple(range(1, 10))  # ids that every vocabulary has
SUMS_TOKENS = ("thinkingmachines",)  # hosts of servers that sum token losses and report no gradient norm
RATIO = 4.0  # how far the recorded log-probs of the test of bounds are from the current ones
MOVED, SAME = 1e-3, 0.02  # changes of log-probs: a step that had an effect; weights that are the same
NOT_PROBED = "not probed, because backend.reduction is given: update.max_grad_norm and update.betas may be ignored"
STILL = Adam(learning_rate=0.0, betas=(0.0, 0.0))
FAR = Adam(learning_rate=0.5, betas=(0.0, 0.0), eps=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a server is and what it does."""

    server: str  # like "SkyRL"
    sdk: str  # the client package and its version
    models: tuple[str, ...]  # base models it offers
    reduction: Reduction  # sum of token losses, or the mean over rows of each row's mean
    keeps_versions: bool  # whether a published version stays what it was while training continues
    clips_gradients: bool  # whether update.max_grad_norm has an effect
    honours_betas: bool  # whether update.betas and update.weight_decay have an effect
    cispo_bounds: bool  # whether loss.bounds have an effect on cispo
    max_rank: int | None = None  # largest LoRA rank; None: not known
    notes: tuple[str, ...] = ()  # sentences for the user


async def probe(service: Service, *, base_model: str, deadline_s: float, rank: int = 1) -> Capabilities:
    """What the server behind `service` does, found out with an adapter that is thrown away."""
    calls = Calls(service, deadline_s=deadline_s)
    facts = await calls.run("get_server_capabilities", service.describe)
    check_served(base_model, facts)
    trainer = await calls.run(
        "create_lora_training_client", lambda: service.create(base_model=base_model, rank=rank, seed=0)
    )
    trial = _Trial(calls, trainer)
    try:
        return await _find(trial, facts)
    finally:
        with suppress(EngineError):
            await trial.run("unload", trainer.unload)


def check_served(base_model: str, facts: ServerFacts) -> None:
    """Refuse a model that the server does not have, as far as it names them."""
    if facts.models and base_model not in facts.models:
        raise ConfigError(f"{facts.server} has no model {base_model!r}: {did_you_mean(base_model, facts.models)}")


def assume(facts: ServerFacts, reduction: Reduction) -> Capabilities:
    """What is safe to assume of a server that is not probed."""
    return Capabilities(
        server=facts.server,
        sdk=facts.sdk,
        models=facts.models,
        reduction=reduction,
        keeps_versions=False,
        clips_gradients=False,
        honours_betas=False,
        cispo_bounds=False,
        notes=(NOT_PROBED,),
    )


async def _find(trial: _Trial, facts: ServerFacts) -> Capabilities:
    await trial.start()
    one, two = await trial.norm(1), await trial.norm(2)
    return with_notes(
        Capabilities(
            server=facts.server,
            sdk=facts.sdk,
            models=facts.models,
            reduction=reduction_of(one, two, facts),
            cispo_bounds=_close(await trial.clamped_norm(), one),
            clips_gradients=not await trial.moves(replace(FAR, max_grad_norm=1e-6), 1.0),
            honours_betas=not await trial.moves(FAR, 0.0),
            keeps_versions=await trial.keeps_versions(),
        )
    )


def reduction_of(one: float | None, two: float | None, facts: ServerFacts) -> Reduction:
    """From the gradient norms of a row, and of the same row twice."""
    if one is not None and two is not None:
        if _close(two, 2 * one):
            return "sum"
        if _close(two, one):
            return "row_mean"
    elif any(host in facts.server for host in SUMS_TOKENS):
        return "sum"
    raise ConfigError(
        f"cannot find out how {facts.server} reduces losses (gradient norms {one} and {two}): "
        "give backend.reduction=sum or row_mean"
    )


def with_notes(found: Capabilities) -> Capabilities:
    """The same, with a sentence for every setting that has no effect and every verb that works differently."""
    notes = (
        (found.clips_gradients, "gradients are not clipped: update.max_grad_norm has no effect"),
        (found.honours_betas, "the optimiser is the server's: update.betas and update.weight_decay have no effect"),
        (found.cispo_bounds, "bounds of cispo are the server's: the loss is computed here, with one more forward pass"),
        (found.keeps_versions, "published weights are not snapshots: overlap must be 0"),
    )
    return replace(found, notes=tuple(text for holds, text in notes if not holds))


class _Trial:
    """One row and an adapter to try it on."""

    def __init__(self, calls: Calls, trainer: Trainer) -> None:
        self.calls, self.trainer = calls, trainer
        number = len(IDS) - 1
        self.row = Datum(token_ids=IDS[:-1], targets=IDS[1:], advantages=(1.0,) * number, weights=(1.0,) * number)

    async def run(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        return await self.calls.run(what, work)

    async def start(self) -> None:
        """Use up what an earlier adapter may have left in this place, and record the log-probs of the row."""
        with suppress(EngineError):  # some servers refuse a step without a gradient
            await self.step(STILL)
        self.row = replace(self.row, logprobs=await self.logprobs())

    async def logprobs(self) -> tuple[float, ...]:
        return (await self.run("forward", lambda: self.trainer.forward([self.row])))[0]

    async def step(self, adam: Adam) -> float | None:
        return await self.run("optim_step", lambda: self.trainer.optim_step(adam))

    async def learn(
        self, row: Datum, adam: Adam, *, times: int = 1, bounds: tuple[float, float] = (0.0, 5.0)
    ) -> float | None:
        data = [row] * times
        await self.run("forward_backward", lambda: self.trainer.forward_backward(data, loss="cispo", bounds=bounds))
        return await self.step(adam)

    async def norm(self, times: int) -> float | None:
        """The gradient norm of the row, so many times."""
        return await self.learn(self.row, STILL, times=times)

    async def clamped_norm(self) -> float | None:
        """That of the row with ratios of a quarter that are clamped to 1: the same as with ratios of 1."""
        off = replace(self.row, logprobs=tuple(one + math.log(RATIO) for one in self.row.logprobs))
        return await self.learn(off, STILL, bounds=(1.0, 1.0))

    async def moves(self, adam: Adam, advantage: float) -> bool:
        """Whether a step changes log-probs."""
        before = await self.logprobs()
        await self.learn(replace(self.row, advantages=(advantage,) * len(before)), adam)
        return _difference(before, await self.logprobs()) > MOVED

    async def keeps_versions(self) -> bool:
        """Whether an older version is still sampled after a newer one was published, and the trainer left alone."""
        older = await self.publish()
        before = await self.draw(older)
        await self.learn(self.row, FAR)
        newer = await self.publish()
        await self.draw(newer)
        trained = await self.logprobs()
        after = await self.draw(older)
        same = before.token_ids == after.token_ids and _difference(before.logprobs, after.logprobs) < SAME
        return same and _difference(trained, await self.logprobs()) < SAME

    async def publish(self) -> Sampler:
        return await self.run("save_weights_for_sampler", self.trainer.save_weights_for_sampler)

    async def draw(self, sampler: Sampler) -> Sampled:
        ids = self.row.token_ids
        return await self.run("sample", lambda: sampler.sample(ids, max_tokens=1, temperature=0.0, seed=0, stop_ids=()))


def _close(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and other > 0 and abs(one / other - 1) < 0.05


def _difference(left: tuple[float, ...], right: tuple[float, ...]) -> float:
    return max((abs(one - other) for one, other in zip(left, right, strict=True)), default=0.0)
