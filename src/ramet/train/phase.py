"""The training loop: collect trees, learn from them, publish the weights, save, again.

RL and a supervised start are two `Phase`s of the same loop; a new run and a resumed one differ in the step they begin
with. Everything random follows from the seed and the place in the run, so a run is its settings and its newest
checkpoint: on a CPU a resumed run ends with the same bits as one that was never interrupted (python cells run in
processes of their own and may come back in another order). With `overlap` that does not hold, because which weights a
token is sampled from then depends on timing.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread

from ramet.errors import ConfigError, EngineError, OutputClosed, StoreError, TrainError
from ramet.interfaces import Taskset
from ramet.store import RunDir
from ramet.store.checkpoints import (
    Best,
    best_folder,
    checkpoint_path,
    checkpoint_step,
    latest,
    read_best,
    remove_checkpoint,
    write_best,
)
from ramet.store.facts import finite
from ramet.store.lock import exclusive_lock
from ramet.tasks.unchecked import Unchecked
from ramet.train.backend import Backend
from ramet.train.groups import GroupPool, learnt_groups
from ramet.train.metrics import age_metrics, engine_counts, engine_metrics, tree_metrics
from ramet.train.prefetch import Collect, prefetching
from ramet.train.rows import Row
from ramet.train.settings import StopConfig, TrainConfig, WarmConfig
from ramet.train.step import Lesson
from ramet.train.track import OnStep, open_trackers, tracking
from ramet.train.updates import Batch, learn
from ramet.train.watch import CEASED, STOPPED, StopRule, delegation_note, evaluation_value, stop_reason
from ramet.types import Tree

if TYPE_CHECKING:
    from ramet.train.tinker.open import Known

T = TypeVar("T")
OnStart = Callable[[RunDir], None]  # called with the run directory as soon as it exists
OpenBackend = Callable[[TrainConfig | WarmConfig], Backend]
Evaluate = Callable[[int], Awaitable[dict[str, Any]]]
NO_SNAPSHOTS = (
    "the backend keeps no snapshot of published weights, so trees that are sampled while it trains would come from "
    "weights that no version names"
)


def ignore(event: object) -> None:
    """Default callback: ignore."""
    del event


def open_local(config: TrainConfig | WarmConfig) -> Backend:
    """The model in this process; its learner in another one, if the settings say so."""
    from ramet.models.packages import check_packages

    check_packages()  # a one-line error instead of a traceback
    if config.update.process:
        from ramet.train.local.process_backend import open_backend as open_process_backend

        return open_process_backend(config)
    from ramet.train.local.backend import open_backend

    return open_backend(config)


class Configured:
    """Opens the backends that the settings of one run name. Its server, if it has one, is probed once.

    `run` has the settings of the whole run where the first backend is that of its supervised start.
    """

    def __init__(self, run: TrainConfig | None = None) -> None:
        self._run = run
        self._known: Known | None = None

    def __call__(self, config: TrainConfig | WarmConfig) -> Backend:
        if config.backend.kind == "local":
            return open_local(config)
        from ramet.train.tinker.open import Known, open_backend

        self._known = self._known or Known()
        return open_backend(config, known=self._known, run=self._run)


def check_overlap(overlap: int, backend: Backend) -> None:
    """Refuse to collect ahead on a backend that cannot sample while it trains."""
    if overlap and not backend.supports_overlap:
        raise ConfigError(f"overlap={overlap} does not work here: {NO_SNAPSHOTS}; add overlap=0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demos:
    """Demonstrations that every update learns from too: their trees by step, and what is copied of them."""

    collect: Collect
    rows: Callable[[Sequence[Tree]], Sequence[Row]]


async def _no_demos(step: int) -> list[Tree]:
    return []


NO_DEMOS = Demos(collect=_no_demos, rows=lambda _: ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What the loop runs: where trees come from, what is learnt from them, when to evaluate and to stop."""

    config: TrainConfig | WarmConfig
    collect: Collect
    lesson: Callable[[Sequence[Tree]], Lesson]
    demos: Demos = NO_DEMOS
    taskset: Taskset | None = None  # knows more about goals and worlds than their words, for the metrics
    temperature: float = 1.0
    max_logprob_gap: float | None = None
    overlap: int = 0
    groups: GroupPool | None = None  # instead of `collect`: steps are made of the groups that are complete
    stores_trees: bool = False
    evaluate: Evaluate | None = None  # called after every step; returns {} where no evaluation is due
    keep_best: bool = False  # whether the best model by evaluation is kept
    stop: StopConfig | None = None  # when the run has failed
    stop_rule: StopRule | None = None  # the user's own, beside those of `stop`
    unchecked: Unchecked = field(default_factory=Unchecked)  # reports trees whose verdicts failed
    deadline: float | None = None  # time.monotonic() after which the run stops, saved
    resources: AbstractAsyncContextManager[object] = field(default_factory=nullcontext)  # open during the run


async def run_phase(phase: Phase, backend: Backend, run: RunDir, *, on_step: OnStep) -> None:
    """From the newest checkpoint to the last step. An interrupt takes effect where trees are awaited.

    When a step fails or is interrupted, the last complete one is saved. A step that was done but not logged is
    repeated from an older checkpoint.
    """
    config = phase.config
    check_overlap(phase.overlap, backend)
    newest = latest(run.path)
    logged = 0 if newest is None else await backend.load(newest)
    steps = range(logged, config.steps)
    records = run.metrics()
    collecting = _collecting(phase, run, steps, records)
    try:
        async with (
            collecting as collect,
            prefetching(phase.demos.collect, steps, ahead=phase.overlap) as show,
        ):
            for step in steps:
                record = finite(await _step(phase, backend, run, collect, show, step))  # as a resumed run reads it
                records.append(record)
                await _log(phase, backend, run, records)
                logged = step + 1
                on_step(record)
                over = STOPPED in record or (phase.deadline is not None and time.monotonic() > phase.deadline)
                if over or logged == config.steps or logged % config.save_every == 0:
                    await backend.save(run.path, step=logged, keep=config.keep_checkpoints)
                if over:
                    return
    except (KeyboardInterrupt, anyio.get_cancelled_exc_class(), ConfigError, EngineError, OutputClosed, TrainError):
        if logged and logged == backend.version:
            with anyio.CancelScope(shield=True):
                await backend.save(run.path, step=logged, keep=config.keep_checkpoints)
        raise


def _collecting(
    phase: Phase, run: RunDir, steps: range, records: Sequence[dict[str, Any]]
) -> AbstractAsyncContextManager[Collect]:
    """Where the trees of every step come from, whole steps or complete groups."""
    if phase.groups is None:
        return prefetching(phase.collect, steps, ahead=phase.overlap)
    run.drop_trees(steps.start)  # other steps may learn from their groups now
    return phase.groups.collecting(steps, learnt=learnt_groups(records, steps=steps.start))


async def _log(phase: Phase, backend: Backend, run: RunDir, records: list[dict[str, Any]]) -> None:
    """Log the last record, with the reason if the run stops because of it, and keep its model if it is the best."""
    record = records[-1]
    if phase.stop is not None and record["step"] + 1 < phase.config.steps:
        reason = stop_reason(records, phase.stop, phase.stop_rule)
        note = delegation_note(records, phase.stop.window)
        record |= ({} if reason is None else {STOPPED: reason}) | ({} if note is None else {CEASED: note})
    run.log(record)
    if phase.keep_best:
        await _keep_best(backend, run, record)


async def _keep_best(backend: Backend, run: RunDir, record: dict[str, Any]) -> None:
    """Keep the model of this step if it is the best in an evaluation so far. The first of equals is kept.

    This comes before the checkpoint of the step, so that a run that is killed in between repeats it.
    """
    value, best = evaluation_value(record), read_best(run.path)
    if value is None or (best is not None and value <= best.value):
        return
    done = record["step"] + 1
    remove_checkpoint(checkpoint_path(best_folder(run.path), done))  # of a run that was killed; weights may differ
    await backend.save(best_folder(run.path), step=done, keep=1)
    write_best(run.path, Best(step=done, value=value))


async def _step(
    phase: Phase, backend: Backend, run: RunDir, collect: Collect, show: Collect, step: int
) -> dict[str, Any]:
    began, before = time.monotonic(), engine_counts(backend.engine)
    trees, demos = await collect(step), await show(step)
    collected = time.monotonic()
    shown = await _beside_trees(phase, partial(_store_and_count, phase, run, trees, step))
    record = {"step": step, **shown, **await _learn(phase, backend, trees, demos, step)}
    record |= engine_metrics(before, engine_counts(backend.engine))
    record |= {"collect_s": collected - began, "learn_s": time.monotonic() - collected}
    return record if phase.evaluate is None else record | await phase.evaluate(step + 1)


async def _beside_trees(phase: Phase, work: Callable[[], T]) -> T:
    """Do work on collected trees. Where trees of the next steps are under way, it must not make them wait."""
    return await anyio.to_thread.run_sync(work) if phase.overlap else work()


def _store_and_count(phase: Phase, run: RunDir, trees: list[Tree], step: int) -> dict[str, Any]:
    if phase.stores_trees:
        run.write(trees, name=f"step-{step:06d}")
    phase.unchecked.add(trees)
    return tree_metrics(trees, phase.taskset)


async def _learn(phase: Phase, backend: Backend, trees: list[Tree], demos: list[Tree], step: int) -> dict[str, Any]:
    """Learn from the trees and publish version `step + 1`, also when there was nothing to learn."""
    ages = age_metrics(trees, backend.version) if phase.overlap else {}
    lesson = await _beside_trees(phase, partial(phase.lesson, trees))
    metrics = lesson.metrics | await learn(
        backend,
        Batch(rows=lesson.rows, demos=phase.demos.rows(demos)),
        config=phase.config,
        step=step,
        temperature=phase.temperature,
        max_logprob_gap=phase.max_logprob_gap,
    )
    if phase.demos is not NO_DEMOS:
        metrics["demo_trees"] = len(demos)
    await backend.publish(step + 1)
    return metrics | ages


def continue_run(phase: Callable[[Backend], Phase], backend: Backend, run: RunDir, *, on_step: OnStep) -> None:
    """Run a phase to its end and close the backend. `phase` is made for the backend's engine and tokenizer."""
    with closing(backend):
        anyio.run(partial(_run_within, phase(backend), backend, run, on_step=on_step))


async def _run_within(phase: Phase, backend: Backend, run: RunDir, *, on_step: OnStep) -> None:
    async with phase.resources:
        await run_phase(phase, backend, run, on_step=on_step)


@contextmanager
def new_run(
    runs: Path | str, config: TrainConfig | WarmConfig, *, kind: str, facts: Mapping[str, Any]
) -> Generator[RunDir]:
    """A new run, locked. It is removed again if the block fails before anything was written into it."""
    run = RunDir.create(runs, config.name, config=config, kind=kind, facts=facts)
    with exclusive_lock(run.path):
        try:
            yield run
        except BaseException:
            run.remove_if_empty()
            raise


@contextmanager
def reopen_run(path: Path | str, *, kind: str, check: Callable[[RunDir], None] = ignore) -> Generator[RunDir]:
    """An existing run of this kind, locked, without the metrics of steps that will be repeated.

    `check` may refuse it before anything is changed.
    """
    run = RunDir.open(path)
    if run.kind != kind:
        raise StoreError(f"{run.path} cannot be resumed here: it was made by ramet {run.kind}, not by ramet {kind}")
    if "steps" not in run.settings:
        raise StoreError(f"cannot read {run.path / 'config.toml'}: settings of the run are missing, such as steps")
    with exclusive_lock(run.path):
        check(run)
        run.rewind(checkpoint_step(latest(run.path)))
        run.restore_folder()
        yield run


def is_complete(run: RunDir, steps: int) -> bool:
    """Whether a run has a checkpoint of its last step, so that there is nothing to resume."""
    return checkpoint_step(latest(run.path)) >= steps


def tracked(config: TrainConfig | WarmConfig, run: RunDir, on_step: OnStep) -> AbstractContextManager[OnStep]:
    """An `on_step` that also reports to the trackers named in the settings."""
    return tracking(open_trackers(config.track, run.path, asdict(config)), on_step)
