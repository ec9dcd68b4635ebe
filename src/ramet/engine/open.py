"""Open the engines that the settings ask for: HTTP clients, or models loaded in this process."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import anyio

from ramet import plugins
from ramet.config import on_this_machine
from ramet.engine.http import HttpEngine
from ramet.engine.probing import check_ids
from ramet.engine.providers import find_provider, key_of
from ramet.engine.settings import ENGINE_KINDS, POLICY, EngineConfig, JudgeConfig
from ramet.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from rich.status import Status

    from ramet.engine.local import LocalEngine
    from ramet.engine.tinker.remote import RemoteEngine

JUDGE_KEY = "RAMET_JUDGE_API_KEY"  # environment variable: the API key of judge.base_url, never stored
CLONE_KEY = "RAMET_CLONE_API_KEY"  # environment variable: the API key of clone.base_url, never stored
ANY_URL = EngineConfig().base_url
WHICH_MODEL = (
    "which model? give --model NAME (the server's /v1/models lists them), a run directory, a folder, or smollm2"
)
OpenedEngine: TypeAlias = Union[HttpEngine, "LocalEngine", "RemoteEngine"]


def open_engine(config: EngineConfig, *, api_key: str | None = None) -> OpenedEngine:
    """The configured engine. A local model is loaded before this returns."""
    if config.kind not in ENGINE_KINDS:
        return _open_own(config, api_key)
    if config.kind == "tinker":
        return _open_tinker(config)
    return _open_local(config) if config.kind == "local" else _open_http(config, api_key)


def with_model(config: EngineConfig, *, api_key: str | None = None) -> EngineConfig:
    """The settings with the name of the model. Where none is given, it is the only one that the server has."""
    if config.model or config.kind not in ENGINE_KINDS:
        return config
    if config.kind != "http":
        raise ConfigError(WHICH_MODEL)
    return replace(config, model=anyio.run(_only_model, _open_http(config, api_key)))


async def _only_model(engine: HttpEngine) -> str:
    async with engine:
        await check_named(engine)
        return engine.model


async def check_named(engine: HttpEngine) -> None:
    """Reach the server, and see that it returns ids if there is a tokenizer.

    If neither a model nor a server was named, the model is what is missing.
    """
    named = bool(engine.model) or engine.base_url != ANY_URL
    try:
        await engine.check()
    except EngineError as error:
        if error.lasting != "unreachable":
            raise
        if not named:
            raise ConfigError(f"{WHICH_MODEL} ({error})") from None
        raise EngineError(f"{error}; is the server running? --base-url names another one") from None
    await check_ids(engine)


def open_engines(
    config: EngineConfig, judge: JudgeConfig | None = None, *, api_key: str | None = None
) -> tuple[OpenedEngine, OpenedEngine | None]:
    """The engine and the judge's engine. They are the same object when both use the same model."""
    judging = None if judge is None else judge_config(config, judge)  # a bad judge fails before any model is loaded
    engine = open_engine(config, api_key=api_key)
    if judge is None or judging is None or judging == config:
        return engine, engine if judging else None
    return engine, open_engine(judging, api_key=judge_key() if judge.base_url else api_key)  # a key is for one server


def judge_key() -> str | None:
    """The API key of a judge that has its own server."""
    return os.environ.get(JUDGE_KEY)


def judge_config(engine: EngineConfig, judge: JudgeConfig) -> EngineConfig | None:
    """The engine settings of the judge: those of `engine`, unless the judge has its own server. None: no judge."""
    if not judge.model:
        return None
    if judge.base_url:
        return EngineConfig(base_url=judge.base_url, model=judge.model)
    if judge.model in (POLICY, engine.model):
        return engine
    if engine.kind == "local" and not on_this_machine(judge.model):
        raise ConfigError(
            f"judge.model {judge.model!r} is not on this machine: give judge.base_url, a folder, smollm2 or policy"
        )
    return replace(engine, model=judge.model, tokenizer=None)


def clone_config(engine: EngineConfig, clone: EngineConfig) -> EngineConfig | None:
    """The engine settings of clones: their own server or process, or that of `engine`. None: the root's model."""
    if not clone.model:
        if clone != EngineConfig():
            raise ConfigError("clone needs clone.model: the name of the model that clones have")
        return None
    if clone.kind != "http" or clone.provider or clone.base_url != ANY_URL:
        return clone
    if engine.kind == "local":
        raise ConfigError(f"clone.model {clone.model!r} is not on this machine: give its server, NAME@URL")
    return replace(engine, model=clone.model, tokenizer=clone.tokenizer or engine.tokenizer)


def open_clone_engine(engine: EngineConfig, clone: EngineConfig, *, api_key: str | None = None) -> OpenedEngine | None:
    """The engine of clones, if it is not that of the root. A key is for one server: another one has its own."""
    config = clone_config(engine, clone)
    if config is None or config == engine:
        return None
    same = (config.kind, config.provider, config.base_url) == (engine.kind, engine.provider, engine.base_url)
    return open_engine(config, api_key=api_key if same else os.environ.get(CLONE_KEY))


@asynccontextmanager
async def closing(*engines: OpenedEngine | None) -> AsyncGenerator[None]:
    """Close these engines at the end of the block."""
    async with AsyncExitStack() as stack:
        for engine in engines:
            opened: Any = engine
            if hasattr(opened, "__aenter__"):
                await stack.enter_async_context(opened)
            elif hasattr(opened, "__enter__"):  # an engine of the user's may be neither
                stack.enter_context(opened)
        yield


def _open_own(config: EngineConfig, api_key: str | None) -> Any:
    """An engine of the user's: it gets its options, and those of model, base_url and api_key that it takes."""
    found = plugins.load(config.kind, "engine")
    common = {"model": config.model, "base_url": config.base_url, "api_key": api_key}
    taken = list(inspect.signature(found).parameters) if callable(found) else []
    given = {name: value for name, value in common.items() if name in taken}
    return plugins.make(config.kind, "engine", **given, **config.options)


def _open_http(config: EngineConfig, api_key: str | None) -> HttpEngine:
    provider = find_provider(config.provider, config.base_url)
    given = config.base_url != ANY_URL or not config.provider
    filters = {"top_p": (config.top_p, 1.0), "top_k": (config.top_k, 0)}
    return HttpEngine(
        config.base_url if given else provider.base_url,
        model=config.model,
        provider=config.provider,
        api_key=key_of(provider, api_key),
        tokenizer=config.tokenizer,
        concurrency=config.concurrency,
        tries=config.tries,
        stall_s=config.stall_s,
        extra={name: value for name, (value, neutral) in filters.items() if value != neutral},
        session_id=config.session_id,
    )


def _open_tinker(config: EngineConfig) -> RemoteEngine:
    from ramet.engine.tinker.remote import RemoteEngine

    return RemoteEngine(config)


def _open_local(config: EngineConfig) -> LocalEngine:
    from ramet.models.folders import SMOLLM2, model_folder
    from ramet.models.packages import check_packages
    from ramet.tokens.huggingface import load_renderer

    folder = model_folder(config.model)  # outside the status line: it may show progress of its own
    with _status(f"loading {config.model}"):
        check_packages(extra=SMOLLM2 if config.model == SMOLLM2 else "train")
        from ramet.engine.local import LocalEngine

        return LocalEngine(
            folder,
            renderer=None if config.tokenizer is None else load_renderer(config.tokenizer),
            device=config.device,
            dtype=config.dtype,
            max_batch=config.max_batch,
            cache_tokens=config.cache_tokens,
            window=config.window,
            top_p=config.top_p,
            top_k=config.top_k,
        )


def _status(text: str) -> Status:
    """A status line on a terminal; nothing elsewhere."""
    from rich.console import Console
    from rich.text import Text

    return Console(stderr=True).status(Text(text))
