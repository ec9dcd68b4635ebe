"""Open the Tinker backend of a run: check the settings, connect, find out what the server does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import anyio

from ramet.engine.tinker.calls import CHECK_EVERY_S, Calls
from ramet.engine.tinker.limits import choose_window, read_limits
from ramet.engine.tinker.remote import Connect, connect_sdk
from ramet.engine.tinker.service import ServerFacts
from ramet.errors import ConfigError
from ramet.models.folders import model_folder
from ramet.models.packages import check_packages
from ramet.tokens.huggingface import load_renderer
from ramet.train.settings import TrainConfig, UpdateConfig, WarmConfig
from ramet.train.tinker.backend import Origin, TinkerBackend
from ramet.train.tinker.checkpoint import read_saved
from ramet.train.tinker.datum import Reduction
from ramet.train.tinker.probe import NOT_PROBED, Capabilities, assume, check_served, probe
from ramet.types import printable


def say(text: str) -> None:
    """A sentence for the user, before the first step."""
    sys.stderr.write(f"ramet: {printable(text)}\n")


@dataclass(frozen=True, slots=True)
class Known:
    """What one run has found out about its server and printed: its supervised start and RL each open a backend."""

    capabilities: dict[str, Capabilities] = field(default_factory=dict[str, Capabilities])  # by base model
    notes: set[str] = field(default_factory=set[str])


def open_backend(
    config: TrainConfig | WarmConfig,
    *,
    connect: Connect = connect_sdk,
    say: Callable[[str], None] = say,
    check_every_s: float = CHECK_EVERY_S,
    known: Known | None = None,
    run: TrainConfig | None = None,
) -> TinkerBackend:
    """The backend of a run. Whatever cannot work is one line, before anything is written.

    With the same `known` again the server is not probed again, and a sentence is not repeated. `run` is the whole run
    that `config` begins: what the server ignores of it is printed now, not after the supervised start.
    """
    settings, known = config.backend, known or Known()
    if settings.merge:
        check_packages()
    service = anyio.run(connect, settings.base_url, settings.deadline_s)
    try:
        calls = Calls(service, deadline_s=settings.deadline_s, check_every_s=check_every_s)
        backend = anyio.run(_open, config, calls, known.capabilities)
    except BaseException:
        service.close()
        raise
    later = run if run is not None and isinstance(config, WarmConfig) else None
    lines = notes(config, backend.capabilities, prefix="" if later is None else "warm.")
    for note in lines + ([] if later is None else notes(later, backend.capabilities)):
        if note not in known.notes:
            known.notes.add(note)
            say(note)
    return backend


async def _open(config: TrainConfig | WarmConfig, calls: Calls, capabilities: dict[str, Capabilities]) -> TinkerBackend:
    settings = config.backend
    facts = await calls.run("get_server_capabilities", calls.service.describe)
    origin = find_origin(config, facts)
    found = capabilities.get(origin.base_model) or await _find_out(calls, origin, facts, settings.reduction)
    capabilities[origin.base_model] = found
    limits = read_limits(origin.folder)
    return TinkerBackend(
        calls,
        found,
        origin,
        renderer=load_renderer(origin.folder),
        window=choose_window(config.sampler.window, limits.window, _served_window(origin, facts)),
        update=config.update,
        chunk=settings.chunk or None,
        stop_ids=limits.stop_ids,
        vocabulary=limits.vocabulary,
        several_calls=isinstance(config, TrainConfig) and bool(config.demos),
        merge=settings.merge,
        device=config.sampler.device,
    )


async def _find_out(
    calls: Calls, origin: Origin, facts: ServerFacts, reduction: Reduction | Literal["auto"]
) -> Capabilities:
    if reduction != "auto":
        return assume(facts, reduction)
    name, deadline_s = origin.base_model, calls.deadline_s
    return await probe(calls.service, base_model=name, deadline_s=deadline_s, rank=origin.rank, facts=facts)


def find_origin(config: TrainConfig | WarmConfig, facts: ServerFacts) -> Origin:
    """What the adapter begins as: the base model, or the weights that an earlier run left on the server."""
    settings = config.backend
    folder = model_folder(config.model) if settings.merge else Path(config.model)
    saved = read_saved(folder)
    if saved is None:
        name = settings.base_model or served_name(config.model, folder, facts)
        check_served(name, facts)
        return Origin(base_model=name, base=folder, folder=folder, rank=settings.rank, seed=config.seed)
    check_served(saved.base_model, facts)
    return Origin(
        base_model=saved.base_model,
        base=Path(saved.base),
        folder=folder,
        rank=saved.rank,
        seed=config.seed,
        state=saved.state,
    )


def served_name(model: str, folder: Path, facts: ServerFacts) -> str:
    """The name that the server has for a model folder."""
    for name in facts.models:
        if name == model or Path(name).expanduser().resolve() == folder.resolve():
            return name
    served = ", ".join(facts.models) or "none by name"
    raise ConfigError(
        f"{facts.server} serves {served}, not {model}: if that is the same model, give backend.base_model=NAME"
    )


def notes(config: TrainConfig | WarmConfig, found: Capabilities, *, prefix: str = "") -> list[str]:
    """What of the settings has no effect on this server, by name and value. `prefix` is put before the names."""
    update, defaults = config.update, UpdateConfig()
    if NOT_PROBED in found.notes:
        return [f"{found.server} is {NOT_PROBED}"]
    said: list[str] = []
    if not found.clips_gradients:
        ignored = f"{prefix}update.max_grad_norm={update.max_grad_norm:g} is"
        said.append(f"{found.server} does not clip gradients: {ignored} ignored")
    if not found.honours_betas:
        betas, decay = f"update.betas={list(update.betas)}", f"update.weight_decay={update.weight_decay:g}"
        ignored = f"{prefix}{betas} and {prefix}{decay} are"
        said.append(f"{found.server} has its own optimiser settings: {ignored} ignored")
    if not found.cispo_bounds:
        said.append(
            f"{found.server} has its own bounds for cispo: losses are computed here, with one forward pass more"
        )
    if update.lora_rank not in (defaults.lora_rank, config.backend.rank):
        said.append(
            f"{prefix}update.lora_rank={update.lora_rank} is for backend.kind=local: backend.rank={config.backend.rank}"
        )
    return said


def _served_window(origin: Origin, facts: ServerFacts) -> int | None:
    known = dict(zip(facts.models, facts.windows, strict=False))
    return known.get(origin.base_model)
