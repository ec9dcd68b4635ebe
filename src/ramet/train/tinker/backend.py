"""The backend on the Tinker API: an adapter on a server is sampled and trained; everything else happens here."""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from ramet.engine.tinker.calls import Calls
from ramet.engine.tinker.engine import TinkerEngine, Version
from ramet.engine.tinker.service import Adam, Datum, Sampler, Trainer
from ramet.errors import ConfigError, EngineError, StoreError, TrainError
from ramet.store.checkpoints import checkpoint_path
from ramet.tokens.render import TokenRenderer
from ramet.train.loss import Loss, Totals, rows_to_compute, totals
from ramet.train.metrics import Stats
from ramet.train.rows import Row
from ramet.train.settings import UpdateConfig
from ramet.train.tinker.checkpoint import MAX_MERGE_GAP, Saved, read_saved, write_checkpoint
from ramet.train.tinker.datum import (
    Route,
    forward_datum,
    native_data,
    num_sent,
    reduced,
    route,
    shares,
    sloped_datum,
    split_by_length,
    trained_values,
)
from ramet.train.tinker.probe import Capabilities
from ramet.train.tinker.stats import Computed, make_stats
from ramet.train.tinker.terms import Numbers, token_terms

BETWEEN_VERSIONS = -1
UNLOAD_S = 10.0  # longest wait for the server to free the adapter at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What the adapter of a run begins as."""

    base_model: str  # its name on the server
    base: Path  # its folder on this machine
    folder: Path  # the model of the run: tokenizer and settings; the same as `base`, or a checkpoint
    rank: int
    seed: int
    state: str | None = None  # tinker:// path of the weights of an earlier run


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """Data that are sent when the optimiser steps, because all rows of the update must be counted first."""

    data: Sequence[Datum]
    route: Route


class TinkerBackend:
    """One adapter on a server.

    Where the server keeps no snapshots of published weights, one sampler exists at a time, and no sample is under way
    while weights change: an older sampler would answer with newer weights, or put the old ones back.
    """

    def __init__(
        self,
        calls: Calls,
        capabilities: Capabilities,
        origin: Origin,
        *,
        renderer: TokenRenderer,
        window: int,
        update: UpdateConfig,
        chunk: int | None = 64,
        stop_ids: Sequence[int] = (),
        vocabulary: int | None = None,
        several_calls: bool = False,
        merge: bool = True,
        device: str | None = None,
    ) -> None:
        self.calls = calls
        self.capabilities = capabilities
        self.origin = origin
        self.renderer = renderer
        self.update = update
        self.merge = merge
        self.device = device  # where a merged model is verified
        self.supports_overlap = capabilities.keeps_versions
        self.engine = TinkerEngine(
            calls,
            self._current,
            renderer=renderer,
            window=window,
            chunk=chunk,
            stop_ids=stop_ids,
            vocabulary=vocabulary,
        )
        # A mean over rows is over those of all calls of the update: with several calls, count before sending.
        self._holds = several_calls and capabilities.reduction == "row_mean"
        self._held: list[_Held] = []
        self._sent = 0  # rows whose gradient is on the server
        self._trainer: Trainer | None = None
        self._reference: Trainer | None = None
        self._sampler: Sampler | None = None  # of the weights as they are; None: not published yet
        self._number = 0
        self._between = False  # whether the weights are those of no version
        self._stale = False  # whether a gradient that must not be applied is on the server
        self._lock = anyio.Lock()
        self._session = secrets.token_hex(4)
        self._names = 0
        self._sample_row: Row | None = None  # a short row, to compare log-probs on
        self._verified = False

    @property
    def version(self) -> int:
        return BETWEEN_VERSIONS if self._between or self.calls.lost is not None else self._number

    # Learning.

    async def forward_backward(self, rows: Sequence[Row], *, loss: Loss, temperature: float) -> Stats:
        _check_temperature(temperature)
        computed = rows_to_compute(rows, loss, skip_zero_credit=self.update.skip_zero_credit)
        if not computed:
            return make_stats(rows, [], version=self._number)
        self._sample_row = min(computed, key=lambda row: len(row.read))
        several, bounds = computed[0].proximal is not None, self.capabilities.cispo_bounds
        way = route(loss, several_updates=several, cispo_bounds=bounds)
        score = self._score_and_hold if way.two_passes or self._holds else self._score_and_send
        scored = await score(await self._ready_to_learn(), computed, totals(rows), loss, way)
        return make_stats(rows, scored, version=self._number)

    async def _score_and_send(
        self, trainer: Trainer, rows: Sequence[Row], counted: Totals, loss: Loss, way: Route
    ) -> list[Computed]:
        """One pass: the server computes the loss, and returns the log-probs beside its gradient."""
        data = native_data(rows, counted, loss)
        found = await self._send(trainer, data, way, self._num_sent(data))
        now = [trained_values(row, values) for row, values in zip(rows, found, strict=True)]
        terms = [token_terms(row, values, loss) for row, values in zip(rows, now, strict=True)]
        return list(zip(rows, now, terms, shares(rows, counted, loss), strict=True))

    async def _score_and_hold(
        self, trainer: Trainer, rows: Sequence[Row], counted: Totals, loss: Loss, way: Route
    ) -> list[Computed]:
        """Log-probs now, the gradient when the optimiser steps."""
        now = await self._forward(trainer, rows)
        reference = await self._reference_logprobs(rows) if loss.kl else [None] * len(rows)
        terms = [token_terms(*known[:2], loss, reference=known[2]) for known in zip(rows, now, reference, strict=True)]
        scored = list(zip(rows, now, terms, shares(rows, counted, loss), strict=True))
        if way.two_passes:
            data = [sloped_datum(row, part, values, term.slope) for row, values, term, part in scored]
        else:
            data = native_data(rows, counted, loss)
        self._held.append(_Held(data=data, route=way))
        return scored

    async def logprobs(self, rows: Sequence[Row], *, temperature: float) -> list[tuple[float, ...]]:
        _check_temperature(temperature)
        trained = [row for row in rows if row.num_trained]
        found = await self._forward(await self._ready_to_learn(), trained) if trained else []
        values = {id(row): iter(one.tolist()) for row, one in zip(trained, found, strict=True)}
        return [tuple(next(values[id(row)]) if is_trained else 0.0 for is_trained in row.mask) for row in rows]

    async def optim_step(self, *, learning_rate: float, last: bool = True) -> float | None:
        del last  # versions are counted when they are published
        num_rows = self._sent + sum(self._num_sent(held.data) for held in self._held)
        if not num_rows:
            return 0.0  # nothing was computed: no weight changes
        trainer = await self._ready_to_learn()
        for held in self._held:
            await self._send(trainer, held.data, held.route, num_rows)
        update = self.update
        adam = Adam(
            learning_rate=learning_rate,
            betas=update.betas,
            weight_decay=update.weight_decay,
            max_grad_norm=update.max_grad_norm,
        )
        self._between, self._sampler = True, None
        self._held, self._sent = [], 0
        norm = await self.calls.run("optim_step", lambda: trainer.optim_step(adam))
        if norm is not None and not math.isfinite(norm):
            raise TrainError(f"the gradient norm is {norm}. Resume from the newest checkpoint")
        return norm

    async def discard(self) -> None:
        """Drop the gradient. The API has no verb for it: what was sent is left behind with its adapter."""
        self._stale = self._stale or self._sent > 0
        self._held, self._sent = [], 0

    async def _send(
        self, trainer: Trainer, data: Sequence[Datum], way: Route, num_rows: int
    ) -> list[tuple[float, ...]]:
        async def send(part: Sequence[Datum]) -> list[tuple[float, ...]]:
            self._sent += len(part)
            return await trainer.forward_backward(part, loss=way.loss, bounds=way.bounds)

        return await self._in_calls("forward_backward", send, data, num_rows)

    async def _in_calls(
        self,
        verb: str,
        call: Callable[[Sequence[Datum]], Awaitable[list[tuple[float, ...]]]],
        data: Sequence[Datum],
        num_rows: int,
    ) -> list[tuple[float, ...]]:
        """What the server returns for the data, one call after the other: it would join those that arrive together."""
        reduction = self.capabilities.reduction
        found: list[tuple[float, ...]] = [()] * len(data)
        for places in split_by_length(data, reduction):
            part = reduced([data[place] for place in places], reduction, num_rows=num_rows)
            values = await self.calls.run(verb, partial(call, part))
            for place, value in zip(places, values, strict=False):  # those of empty rows are at the end
                found[place] = value
        return found

    def _num_sent(self, data: Sequence[Datum]) -> int:
        return num_sent(len(data), self.capabilities.reduction)

    async def _forward(self, trainer: Trainer, rows: Sequence[Row]) -> list[Numbers]:
        found = await self._in_calls("forward", trainer.forward, list(map(forward_datum, rows)), len(rows))
        return [trained_values(row, values) for row, values in zip(rows, found, strict=True)]

    async def _reference_logprobs(self, rows: Sequence[Row]) -> list[Numbers]:
        """Log-probs under the model that the run began with: another adapter, which is never trained."""
        if self._reference is None:
            self._reference = await self._create()
        return await self._forward(self._reference, rows)

    # The adapter.

    async def _ready_to_learn(self) -> Trainer:
        """The adapter, without a gradient that was discarded, and where it matters without samples under way."""
        if not self.capabilities.keeps_versions:
            await self.calls.run("sample", self.calls.service.drain)
        trainer = await self._ready()
        if self._stale:
            state = await self._save_state(trainer)
            self._trainer = await self.calls.run(
                "load_state", lambda: self.calls.service.load_state(state, optimizer=True)
            )
            await self._leave(trainer)
            self._stale, self._sampler, trainer = False, None, self._trainer
        return trainer

    async def _ready(self) -> Trainer:
        if self._trainer is None:
            self._trainer = await self._create()
        return self._trainer

    async def _create(self) -> Trainer:
        origin, service = self.origin, self.calls.service
        if origin.state is not None:
            state = origin.state
            return await self.calls.run("load_state", lambda: service.load_state(state, optimizer=False))
        make = partial(service.create, base_model=origin.base_model, rank=origin.rank, seed=origin.seed)
        return await self.calls.run("create_lora_training_client", make)

    async def _leave(self, trainer: Trainer) -> None:
        """Free an adapter. Its gradient is used up first: a server may leave it to the next adapter in its place."""
        await self.calls.run("optim_step", lambda: trainer.optim_step(Adam(learning_rate=0.0)))
        await self.calls.run("unload", trainer.unload)

    # Versions.

    async def _current(self) -> Version:
        """What the engine samples from."""
        async with self._lock:
            if self._sampler is None:
                trainer = await self._ready()
                self._sampler = await self.calls.run("save_weights_for_sampler", trainer.save_weights_for_sampler)
            return Version(sampler=self._sampler, number=self._number)

    async def publish(self, version: int, *, fresh: bool = False) -> None:
        del fresh  # the server's cache is its own
        if self._between:
            await self._current()
        self._number, self._between = version, False

    # Checkpoints.

    async def save(self, run: Path, *, step: int, keep: int) -> Path:
        folder = checkpoint_path(run, step)
        if folder.is_dir():  # the checkpoint of a step always has the same weights
            return folder
        from ramet.models.adapter import read_archive

        trainer = await self._ready_to_learn()
        saved = self._record(step, await self._save_state(trainer))
        name = self._name()
        files = read_archive(await self.calls.run("download", lambda: trainer.download(name)))
        write = partial(write_checkpoint, run, saved, files, tokenizer=self.origin.folder, merge=self.merge, keep=keep)
        folder = await anyio.to_thread.run_sync(write)
        if not self.capabilities.keeps_versions:
            self._sampler = None  # the newest weights that were saved for sampling are those that must be sampled
        await self._verify(trainer, folder)
        return folder

    def _record(self, step: int, state: str) -> Saved:
        origin, found = self.origin, self.capabilities
        return Saved(
            step=step,
            state=state,
            base_model=origin.base_model,
            base=str(origin.base),
            rank=origin.rank,
            server=found.server,
            sdk=found.sdk,
        )

    async def _verify(self, trainer: Trainer, folder: Path) -> None:
        """Compare log-probs of the first merged model of this process with those of the server."""
        if self._verified or not self.merge or self._sample_row is None:
            return
        from ramet.models.adapter import folder_logprobs

        row = replace(self._sample_row, mask=(False, *(True for _ in self._sample_row.token_ids[1:])), logprobs=None)
        row = replace(row, proximal=None)
        there = (await self._forward(trainer, [row]))[0]
        here = await anyio.to_thread.run_sync(partial(folder_logprobs, folder, row.token_ids, device=self.device))
        gap = sum(abs(one - other) for one, other in zip(here, there.tolist(), strict=True)) / len(here)
        if gap > MAX_MERGE_GAP:
            raise StoreError(
                f"{folder} is not the model on the server: log-probs differ by {gap:.3g} on average. "
                f"Is {self.origin.base} the base model {self.origin.base_model!r}?"
            )
        self._verified = True

    async def load(self, checkpoint: Path) -> int:
        saved = read_saved(checkpoint)
        if saved is None:
            raise StoreError(f"{checkpoint} was not written by backend.kind=tinker: it has no state on a server")
        self._trainer = await self.calls.run(
            "load_state", lambda: self.calls.service.load_state(saved.state, optimizer=True)
        )
        self._sampler = None
        await self.publish(saved.step)
        return saved.step

    async def _save_state(self, trainer: Trainer) -> str:
        name = self._name()
        return await self.calls.run("save_state", lambda: trainer.save_state(name))

    def _name(self) -> str:
        """A name that was never used: a server takes every name once."""
        self._names += 1
        return f"ramet-{self._session}-{self._names:05d}"

    def close(self) -> None:
        """Free the adapters, as far as the server answers, and close the connection."""
        if self.calls.lost is None:
            anyio.run(self._unload)
        self.calls.service.close()

    async def _unload(self) -> None:
        with anyio.move_on_after(UNLOAD_S):
            for trainer in (self._trainer, self._reference):
                try:
                    if trainer is not None:
                        await (self._leave(trainer) if self._sent or self._stale else trainer.unload())
                except EngineError:  # it is freed when the session ends
                    return


def _check_temperature(temperature: float) -> None:
    if temperature != 1:
        raise ConfigError(f"temperature=1: servers of the Tinker API score tokens at 1; got {temperature:g}")
