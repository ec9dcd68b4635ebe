"""Run a checkpoint that is on a server of the Tinker API: `--model tinker://...`.

A path of saved weights (`tinker://ID/weights/NAME`, the `state` in the tinker.json of a checkpoint) is loaded into an
adapter of its own. A path of weights saved for sampling is sampled as it is, except on servers that would put these
weights over those of a run that still trains them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from ramet.engine.settings import EngineConfig
from ramet.engine.tinker.calls import Calls
from ramet.engine.tinker.engine import TinkerEngine, Version
from ramet.engine.tinker.limits import Limits, choose_window, read_limits
from ramet.engine.tinker.service import Sampler, Service, Trainer
from ramet.errors import ConfigError, EngineError
from ramet.tokens.huggingface import load_renderer
from ramet.types import Completion, Meter, Prompt

FOR_SAMPLING = "/sampler_weights/"
SHARES_WEIGHTS = ("SkyRL",)  # servers where a sampler's weights lie in the place of those in training
CHUNK = 64
OPEN_S = 30.0
UNLOAD_S = 10.0  # longest wait for the server to free the adapter at the end
Connect = Callable[[str, float], Awaitable[Service]]  # address and deadline


async def connect_sdk(base_url: str, deadline_s: float) -> Service:
    """A connection through the vendor's client package."""
    from ramet.engine.tinker.sdk import open_service

    return await open_service(base_url, deadline_s=min(OPEN_S, deadline_s))


class RemoteEngine:
    """An engine of one checkpoint on a server. It connects when it is used first."""

    def __init__(self, config: EngineConfig, *, connect: Connect = connect_sdk) -> None:
        if not config.tokenizer:
            raise ConfigError(
                "tinker:// needs the tokenizer of its base model: give --tokenizer FOLDER or engine.tokenizer=FOLDER"
            )
        folder = Path(config.tokenizer)
        self.config = config
        self.limits = read_limits(folder) if folder.is_dir() else Limits()
        self.renderer = load_renderer(config.tokenizer)
        self.window = choose_window(config.window, self.limits.window)
        self._connect = connect
        self._service: Service | None = None
        self._calls: Calls | None = None
        self._trainer: Trainer | None = None  # holds the adapter that is sampled
        self._engine: TinkerEngine | None = None
        self._lock = anyio.Lock()

    async def sample(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        temperature: float = 1.0,
        seed: int | None = None,
        meter: Meter | None = None,
    ) -> Completion:
        async with self._lock:
            if self._engine is None:
                self._engine = await self._open()
        return await self._engine.sample(
            prompt, max_tokens=max_tokens, stop=stop, temperature=temperature, seed=seed, meter=meter
        )

    async def _open(self) -> TinkerEngine:
        config = self.config
        self._service = await self._connect(config.base_url, config.deadline_s)
        calls = self._calls = Calls(self._service, deadline_s=config.deadline_s, setting="engine.deadline_s")
        version = Version(sampler=await self._open_sampler(calls), number=0)

        async def current() -> Version:
            return version

        return TinkerEngine(
            calls,
            current,
            renderer=self.renderer,
            window=self.window,
            chunk=CHUNK,
            stop_ids=self.limits.stop_ids,
            vocabulary=self.limits.vocabulary,
            top_p=config.top_p,
            top_k=config.top_k,
        )

    async def _open_sampler(self, calls: Calls) -> Sampler:
        """The weights at the tinker:// path, to be sampled."""
        path, service = self.config.model, calls.service
        if FOR_SAMPLING not in path:
            load = partial(service.load_state, path, optimizer=False)
            trainer = self._trainer = await calls.run("load_state", load)
            return await calls.run("save_weights_for_sampler", trainer.save_weights_for_sampler)
        facts = await calls.run("get_server_capabilities", service.describe)
        if facts.server in SHARES_WEIGHTS:
            raise EngineError(
                f"{facts.server} would load {path} over the weights of the run that saved it: "
                "give the path under /weights/ (`state` in the checkpoint's tinker.json)"
            )
        return await calls.run("create_sampling_client", lambda: service.sampler(path))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Free the adapter, as far as the server answers, and close the connection."""
        calls, trainer = self._calls, self._trainer
        with anyio.move_on_after(UNLOAD_S, shield=True):
            if calls is not None and trainer is not None and calls.lost is None:
                await calls.service.drain()
                await trainer.unload()
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        service, self._service, self._engine, self._trainer = self._service, None, None, None
        if service is not None:
            service.close()
