"""Train by reward: `train` starts a run, `resume` continues one. Both go through `_continue`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ramet.agent.dialects import make_dialect
from ramet.agent.live import LiveLog
from ramet.agent.options import TreeOptions
from ramet.config import load
from ramet.credit import load_rule
from ramet.errors import ConfigError
from ramet.interfaces import Rule, Taskset, Windowed
from ramet.models.folders import check_model_name
from ramet.store import RunDir
from ramet.store.checkpoints import checkpoint_path
from ramet.tasks.provenance import check_plugins, plugin_facts
from ramet.tasks.registry import check_split, load_taskset, parse_spec
from ramet.tasks.returned import split_size
from ramet.tasks.unchecked import Unchecked
from ramet.tasks.worlds import with_world
from ramet.train.backend import Backend
from ramet.train.collect import Attempt, Play, collect, play_here, step_attempts
from ramet.train.curriculum import Curriculum
from ramet.train.decisions import DecisionReplays
from ramet.train.demos import demos_source, open_demos
from ramet.train.groups import CollectGroup, GroupPool
from ramet.train.judging import judge_engine_config, training_judge
from ramet.train.length import change_settings
from ramet.train.levels import Level, find_levels
from ramet.train.metrics import tree_metrics
from ramet.train.phase import (
    NO_SNAPSHOTS,
    Configured,
    Evaluate,
    OnStart,
    OpenBackend,
    Phase,
    check_overlap,
    continue_run,
    ignore,
    is_complete,
    new_run,
    reopen_run,
    tracked,
)
from ramet.train.players.pool import Players
from ramet.train.players.settings import check_references
from ramet.train.preview import check_first_task
from ramet.train.refill import OneSplit, Source, collect_with_signal, step_groups
from ramet.train.rule_trial import check_group_of_one, check_rule
from ramet.train.settings import TrainConfig, WarmConfig, resolve_model_path, warm_config
from ramet.train.step import credited_rows
from ramet.train.track import OnStep, check_trackers
from ramet.train.updates import check_mini_batches
from ramet.train.warmstart import check_source, warm_phase
from ramet.train.watch import stop_rule
from ramet.types import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """Everything the settings of a run name, found to exist before a model is loaded."""

    config: TrainConfig
    taskset: Taskset
    split: str
    rule: Rule
    evaluation: tuple[Taskset, str] | None  # tasks that are only played
    warm: WarmConfig | None  # the supervised start
    levels: tuple[Level, ...] = ()  # of the curriculum; none: there is no curriculum
    began: float = field(default_factory=time.monotonic)

    @property
    def first_split(self) -> str:
        """The split of the first task."""
        return self.levels[0].split if self.levels else self.split


def train(
    config: TrainConfig,
    *,
    runs: Path | str = "runs",
    open_backend: OpenBackend | None = None,
    on_step: OnStep = ignore,
    on_start: OnStart = ignore,
    lower_overlap: Callable[[str], None] | None = None,
) -> RunDir:
    """Run a new training from its first step to its last, after its supervised start if it has one.

    A model that cannot be loaded is reported before anything is written. A backend that cannot sample while it trains
    refuses `overlap`; with `lower_overlap` the run has none there, and this is called with the reason.
    """
    config = replace(config, model=resolve_model_path(config.model))
    plan, open_backend = check_plan(config), open_backend or Configured(config)
    backend = open_backend(plan.warm or config)
    try:
        config = _fit_overlap(config, backend, lower_overlap)
        plan = replace(plan, config=config)
        _check_first_tasks(plan, backend)
    except ConfigError:
        backend.close()
        raise
    with new_run(runs, config, kind="train", facts=plugin_facts(config)) as run:
        return _continue(plan, run, backend, open_backend=open_backend, on_step=on_step, on_start=on_start)


def resume(
    path: Path | str,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    settings: Mapping[str, Any] | None = None,
    open_backend: OpenBackend | None = None,
    on_step: OnStep = ignore,
    on_start: OnStart = ignore,
    accept_changes: bool = False,
) -> RunDir:
    """Continue a run from its newest checkpoint. Steps after it are repeated, with the same result.

    `steps` gives the run another number of steps, `minutes` another limit of time, `settings` others of those in
    `ramet.train.length.FREE`. A run whose plug-ins have changed
    since is refused unless `accept_changes`. For a run that has done all its steps no backend is opened.
    """

    def check(run: RunDir) -> None:
        config = load(TrainConfig, file=run.path / "config.toml")
        if not _is_over(run, config if steps is None else replace(config, steps=steps)):
            check_plugins(run, accept_changes=accept_changes)

    with reopen_run(path, kind="train", check=check) as run:
        given = load(TrainConfig, file=run.path / "config.toml")
        config = change_settings(run, given, steps=steps, minutes=minutes, settings=settings)
        if _is_over(run, config):
            on_start(run)
            return run
        plan = resolve_plan(config)
        opened = open_backend or Configured(config)
        return _continue(plan, run, None, open_backend=opened, on_step=on_step, on_start=on_start)


def _is_over(run: RunDir, config: TrainConfig) -> bool:
    """Whether all steps are done: those of RL, or of the supervised start if there is nothing else."""
    warm = warm_config(config)
    if config.steps or warm is None:
        return is_complete(run, config.steps)
    return checkpoint_path(run.path / warm.name, warm.steps).is_dir()


def _continue(
    plan: TrainPlan,
    run: RunDir,
    backend: Backend | None,
    *,
    open_backend: OpenBackend,
    on_step: OnStep,
    on_start: OnStart,
) -> RunDir:
    """The supervised start as far as it is missing, then RL. `backend` has the first model, if it is open already."""
    config = plan.config
    on_start(run)
    with tracked(config, run, on_step) as report:
        if plan.warm is not None:
            model = _warm_start(plan.warm, run, backend, open_backend=open_backend, on_step=report)
            config, backend = replace(config, model=model), None
        if config.steps:
            continue_run(partial(rl_phase, plan, run), backend or open_backend(config), run, on_step=report)
    return run


def _warm_start(
    config: WarmConfig, run: RunDir, backend: Backend | None, *, open_backend: OpenBackend, on_step: OnStep
) -> str:
    """The checkpoint that the supervised start ends with; its run directory lies inside `run`."""
    folder = run.path / config.name
    final = checkpoint_path(folder, config.steps)
    if not final.is_dir():
        if not folder.is_dir():
            RunDir.create(run.path, config.name, config=config, kind="warmstart")
        report = partial(_as_part, on_step, config.name)
        with reopen_run(folder, kind="warmstart") as inner:
            continue_run(partial(warm_phase, config), backend or open_backend(config), inner, on_step=report)
    return str(final)


def _as_part(on_step: OnStep, part: str, record: dict[str, Any]) -> None:
    on_step(record | {"part": part})


def _fit_overlap(config: TrainConfig, backend: Backend, lower: Callable[[str], None] | None) -> TrainConfig:
    """The settings that this backend can run, found out now and not after the supervised start."""
    if lower is None or not config.overlap or backend.supports_overlap:
        check_overlap(config.overlap, backend)
        return config
    lower(f"overlap=0 instead of the recipe's overlap={config.overlap}: {NO_SNAPSHOTS}")
    return replace(config, overlap=0, overlap_by="steps", max_age=None, max_trees=None)


def _check_first_tasks(plan: TrainPlan, backend: Backend) -> None:
    """Refuse a window that is too small for the first task, or for that of evaluations, before the supervised start."""
    window = backend.engine.window if isinstance(backend.engine, Windowed) else None
    check_first_task(plan.taskset, plan.first_split, plan.config, backend.renderer, window=window)
    if plan.evaluation is not None:
        check_first_task(*plan.evaluation, _evaluation_config(plan.config), backend.renderer, window=window)


def check_plan(config: TrainConfig) -> TrainPlan:
    """The plan of a new run, with all task files found. Loads neither torch nor a model."""
    if config.backend.kind == "local":
        check_model_name(config.model)
    plan = resolve_plan(config)
    for taskset, split in ((plan.taskset, plan.split), *([plan.evaluation] if plan.evaluation else [])):
        if split_size(taskset, split) == 0:
            raise ConfigError(f"{taskset.name}:{split} has no tasks")
    check_rule(plan.rule, plan.taskset, plan.first_split, config)
    return plan


def resolve_tasks(config: TrainConfig) -> tuple[tuple[Taskset, str], tuple[Taskset, str] | None]:
    """The tasks that are trained on, and those of evaluations if there are any."""
    name, _ = parse_spec(config.task)
    evaluated = config.eval.task or f"{name}:eval"
    return _find_split(config.task, config), _find_split(evaluated, config) if config.eval.every else None


def resolve_plan(config: TrainConfig) -> TrainPlan:
    """Look up everything the settings name; what does not exist is reported now."""
    check_trackers(config.track)
    check_references(config.collect, task=config.task, dialect=config.dialect, world=config.world)
    stop_rule(config.stop)
    make_dialect(config.dialect)
    judge_engine_config(config)
    (taskset, split), evaluation = resolve_tasks(config)
    rule = load_rule(config.rule, config.credit)
    if config.group_size == 1:
        check_group_of_one(rule, config.rule)
    warm = warm_config(config)
    if warm is not None:
        check_source(warm)
    demos_source(config)
    check_mini_batches(config)
    levels = find_levels(taskset, split, config.curriculum)
    return TrainPlan(
        config=config, taskset=taskset, split=split, rule=rule, evaluation=evaluation, warm=warm, levels=levels
    )


def _find_split(spec: str, config: TrainConfig) -> tuple[Taskset, str]:
    name, split = parse_spec(spec)
    taskset = with_world(load_taskset(name, **config.taskset), config.world)
    return taskset, check_split(taskset, split)


def _players(plan: TrainPlan, run: RunDir, backend: Backend) -> Players:
    return Players(
        plan.config,
        engine=backend.engine,
        renderer=backend.renderer,
        evaluation=None if plan.evaluation is None else plan.evaluation[0],
        folder=run.path,
    )


@asynccontextmanager
async def _all_open(*contexts: AbstractAsyncContextManager[object]) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for context in contexts:
            await stack.enter_async_context(context)
        yield


def rl_phase(plan: TrainPlan, run: RunDir, backend: Backend) -> Phase:
    """Groups of trees, credit for every node, evaluation now and then."""
    config = plan.config
    judge, judging = training_judge(config, backend, run.path)
    players = _players(plan, run, backend) if config.collect.processes else None
    play = play_here if players is None else players.play
    watcher = LiveLog(run.path) if players is None else None  # else the first player has it
    options = TreeOptions.from_settings(config, engine=backend.engine, judge=judge, watcher=watcher)

    unchecked = Unchecked()
    curriculum = Curriculum(plan.levels, plan.taskset, config, records=run.metrics()) if plan.levels else None
    source = OneSplit(taskset=plan.taskset, split=plan.split, config=config) if curriculum is None else curriculum
    replays = None
    if config.counterfactual.share:
        replays = DecisionReplays(config.counterfactual, plan.taskset, options, run, seed=config.seed)

    async def collect_step(step: int) -> list[Tree]:
        trees = await collect_with_signal(source, plan.taskset, config, options, rule=plan.rule, step=step, play=play)
        if replays is not None:
            await replays.replay(trees, step=step)
        return trees

    teach = partial(
        credited_rows if replays is None else replays.lesson,
        rule=plan.rule,
        num_groups=config.tasks_per_step if config.refill else None,
        keep_flat=config.loss.kl > 0,
    )
    groups = _group_pool(plan, options, source, replays, play) if config.overlap_by == "groups" else None
    for wrapper in (curriculum, groups):
        teach = teach if wrapper is None else partial(wrapper.lesson, teach=teach)
    return Phase(
        config=config,
        collect=collect_step,
        lesson=teach,
        demos=open_demos(config, backend.renderer),
        taskset=plan.taskset,
        temperature=config.temperature,
        max_logprob_gap=config.max_logprob_gap,
        overlap=config.overlap,
        groups=groups,
        stores_trees=True,
        evaluate=_evaluation(plan, run, backend, options, play, unchecked),
        unchecked=unchecked,
        keep_best=config.keep_best,
        stop=config.stop,
        stop_rule=stop_rule(config.stop),
        deadline=None if config.minutes is None else plan.began + 60 * config.minutes,
        resources=_all_open(judging, *([] if players is None else [players])),
    )


def _group_pool(
    plan: TrainPlan,
    options: TreeOptions,
    source: Source,
    replays: DecisionReplays | None,
    play: Play,
) -> GroupPool:
    """Groups that are collected one by one. Decisions are replayed when a step has its groups."""
    config = plan.config

    async def play_counted(taskset: Taskset, attempt: Attempt, options: TreeOptions) -> Tree:
        tree = await play(taskset, attempt, options)
        pool.tree_ended(attempt.id)
        return tree

    def open_step(step: int) -> Sequence[CollectGroup]:
        return step_groups(source, plan.taskset, config, options, rule=plan.rule, step=step, play=play_counted)

    pool = GroupPool(
        open_step,
        per_step=config.tasks_per_step,
        ahead=config.overlap,
        max_age=2 * config.overlap if config.max_age is None else config.max_age,
        group_size=config.group_size,
        max_trees=config.max_trees,
        finish=None if replays is None else lambda trees, step: replays.replay(trees, step=step),
    )
    return pool


def _evaluation(
    plan: TrainPlan, run: RunDir, backend: Backend, options: TreeOptions, play: Play, unchecked: Unchecked
) -> Evaluate | None:
    """The same tasks with the same seeds each time, one tree each; metrics begin with `eval_`."""
    if plan.evaluation is None:
        return None
    taskset, split = plan.evaluation
    every, size = plan.config.eval.every, split_size(taskset, split)
    config = _evaluation_config(plan.config)
    config = replace(config, tasks_per_step=min(config.tasks_per_step, size or config.tasks_per_step))
    options = replace(options, temperature=config.eval.temperature)

    async def evaluate(step: int) -> dict[str, Any]:
        if step % every:
            return {}
        attempts = [
            replace(attempt, id=f"eval-{step:06d}-{place:03d}")
            for place, attempt in enumerate(step_attempts(taskset, split, config, step=0))
        ]
        trees = await collect(taskset, attempts, options, play=play)
        # The next step must not find a cache that a resumed run would not have.
        await backend.publish(step, fresh=True)
        run.write(trees, name=f"eval-{step:06d}")
        unchecked.add(trees)
        return {f"eval_{name}": value for name, value in tree_metrics(trees, taskset).items()}

    return evaluate


def _evaluation_config(config: TrainConfig) -> TrainConfig:
    """The settings of evaluations: so many tasks, one tree each, with their own limits."""
    return replace(
        config, tasks_per_step=config.eval.num_tasks, group_size=1, budget=config.budget | config.eval.budget
    )
