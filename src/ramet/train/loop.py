"""The loop: collect, credit, update, publish, again; and how a run goes on after it was killed.

Everything random follows from the seed and the place in the run, so a run is its settings and its newest checkpoint. On
a CPU a resumed run ends with the very bits of one that was never interrupted (python cells, which run in processes of
their own, may come back in another order).
"""

# pyright: standard

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import torch

from ramet.agent.dialects import make_dialect
from ramet.budget import Budget
from ramet.chat import load_renderer
from ramet.config import load
from ramet.credit import Group, Rule
from ramet.credit import load as load_rule
from ramet.engine.local import LocalEngine
from ramet.errors import ConfigError, EngineError, StoreError, TrainError
from ramet.interfaces import Taskset
from ramet.models import load_model, model_folder
from ramet.render import TokenRenderer
from ramet.store import RunDir
from ramet.tasks import check_split
from ramet.tasks import load as load_taskset
from ramet.train.checkpoint import latest, load_state, save
from ramet.train.collect import attempts_of, collect
from ramet.train.forward import score
from ramet.train.gradients import Elsewhere
from ramet.train.learn import facts_of, learn
from ramet.train.learner import Learner, make_learner
from ramet.train.policy import Lora, prepare
from ramet.train.rows import Row
from ramet.train.settings import SamplerConfig, TrainConfig, UpdateConfig, spec_of
from ramet.types import Node, Task, Tree, Verdict

Tell = Callable[[dict[str, Any]], None]  # hears the numbers of every step
Started = Callable[[RunDir], None]  # hears where they are kept, when everything is loaded


def quiet(heard: object) -> None:
    """Says nothing."""
    del heard


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a run asks for, each part found to be there before a model is loaded."""

    config: TrainConfig
    taskset: Taskset
    split: str
    rule: Rule
    trial: tuple[Taskset, str] | None  # what is only played


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a run holds while it goes on."""

    learner: Learner
    engine: LocalEngine
    renderer: TokenRenderer
    folder: Path  # where the model came from


def train(config: TrainConfig, *, runs: Path | str = "runs", tell: Tell = quiet, started: Started = quiet) -> RunDir:
    """A new run from its first step to its last."""
    config = replace(config, model=settled(config.model))
    work = work_of(config)
    held = hold(config.model, config.update, config.sampler, seed=config.seed)
    with held.engine:
        run = RunDir.create(runs, config.name, config=config, kind="train")
        started(run)
        anyio.run(partial(_go_on, work, held, run, first=0, tell=tell))
    return run


def resume(path: Path | str, *, tell: Tell = quiet, started: Started = quiet) -> RunDir:
    """Go on where the newest checkpoint is. What was done after it is done again, and comes out the same."""
    run = found_again(path, kind="train")
    config = load(TrainConfig, file=run.path / "config.toml")
    work = work_of(config)
    newest = latest(run.path)
    held = hold(config.model, config.update, config.sampler, seed=config.seed, state=newest)
    with held.engine:
        first = held.engine.policy_version
        run.rewind(first)
        started(run)
        anyio.run(partial(_go_on, work, held, run, first=first, tell=tell))
    return run


def found_again(path: Path | str, *, kind: str) -> RunDir:
    """A run of this kind, to go on with."""
    run = RunDir.open(path)
    if run.kind != kind:
        raise StoreError(f"{run.path} cannot go on here: it was made by ramet {run.kind}, not by ramet {kind}")
    return run


def settled(model: str) -> str:
    """A model's folder by its full name, so that a run can go on from elsewhere."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model


def work_of(config: TrainConfig) -> Work:
    """Find everything a config names; what is not there is told now."""
    make_dialect(config.dialect)
    taskset, split = _tasks(config.task, config.options)
    rule = load_rule(config.rule, config.credit)
    if config.group == 1:
        _check_lone(rule, config.rule)
    trial = None
    if config.eval.every:
        trial = _tasks(config.eval.task or f"{taskset.name}:eval", config.options)
    return Work(config=config, taskset=taskset, split=split, rule=rule, trial=trial)


def _tasks(spec: str, options: dict[str, Any]) -> tuple[Taskset, str]:
    name, split = spec_of(spec)
    taskset = load_taskset(name, **options)
    return taskset, check_split(taskset, split)


def _check_lone(rule: Rule, name: str) -> None:
    """Most rules compare trees of one task, and cannot with one: better said before an hour of collecting."""
    tree = Tree(id="lone", task=Task(question="?"), budget=Budget())
    node = Node(index=0, parent=None, depth=0, path=(), goal="?", grant=1, verdict=Verdict(score=1.0, how="exact"))
    tree.nodes.append(node)
    try:
        rule.credit([Group(key="lone", trees=(tree,))])
    except TrainError:
        raise ConfigError(f"group=1: {name} compares the trees of one task; give group=2 or more") from None


def hold(model: str, update: UpdateConfig, sampler: SamplerConfig, *, seed: int, state: Path | None = None) -> Held:
    """Load a model, make it ready to learn and to sample; with `state`, as that checkpoint left it."""
    folder = model_folder(model)
    source = state if state is not None and not update.lora else folder
    loaded = load_model(source, device=sampler.device, dtype=sampler.dtype)
    lora = Lora(rank=update.lora, alpha=update.lora_alpha) if update.lora else None
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        policy = prepare(loaded, packed=update.packed, checkpointing=update.checkpointing, lora=lora)
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


def _reference(config: TrainConfig, held: Held) -> Elsewhere | None:
    """The model as it was before the run, when KL pulls towards it."""
    if not config.loss.kl:
        return None
    model = load_model(held.folder, device=config.sampler.device, dtype=config.sampler.dtype)
    policy = prepare(model, packed=config.update.packed)

    def logprobs(rows: Sequence[Row]) -> torch.Tensor:
        return score(policy, rows, temperature=config.temperature).logprobs

    return logprobs


async def _go_on(work: Work, held: Held, run: RunDir, *, first: int, tell: Tell) -> None:
    """One event loop for all steps: an interrupt is heard where trees are awaited, never in the middle of an update."""
    config = work.config
    reference = _reference(config, held)
    with kept(held, run, keep=config.keep):
        for step in range(first, config.steps):
            began = time.monotonic()
            trees = await _collect(work, held, step)
            run.write(trees, name=f"step-{step:06d}")
            collected = time.monotonic()
            learnt = _learn(work, held, trees, step=step, reference=reference)
            record = {"step": step, **learnt, "collect_s": collected - began, "learn_s": time.monotonic() - collected}
            if work.trial is not None and (step + 1) % config.eval.every == 0:
                record |= await _evaluate(work, held, run, *work.trial, step=step + 1)
            run.log(record)
            tell(record)
            if (step + 1) % config.save_every == 0 or step + 1 == config.steps:
                save(held.learner, run.path, step=step + 1, tokenizer=held.folder, keep=config.keep)


@contextmanager
def kept(held: Held, run: RunDir, *, keep: int) -> Iterator[None]:
    """When a step cannot be done, or somebody has had enough, what was learnt and logged before it is saved.

    A step that was under way, or was done and not logged yet, is left to be done again from an older checkpoint.
    """
    try:
        yield
    except (KeyboardInterrupt, anyio.get_cancelled_exc_class(), ConfigError, EngineError, TrainError):
        done = held.learner.done
        if done and held.learner.whole and run.metrics()[-1:] and run.metrics()[-1]["step"] + 1 == done:
            save(held.learner, run.path, step=done, tokenizer=held.folder, keep=keep)
        raise


async def _collect(work: Work, held: Held, step: int) -> list[Tree]:
    config = work.config
    return await collect(
        work.taskset,
        attempts_of(work.taskset, work.split, config, step=step),
        engine=held.engine,
        dialect=config.dialect,
        temperature=config.temperature,
        show_budget=config.show_budget,
    )


def _learn(work: Work, held: Held, trees: list[Tree], *, step: int, reference: Elsewhere | None) -> dict[str, Any]:
    config = work.config
    return learn(
        trees,
        rule=work.rule,
        learner=held.learner,
        engine=held.engine,
        loss=config.loss,
        rate=config.update.rate_at(step, config.steps),
        tokens=config.update.tokens,
        temperature=config.temperature,
        gap=config.gap,
        reference=reference,
    )


async def _evaluate(work: Work, held: Held, run: RunDir, taskset: Taskset, split: str, *, step: int) -> dict[str, Any]:
    """Play the same tasks with the same seeds each time, one tree each; their numbers begin with `eval_`."""
    size = taskset.size(split)
    number = work.config.eval.number if size is None else min(size, work.config.eval.number)
    config = replace(work.config, tasks=number, group=1)
    attempts = [
        replace(attempt, id=f"eval-{step:06d}-{place:03d}")
        for place, attempt in enumerate(attempts_of(taskset, split, config, step=0))
    ]

    trees = await collect(
        taskset,
        attempts,
        engine=held.engine,
        dialect=config.dialect,
        temperature=config.eval.temperature,
        show_budget=config.show_budget,
    )
    with held.engine.updating(version=step):  # the next step must not find what is cached now: a resumed run would not
        run.write(trees, name=f"eval-{step:06d}")
    return {f"eval_{name}": fact for name, fact in facts_of(trees).items()}
