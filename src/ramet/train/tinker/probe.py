"""Find out what a server of the Tinker API does with what it is sent.

Servers accept the same verbs and do different things with them: they divide losses by different counts, and some ignore
gradient clipping, betas or the bounds of a ratio without an error. `probe` trains an adapter of its own for a few
steps, looks at gradient norms and log-probs, and throws the adapter away.

A server on JAX compiles every new shape, which takes longer than everything else here. So all passes have the same
shape, two short rows, and log-probs are those that `forward_backward` returns, because `forward` is one more program.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import anyio

from ramet.engine.tinker.calls import Calls
from ramet.engine.tinker.service import Adam, Datum, Sampled, Sampler, ServerFacts, Service, Trainer
from ramet.errors import ConfigError, EngineError, did_you_mean
from ramet.train.tinker.datum import Reduction

T = TypeVar("T")
IDS = tuple(range(1, 10))  # ids that every vocabulary has
TOKENS, CREDITED, OTHERS = 8, 4, 2  # trained tokens of the first row, those with credit, trained tokens of the second
SUMS_TOKENS = ("thinkingmachines",)  # hosts of servers that sum token losses and report no gradient norm
RATIO = 4.0  # how far the recorded log-probs of the test of bounds are from the current ones
MOVED, SAME = 1e-3, 0.02  # changes of log-probs: a step that had an effect; weights that are the same
NOT_PROBED = "not probed, because backend.reduction is given: update.max_grad_norm and update.betas may be ignored"
STILL = Adam(learning_rate=0.0, betas=(0.0, 0.0))
FAR = Adam(learning_rate=0.5, betas=(0.0, 0.0), eps=1.0)
WIDE = (0.0, 5.0)  # bounds of a ratio that is near 1
OnFact = Callable[[str, Any], None]  # a field of `Capabilities` and its value


def ignore(name: str, value: Any) -> None:
    """Default callback: ignore."""
    del name, value


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
    notes: tuple[str, ...] = ()  # sentences for the user


async def probe(
    service: Service,
    *,
    base_model: str,
    deadline_s: float,
    rank: int = 1,
    facts: ServerFacts | None = None,
    on_fact: OnFact = ignore,
) -> Capabilities:
    """What the server behind `service` does, found out with an adapter that is thrown away.

    `facts` are what the server reports about itself, if that is known already; `on_fact` is called with everything that
    is found out, as soon as it is known.
    """
    calls = Calls(service, deadline_s=deadline_s)
    facts = facts or await calls.run("get_server_capabilities", service.describe)
    check_served(base_model, facts)
    trainer = await calls.run(
        "create_lora_training_client", lambda: service.create(base_model=base_model, rank=rank, seed=0)
    )
    trial = _Trial(calls, trainer)
    try:
        return await _find(trial, facts, on_fact)
    finally:
        with suppress(EngineError):
            await calls.run("unload", trainer.unload)


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


async def _find(trial: _Trial, facts: ServerFacts, on_fact: OnFact) -> Capabilities:
    found: dict[str, Any] = {}

    def learnt(**known: Any) -> None:
        for name, value in known.items():
            found[name] = value
            on_fact(name, value)

    await trial.start()
    one, two, masked, clamped = await trial.norms()
    learnt(reduction=reduction_of(one, two, masked, facts), cispo_bounds=_close(clamped, one))
    learnt(clips_gradients=not await trial.clipped_step_moves())
    older, before = await trial.publish_and_draw()
    learnt(honours_betas=not await trial.step_without_gradient_moved())
    learnt(keeps_versions=await trial.keeps(older, before))
    return with_notes(Capabilities(server=facts.server, sdk=facts.sdk, models=facts.models, **found))


def reduction_of(one: float | None, two: float | None, masked: float | None, facts: ServerFacts) -> Reduction:
    """From gradient norms: of a call, of the same call twice, and of one with half of the first row's tokens masked.

    The tokens that are masked have no credit, so a sum stays what it was. The mean over a row's trained tokens doubles;
    a mean over the tokens of both rows grows by less, and is refused.
    """
    if one is not None and two is not None:
        if _close(two, 2 * one) and _close(masked, one):
            return "sum"
        if _close(two, one) and _close(masked, one * TOKENS / CREDITED):
            return "row_mean"
    elif any(host in facts.server for host in SUMS_TOKENS):
        return "sum"
    raise ConfigError(
        f"cannot find out how {facts.server} reduces losses (gradient norms {one}, {two} and {masked}): "
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Update:
    """One `forward_backward` of both rows and one step of the optimiser."""

    trained: int = TOKENS  # tokens of the first row that are not masked
    advantage: float = 1.0
    off: float = 0.0  # how far recorded log-probs are above the current ones
    bounds: tuple[float, float] = WIDE
    adam: Adam = STILL


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    logprobs: tuple[float, ...]  # of the first row, before the step
    norm: float | None  # of the gradient


class _Trial:
    """Two rows, the second without credit, and an adapter to try them on."""

    def __init__(self, calls: Calls, trainer: Trainer) -> None:
        self.calls, self.trainer = calls, trainer
        self.recorded = (0.0,) * TOKENS  # log-probs of the first row before any step
        self.clipped = self.recorded  # and after the step with a clipped gradient

    async def start(self) -> None:
        """Use up what an earlier adapter may have left in this place, and record the log-probs of the row."""
        [first] = await self.take(_Update())
        self.recorded = first.logprobs

    async def norms(self) -> list[float | None]:
        """Of the gradient of a call, of two such calls, of one with masked tokens, and of clamped ratios.

        Ratios of a quarter that are clamped to 1 have the gradient of ratios of 1.
        """
        one, masked, clamped = await self.take(
            _Update(), _Update(trained=CREDITED), _Update(off=math.log(RATIO), bounds=(1.0, 1.0))
        )
        await self.run("forward_backward", lambda: self.gradient(_Update()))
        [two] = await self.take(_Update())
        return [one.norm, two.norm, masked.norm, clamped.norm]

    async def clipped_step_moves(self) -> bool:
        """Whether a step changes log-probs although its gradient is clipped to almost nothing.

        The second step has no gradient; with the betas that it is sent it changes nothing.
        """
        clipping = replace(FAR, max_grad_norm=1e-6)
        _, second = await self.take(_Update(adam=clipping), _Update(advantage=0.0, adam=FAR))
        self.clipped = second.logprobs
        return _difference(self.recorded, self.clipped) > MOVED

    async def step_without_gradient_moved(self) -> bool:
        """Whether the last step changed log-probs; then one more step, with a gradient."""
        [learnt] = await self.take(_Update(adam=FAR))
        return _difference(self.clipped, learnt.logprobs) > MOVED

    async def publish_and_draw(self) -> tuple[Sampler, Sampled]:
        sampler = await self.run("save_weights_for_sampler", self.trainer.save_weights_for_sampler)
        return sampler, await self.draw(sampler)

    async def keeps(self, older: Sampler, before: Sampled) -> bool:
        """Whether an older version is still sampled after a newer one was published, and the trainer left alone."""
        await self.publish_and_draw()
        [trained] = await self.take(_Update(advantage=0.0))
        after = await self.draw(older)
        if before.token_ids != after.token_ids or _difference(before.logprobs, after.logprobs) >= SAME:
            return False
        [now] = await self.take(_Update(advantage=0.0))
        return _difference(trained.logprobs, now.logprobs) < SAME

    async def draw(self, sampler: Sampler) -> Sampled:
        ids = IDS[:TOKENS]
        return await self.run("sample", lambda: sampler.sample(ids, max_tokens=1, temperature=0.0, seed=0, stop_ids=()))

    async def take(self, *updates: _Update) -> list[_Result]:
        """Updates one after the other. All are sent at once, so that the server does not wait for us in between."""
        results = await self.run("forward_backward", lambda: self._all(updates))
        return [_Result(logprobs=results[place], norm=results[place + 1]) for place in range(0, len(results), 2)]

    async def _all(self, updates: tuple[_Update, ...]) -> list[Any]:
        """The results of all calls. They are sent in order: tasks begin in the order in which they are started."""
        results: list[Any] = [None] * (2 * len(updates))
        failures: list[EngineError] = []

        async def one(place: int, update: _Update) -> None:
            try:
                step = self.trainer.optim_step(update.adam) if place % 2 else self.gradient(update)
                results[place] = await step
            except EngineError as error:  # out of the group as it is, not in an exception group
                failures.append(error)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for place in range(len(results)):
                group.start_soon(one, place, updates[place // 2])
        if failures:
            raise failures[0]
        return results

    async def gradient(self, update: _Update) -> tuple[float, ...]:
        rows = [self._row(update.trained, update.advantage, update.off), self._row(OTHERS, 0.0, 0.0)]
        return (await self.trainer.forward_backward(rows, loss="cispo", bounds=update.bounds))[0]

    def _row(self, trained: int, advantage: float, off: float) -> Datum:
        return Datum(
            token_ids=IDS[:TOKENS],
            targets=IDS[1:],
            logprobs=tuple(one + off for one in self.recorded),
            advantages=(advantage,) * CREDITED + (0.0,) * (TOKENS - CREDITED),
            weights=(1.0,) * trained + (0.0,) * (TOKENS - trained),
        )

    async def run(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        return await self.calls.run(what, work)


def _close(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and other > 0 and abs(one / other - 1) < 0.05


def _difference(left: tuple[float, ...], right: tuple[float, ...]) -> float:
    return max((abs(one - other) for one, other in zip(left, right, strict=True)), default=0.0)
