"""A local backend whose learner has a process of its own, on the same GPU or on another one.

Engine, trees and learner in one process share the lock of Python, and each makes the others slower. Here the engine has
a copy of the weights, which it takes over from the learner when a version is complete.
"""

# pyright: standard

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import anyio.to_thread
import torch
from torch import Tensor

from ramet.engine.local import LocalEngine
from ramet.errors import TrainError
from ramet.models.folders import choose_device, model_folder
from ramet.tokens.huggingface import load_renderer
from ramet.tokens.render import TokenRenderer
from ramet.train.child import end_child, start_child
from ramet.train.local.backend import BETWEEN_VERSIONS, load_policy
from ramet.train.local.learner_process import Answer, Opened, Request
from ramet.train.local.overhead import Overhead
from ramet.train.local.shared_weights import wait_for
from ramet.train.loss import Loss, select
from ramet.train.metrics import Stats
from ramet.train.players.pickling import dumps, loads
from ramet.train.rows import Row
from ramet.train.settings import TrainConfig, WarmConfig


def beside_engine(config: TrainConfig | WarmConfig) -> dict[str, str]:
    """Variables of MPS for the process that learns, on the GPU of the engine.

    The short kernels of the engine, which trees wait for, go before those of the learner; they do not interrupt them,
    so some multiprocessors may be left to the engine.
    """
    share = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(max(1, round(100 * config.update.device_share)))}
    return {"CUDA_MPS_CLIENT_PRIORITY": "1", **(share if config.update.device_share < 1 else {})}


class LearnerProcess:
    """The process that learns, seen from the training process: one call at a time."""

    def __init__(self, config: TrainConfig | WarmConfig) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            module, environment = "ramet.train.local.learner_process", beside_engine(config)
            self.process = start_child(module, theirs.fileno(), environment=environment)
        self._connection = Connection(ours.detach())
        self._busy = threading.Lock()
        self.version = BETWEEN_VERSIONS
        try:
            self.opened: Opened = self._exchange(config)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, **given: Any) -> Any:
        """What the method of the learner's backend returns; its error is raised here."""
        return self._exchange(Request(method, given))

    def _exchange(self, message: Any) -> Any:
        with self._busy:
            try:
                self._connection.send_bytes(dumps(message))
                answer: Answer = loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                raise TrainError(f"the process that learns has ended ({self._how()})") from None
        self.version = answer.version
        if answer.error is not None:
            raise answer.error
        return answer.value

    def _how(self) -> str:
        code = end_child(self.process)
        if code >= 0:
            return f"exit code {code}"
        killed = signal.Signals(-code).name
        return f"{killed}; the machine may have run out of memory" if -code == signal.SIGKILL else killed

    def close(self) -> None:
        self._connection.close()
        end_child(self.process)


class ProcessBackend:
    """The engine of a run here, its learner in another process."""

    supports_overlap = True

    def __init__(
        self,
        learner: LearnerProcess,
        engine: LocalEngine,
        *,
        renderer: TokenRenderer,
        sampled: Mapping[str, Tensor],
        skip_zero_credit: bool = False,
    ) -> None:
        self.learner = learner
        self.engine = engine
        self.renderer = renderer
        self.skip_zero_credit = skip_zero_credit
        self._sampled = sampled  # the weights of the engine that are trained, by name
        self._learnt = learner.opened.weights.open()
        self._copy()
        self._overhead = Overhead(engine.model)

    @property
    def version(self) -> int:
        """That of the engine, while the learner has the same weights."""
        version = self.engine.policy_version
        return version if self.learner.version == version else BETWEEN_VERSIONS

    async def forward_backward(self, rows: Sequence[Row], *, loss: Loss, temperature: float) -> Stats:
        """Rows that need not be computed stay here: to send them takes longer than to count them."""
        select_rows = partial(select, rows, loss, skip_zero_credit=self.skip_zero_credit)
        selected = await anyio.to_thread.run_sync(select_rows)
        return await self._call("forward_backward", rows=selected, loss=loss, temperature=temperature)

    async def logprobs(self, rows: Sequence[Row], *, temperature: float) -> list[tuple[float, ...]]:
        return await self._call("logprobs", rows=rows, temperature=temperature)

    async def optim_step(self, *, learning_rate: float, last: bool = True) -> float:
        """The engine samples the weights of the version before until the last update of a step is done."""
        norm = await self._call("optim_step", learning_rate=learning_rate, last=last)
        if last:
            await anyio.to_thread.run_sync(partial(self._take, self.learner.version))
        return norm

    async def discard(self) -> None:
        await self._call("discard")

    async def publish(self, version: int, *, fresh: bool = False) -> None:
        await self._call("publish", version=version, fresh=fresh)
        if fresh or version != self.engine.policy_version:
            await anyio.to_thread.run_sync(partial(self._take, version))

    async def save(self, run: Path, *, step: int, keep: int) -> Path:
        return await self._call("save", run=run, step=step, keep=keep)

    async def load(self, checkpoint: Path) -> int:
        step = await self._call("load", checkpoint=checkpoint)
        await anyio.to_thread.run_sync(partial(self._take, step))
        return step

    def close(self) -> None:
        """End both; the memory of the learner is freed by the end of its process."""
        self.engine.close()
        self._overhead.restore()
        self._learnt.clear()
        self.learner.close()
        del self.engine, self._sampled
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    async def _call(self, method: str, **given: Any) -> Any:
        """A cancelled caller waits for the answer."""
        return await anyio.to_thread.run_sync(partial(self.learner.call, method, **given))

    def _take(self, version: int) -> None:
        """The engine rests while it gets the weights of the learner, which waits for the next call."""
        with self.engine.updating(version=version):
            self._copy()

    def _copy(self) -> None:
        with torch.no_grad():
            for name, one in self._sampled.items():
                one.copy_(self._learnt[name], non_blocking=True)
        wait_for(*(one.device for weights in (self._sampled, self._learnt) for one in weights.values()))


def open_backend(config: TrainConfig | WarmConfig) -> ProcessBackend:
    """Load the model of a run twice: here to be sampled, in another process to be trained."""
    folder, sampler = model_folder(config.model), config.sampler
    learner = LearnerProcess(config)  # first: by default the engine's cache takes half of the memory that is left
    try:
        policy = load_policy(config, trains=False)
        renderer = load_renderer(folder)
        here, there = choose_device(sampler.device), choose_device(config.update.device or sampler.device)
        engine = LocalEngine(
            policy.core,
            renderer=renderer,
            max_batch=sampler.max_batch,
            cache_tokens=sampler.cache_tokens,
            spare_bytes=learner.opened.missing_bytes if here == there else 0,
            window=sampler.window,
            keep_cache=sampler.keep_cache,
        )
        trained = {name: one for name, one in policy.model.named_parameters() if one.requires_grad}
        return ProcessBackend(
            learner,
            engine,
            renderer=renderer,
            sampled=trained,
            skip_zero_credit=config.update.skip_zero_credit,
        )
    except BaseException:
        learner.close()
        raise
