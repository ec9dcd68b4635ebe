"""The process that learns, for `update.process`: it waits for calls of the training process and answers them in order.

    python -c "from ramet.train.local.learner_process import main; main()" DESCRIPTOR

Its backend is the local one, with a stand-in for the engine: only the version of the weights is counted here.
"""

# pyright: standard

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, cast

import anyio
import torch

from ramet.errors import RametError, TrainError
from ramet.models.folders import choose_device
from ramet.train.local.backend import LocalBackend, learning_backend
from ramet.train.local.learner import missing_bytes
from ramet.train.local.shared_weights import Shared, share, wait_for
from ramet.train.players.pickling import dumps, loads, sendable
from ramet.train.settings import TrainConfig, WarmConfig


@dataclass(frozen=True, slots=True)
class Request:
    """A call of a method of the backend."""

    method: str
    given: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the method returned, or the error that it raised, and the version of the weights after it."""

    value: Any
    error: RametError | None
    version: int


@dataclass(frozen=True, slots=True)
class Opened:
    """The first answer: the weights, and the memory that gradients and moments will take."""

    weights: Shared
    missing_bytes: int


class NoEngine:
    """Counts versions as an engine does; nothing samples here."""

    def __init__(self) -> None:
        self.policy_version = 0

    @contextmanager
    def updating(self, *, version: int | None = None) -> Iterator[None]:
        try:
            yield
        finally:
            self.policy_version = self.policy_version + 1 if version is None else version

    def undisturbed(self) -> AbstractContextManager[object]:
        return nullcontext()

    def close(self) -> None:
        """Nothing to end."""


def main() -> None:
    with Connection(int(sys.argv[1])) as connection:
        try:
            backend = _open(loads(connection.recv_bytes()))
        except Exception as error:  # noqa: BLE001  raised in the training process
            connection.send_bytes(dumps(Answer(None, _one_line(error), -1)))
            return
        trained = {name: one for name, one in backend.learner.policy.model.named_parameters() if one.requires_grad}
        opened = Opened(share(trained), missing_bytes(backend.learner))
        connection.send_bytes(dumps(Answer(opened, None, backend.version)))
        while True:
            try:
                request: Request = loads(connection.recv_bytes())
            except (EOFError, OSError):  # the training process has ended, or closed this one
                return
            connection.send_bytes(dumps(_answer(backend, request)))


def _open(config: TrainConfig | WarmConfig) -> LocalBackend:
    sampler = replace(config.sampler, device=config.update.device or config.sampler.device)
    device = choose_device(sampler.device)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return learning_backend(replace(config, sampler=sampler), cast(Any, NoEngine()))


def _answer(backend: LocalBackend, request: Request) -> Answer:
    async def call() -> Any:
        return await getattr(backend, request.method)(**request.given)

    try:
        value = anyio.run(call)
        wait_for(backend.learner.policy.device)  # the other process reads the weights as soon as it has the answer
        return Answer(value, None, backend.version)
    except Exception as error:  # noqa: BLE001  raised in the training process
        return Answer(None, _one_line(error), backend.version)


def _one_line(error: Exception) -> RametError:
    """The error as the training process can raise it. One that is no RametError is printed whole here."""
    if isinstance(error, RametError):
        return sendable(error)
    traceback.print_exc()
    return TrainError(f"the process that learns failed: {type(error).__name__}: {' '.join(str(error).split())}")
