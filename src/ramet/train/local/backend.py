"""What a run holds while it goes on, and how it keeps what it learnt when it cannot go on."""

# pyright: standard

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio
import torch

from ramet.engine.local import LocalEngine
from ramet.engine.local.setup import SMALL
from ramet.errors import ConfigError, EngineError, StoreError, TrainError
from ramet.models.folders import OURS, load_model, model_folder
from ramet.store import RunDir
from ramet.tokens.huggingface import load_renderer
from ramet.tokens.render import TokenRenderer
from ramet.train.local.checkpoint import latest, load_state, save
from ramet.train.local.learner import Learner, make_learner
from ramet.train.local.policy import Lora, prepare
from ramet.train.settings import SamplerConfig, TrainConfig, UpdateConfig, WarmConfig
from ramet.train.track import Tell, open_trackers, tracking

Started = Callable[[RunDir], None]  # hears where they are kept, when everything is loaded


def quiet(heard: object) -> None:
    """Says nothing."""
    del heard


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a run holds while it goes on."""

    learner: Learner
    engine: LocalEngine
    renderer: TokenRenderer
    folder: Path  # where the model came from


def found_again(path: Path | str, *, kind: str) -> RunDir:
    """A run of this kind, to go on with."""
    run = RunDir.open(path)
    if run.kind != kind:
        raise StoreError(f"{run.path} cannot go on here: it was made by ramet {run.kind}, not by ramet {kind}")
    return run


def settled(model: str) -> str:
    """A model's folder by its full name, so that a run can go on from elsewhere; of a run, its newest checkpoint."""
    folder = Path(model)
    return str((latest(folder) or folder).resolve()) if folder.is_dir() and model not in OURS else model


def hold(model: str, update: UpdateConfig, sampler: SamplerConfig, *, seed: int, state: Path | None = None) -> Held:
    """Load a model, make it ready to learn and to sample; with `state`, as that checkpoint left it."""
    folder = model_folder(model)
    source = state if state is not None and not update.lora_rank else folder
    loaded = load_model(source, device=sampler.device, dtype=sampler.dtype)
    lora = Lora(rank=update.lora_rank, alpha=update.lora_alpha) if update.lora_rank else None
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        policy = prepare(loaded, packed=update.packed, checkpointing=update.gradient_checkpointing, lora=lora)
    renderer = load_renderer(folder)
    engine = LocalEngine(
        policy.core,
        renderer=renderer,
        max_batch=sampler.max_batch,
        cache_tokens=sampler.cache_tokens,
        window=sampler.window,
    )
    learner = make_learner(policy, update)
    if state is not None:
        with engine.updating(version=load_state(learner, state)):
            pass
    return Held(learner=learner, engine=engine, renderer=renderer, folder=folder)


@contextmanager
def few_threads(learner: Learner) -> Iterator[None]:
    """One thread for a very small model on a CPU, as in the engine: several would mostly wait for each other."""
    core, before = learner.policy.core, torch.get_num_threads()
    if core.device.type == "cpu" and core.num_parameters() < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def kept(held: Held, run: RunDir, *, keep: int) -> Iterator[None]:
    """When a step cannot be done, or somebody has had enough, what was learnt and logged before it is saved.

    A step that was under way, or was done and not logged yet, is left to be done again from an older checkpoint.
    """
    try:
        with few_threads(held.learner):
            yield
    except (KeyboardInterrupt, anyio.get_cancelled_exc_class(), ConfigError, EngineError, TrainError):
        done = held.learner.done
        if done and held.learner.whole and run.metrics()[-1:] and run.metrics()[-1]["step"] + 1 == done:
            save(held.learner, run.path, step=done, tokenizer=held.folder, keep=keep)
        raise


def tracked(config: TrainConfig | WarmConfig, run: RunDir, tell: Tell) -> AbstractContextManager[Tell]:
    """A `tell` that lets those know too whom the settings name."""
    return tracking(open_trackers(config.track, run.path, asdict(config)), tell)


def free_memory() -> None:
    """Let go of a model that nobody holds any more, on the GPU too: the next one takes its share of what is free."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
