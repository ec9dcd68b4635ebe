"""The loop: collect, credit, update, publish, again; and how a run goes on after it was killed.

Everything random follows from the seed and the place in the run, so a run is its settings and its newest checkpoint. On
a CPU a resumed run ends with the very bits of one that was never interrupted (python cells, which run in processes of
their own, may come back in another order). With `overlap` that does not hold: which weights a token is sampled from
then depends on how long things take.
"""

# pyright: standard

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import torch

from ramet.agent.dialects import make_dialect
from ramet.budget import Budget
from ramet.config import load
from ramet.credit import Group, Rule
from ramet.credit import load as load_rule
from ramet.errors import ConfigError, TrainError
from ramet.interfaces import Taskset
from ramet.models.folders import load_model, model_folder
from ramet.store import RunDir
from ramet.tasks.registry import check_split, spec_of
from ramet.tasks.registry import load as load_taskset
from ramet.train.collect import attempts_of, collect
from ramet.train.local.backend import Held, Started, Tell, found_again, free_memory, hold, kept, quiet, settled, tracked
from ramet.train.local.checkpoint import folder_at, latest, save
from ramet.train.local.forward import score
from ramet.train.local.gradients import Elsewhere
from ramet.train.local.policy import prepare
from ramet.train.prefetch import ages, collecting
from ramet.train.rows import Row
from ramet.train.settings import TrainConfig, WarmConfig, warm_of
from ramet.train.step import facts_of, learn
from ramet.train.track import check_trackers
from ramet.train.warmstart import check_source, resume_warmstart, warmstart
from ramet.types import Node, Task, Tree, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a run asks for, each part found to be there before a model is loaded."""

    config: TrainConfig
    taskset: Taskset
    split: str
    rule: Rule
    trial: tuple[Taskset, str] | None  # what is only played
    warm: WarmConfig | None  # what goes before
    began: float = field(default_factory=time.monotonic)


def train(config: TrainConfig, *, runs: Path | str = "runs", tell: Tell = quiet, started: Started = quiet) -> RunDir:
    """A new run from its first step to its last, its supervised start first if it has one."""
    config = replace(config, model=settled(config.model))
    work = work_of(config)
    check_files(work)
    if work.warm is not None:
        model_folder(config.model)  # told before anything is written
        run = RunDir.create(runs, config.name, config=config, kind="train")
        started(run)
        with tracked(config, run, tell) as told:
            return _carry_on(work, run, tell=told, started=quiet)
    held = hold(config.model, config.update, config.sampler, seed=config.seed)
    with held.engine:
        run = RunDir.create(runs, config.name, config=config, kind="train")
        started(run)
        with tracked(config, run, tell) as told:
            anyio.run(partial(_go_on, work, held, run, first=0, tell=told))
    return run


def resume(path: Path | str, *, tell: Tell = quiet, started: Started = quiet) -> RunDir:
    """Go on where the newest checkpoint is. What was done after it is done again, and comes out the same."""
    run = found_again(path, kind="train")
    work = work_of(load(TrainConfig, file=run.path / "config.toml"))
    with tracked(work.config, run, tell) as told:
        return _carry_on(work, run, tell=told, started=started)


def _carry_on(work: Work, run: RunDir, *, tell: Tell, started: Started) -> RunDir:
    config = work.config
    newest = latest(run.path)
    model = config.model if work.warm is None else _warmed(work.warm, run, tell)
    held = hold(model, config.update, config.sampler, seed=config.seed, state=newest)
    with held.engine:
        first = held.engine.policy_version
        run.rewind(first)
        started(run)
        anyio.run(partial(_go_on, work, held, run, first=first, tell=tell))
    return run


def _warmed(config: WarmConfig, run: RunDir, tell: Tell) -> str:
    """What the supervised start makes of the model, taken up again where it was left."""

    def told(record: dict[str, Any]) -> None:
        tell(record | {"part": config.name})

    inside = run.path / config.name
    made = folder_at(inside, config.steps)
    if not made.is_dir():
        if inside.is_dir():
            resume_warmstart(inside, tell=told)
        else:
            warmstart(config, runs=run.path, tell=told)
        free_memory()
    return str(made)


def work_of(config: TrainConfig) -> Work:
    """Find everything a config names; what is not there is told now."""
    check_trackers(config.track)
    make_dialect(config.dialect)
    taskset, split = _tasks(config.task, config.taskset)
    rule = load_rule(config.rule, config.credit)
    if config.group_size == 1:
        _check_lone(rule, config.rule)
    trial = None
    if config.eval.every:
        trial = _tasks(config.eval.task or f"{taskset.name}:eval", config.taskset)
    warm = warm_of(config)
    if warm is not None:
        check_source(warm)
    return Work(config=config, taskset=taskset, split=split, rule=rule, trial=trial, warm=warm)


def check_files(work: Work) -> None:
    """Tasksets that read files have to find theirs, before an hour is spent until the first one is due."""
    for taskset, split in ((work.taskset, work.split), *([work.trial] if work.trial else [])):
        if taskset.size(split) == 0:
            raise ConfigError(f"{taskset.name}:{split} has no tasks")


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
        raise ConfigError(f"group_size=1: {name} compares the trees of one task; give group_size=2 or more") from None


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
    steps = range(first, config.steps)
    with kept(held, run, keep=config.keep_checkpoints):
        async with collecting(partial(_collect, work, held), steps, ahead=config.overlap) as collect_step:
            for step in steps:
                began = time.monotonic()
                trees = await collect_step(step)
                run.write(trees, name=f"step-{step:06d}")
                collected = time.monotonic()
                record = {"step": step, **await _learn(work, held, trees, step=step, reference=reference)}
                record |= {"collect_s": collected - began, "learn_s": time.monotonic() - collected}
                if work.trial is not None and (step + 1) % config.eval.every == 0:
                    record |= await _evaluate(work, held, run, *work.trial, step=step + 1)
                run.log(record)
                tell(record)
                over = config.minutes is not None and time.monotonic() - work.began > 60 * config.minutes
                if (step + 1) % config.save_every == 0 or step + 1 == config.steps or over:
                    save(held.learner, run.path, step=step + 1, tokenizer=held.folder, keep=config.keep_checkpoints)
                if over:
                    return


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


async def _learn(
    work: Work, held: Held, trees: list[Tree], *, step: int, reference: Elsewhere | None
) -> dict[str, Any]:
    config = work.config
    update = partial(
        learn,
        trees,
        rule=work.rule,
        learner=held.learner,
        engine=held.engine,
        loss=config.loss,
        rate=config.update.rate_at(step, config.steps),
        tokens=config.update.micro_batch_tokens,
        temperature=config.temperature,
        gap=config.max_logprob_gap,
        reference=reference,
    )
    if not config.overlap:
        return update()
    old = ages(trees, held.engine.policy_version)
    # In another thread, so that trees go on here; somebody who has had enough waits until it is done.
    return await anyio.to_thread.run_sync(update) | {"age": sum(old) / len(old), "age_max": max(old)}


async def _evaluate(work: Work, held: Held, run: RunDir, taskset: Taskset, split: str, *, step: int) -> dict[str, Any]:
    """Play the same tasks with the same seeds each time, one tree each; their numbers begin with `eval_`."""
    size = taskset.size(split)
    number = work.config.eval.num_tasks if size is None else min(size, work.config.eval.num_tasks)
    config = replace(work.config, tasks_per_step=number, group_size=1)
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
