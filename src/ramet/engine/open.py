"""The engine that settings ask for: a server's, or a model loaded here."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, Union

from ramet.config import EngineConfig, RunConfig, on_this_machine
from ramet.engine.http import HttpEngine
from ramet.errors import ConfigError

if TYPE_CHECKING:
    from rich.status import Status

    from ramet.engine.local import LocalEngine
    from ramet.evaluate.settings import EvaluateConfig

ChosenEngine: TypeAlias = Union[HttpEngine, "LocalEngine"]
Asked: TypeAlias = Union[RunConfig, "EvaluateConfig"]


def engine_of(wanted: EngineConfig, *, api_key: str | None = None) -> ChosenEngine:
    """An engine as configured. A local one is loaded before this returns."""
    return _local(wanted) if wanted.kind == "local" else _http(wanted, api_key)


def engines_of(config: Asked, *, judged: bool, api_key: str | None) -> tuple[ChosenEngine, ChosenEngine | None]:
    """Who answers and who judges, which may be the same."""
    judging = judge_of(config) if judged else None  # what is wrong with it is told before anything is loaded
    engine = engine_of(config.engine, api_key=api_key)
    if judging is None or judging == config.engine:
        return engine, engine if judging else None
    return engine, engine_of(judging, api_key=None if config.judge.base_url else api_key)  # a key is for one server


def judge_of(config: Asked) -> EngineConfig | None:
    """How the judge is reached: beside the model that answers, unless a server is named. None: nobody judges."""
    model = config.judge.model
    if not model:
        return None
    if config.judge.base_url:
        return EngineConfig(base_url=config.judge.base_url, model=model)
    if model == config.engine.model:
        return config.engine
    if config.engine.kind == "local" and not on_this_machine(model):
        raise ConfigError(f"where is the judge {model!r}? Give judge.base_url, a folder, or smollm2")
    return replace(config.engine, model=model, tokenizer=None)


@asynccontextmanager
async def closing(*engines: ChosenEngine | None) -> AsyncGenerator[None]:
    """Engines that are closed at the end of the block, however it ends."""
    async with AsyncExitStack() as stack:
        for engine in engines:
            if isinstance(engine, HttpEngine):
                await stack.enter_async_context(engine)
            elif engine is not None:
                stack.enter_context(engine)
        yield


def _http(wanted: EngineConfig, api_key: str | None) -> HttpEngine:
    shares = {"top_p": (wanted.top_p, 1.0), "top_k": (wanted.top_k, 0)}
    return HttpEngine(
        wanted.base_url,
        model=wanted.model,
        api_key=api_key,
        tokenizer=wanted.tokenizer,
        concurrency=wanted.concurrency,
        tries=wanted.tries,
        stall_s=wanted.stall_s,
        extra={name: value for name, (value, neutral) in shares.items() if value != neutral},
    )


def _local(wanted: EngineConfig) -> LocalEngine:
    from ramet.models.folders import check_packages, model_folder
    from ramet.tokens.huggingface import load_renderer

    folder = model_folder(wanted.model)  # may have something to show itself
    with _status(f"loading {wanted.model}"):
        check_packages(wanted.model)
        from ramet.engine.local import LocalEngine

        return LocalEngine(
            folder,
            renderer=None if wanted.tokenizer is None else load_renderer(wanted.tokenizer),
            device=wanted.device,
            dtype=wanted.dtype,
            max_batch=wanted.max_batch,
            cache_tokens=wanted.cache_tokens,
            window=wanted.window,
            top_p=wanted.top_p,
            top_k=wanted.top_k,
        )


def _status(text: str) -> Status:
    """A line on a terminal while we wait; nothing anywhere else."""
    from rich.console import Console
    from rich.text import Text

    return Console(stderr=True).status(Text(text))
