"""Run every method under every budget on every task, many trees in parallel on one engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import anyio

from ramet.agent.live import LiveLog
from ramet.agent.options import TreeOptions
from ramet.agent.task_groups import task_group
from ramet.engine.retrying import FailuresInARow
from ramet.errors import ConfigError, EngineError
from ramet.evaluate.controls import play_control
from ramet.evaluate.costs import add_costs, tree_costs
from ramet.evaluate.items import Item, Trained, load_tasksets, select_items
from ramet.evaluate.journal import Failure, Journal
from ramet.evaluate.methods import Method, choose_tree, parse_methods, root_score, tree_budget
from ramet.evaluate.record import Record
from ramet.evaluate.settings import EvaluateConfig, parse_limits, parse_range
from ramet.interfaces import Engine, HasSizes, NodeJudge, Taskset, Windowed
from ramet.tasks.dice import seed_of
from ramet.tasks.play import ask_grader, play
from ramet.tasks.returned import budget_of
from ramet.tasks.split import can_split, splittable
from ramet.tasks.unchecked import Unchecked
from ramet.types import Tree

LOG = logging.getLogger(__name__)  # of items without a result
Key = tuple[str, int | None, str]  # method, budget, task


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of an evaluation is finished."""

    done: int
    total: int
    cells_done: int
    cells: int


OnProgress = Callable[[Progress], None]


def ignore(event: object) -> None:
    """Default callback: ignore."""
    del event


@dataclass(slots=True, kw_only=True)
class Job:
    """One item under one method and budget, and the trees grown for it so far."""

    method: Method
    budget: int | None
    item: Item
    trees: list[Tree | None] = field(default_factory=list[Tree | None])
    failed: bool = False  # the engine failed in one of the trees

    @property
    def key(self) -> Key:
        return self.method.name, self.budget, self.item.task.id


def plan_jobs(
    config: EvaluateConfig, *, trained: Sequence[Trained] = (), own: Mapping[str, Taskset] | None = None
) -> list[Job]:
    """All jobs of an evaluation, cell by cell. `own` are tasksets by spec that need no loading."""
    tasksets = load_tasksets(config.tasks, config.taskset, own=own, world=config.world)
    given = parse_range(config.trained)
    if given is not None:
        for spec, taskset, _ in tasksets:
            if not isinstance(taskset, HasSizes):
                raise ConfigError(f"{spec} has no sizes, so --trained does not apply to it")
        trained = [given]
    items = select_items(tasksets, num_tasks=config.num_tasks, trained=trained)
    methods = parse_methods(config.methods)
    _check_splits(methods, items)
    return [
        Job(method=method, budget=budget, item=item, trees=[None] * method.trees)
        for method in methods
        for budget in config.budgets or (None,)
        for item in items
    ]


def _check_splits(methods: Sequence[Method], items: Sequence[Item]) -> None:
    """Refuse controls on splits of which no task can be cut."""
    control = next((method.name for method in methods if method.parts), None)
    known = {item.split for item in items if can_split(item.taskset, item.task)}
    refused = next((item.split for item in items if item.split not in known), None)
    if control is not None and refused is not None:
        rules = ", ".join(splittable())
        raise ConfigError(
            f"{control} cannot cut the tasks of {refused}: it can cut {rules}, tasks with texts, and those of a "
            "taskset with a method split(task, parts)"
        )


def missing_jobs(jobs: Sequence[Job], journal: Journal) -> list[Job]:
    """The jobs that the journal has no record of; those that failed before come last."""
    known = {(record.method, record.budget, record.task) for record in journal.records}
    return sorted((job for job in jobs if job.key not in known), key=lambda job: job.key in journal.failures)


class Pool:
    """Grows the trees of all missing jobs in order, at most `config.concurrency` at a time."""

    def __init__(
        self,
        config: EvaluateConfig,
        jobs: Sequence[Job],
        *,
        engine: Engine,
        journal: Journal,
        judge: NodeJudge | None = None,
        on_progress: OnProgress = ignore,
    ) -> None:
        self.config = config
        self.journal = journal
        self.jobs = missing_jobs(jobs, journal)
        self.on_progress = on_progress
        watcher = None if journal.run is None else LiveLog(journal.run.path)
        self.options = TreeOptions.from_settings(config, engine=engine, judge=judge, watcher=watcher)
        self.limits = parse_limits(config.budget)
        self.window = engine.window if isinstance(engine, Windowed) else None
        self._total = len(jobs)
        self._missing = dict.fromkeys([(job.method.name, job.budget) for job in jobs], 0)
        for job in self.jobs:
            self._missing[job.method.name, job.budget] += 1
        self._in_a_row = FailuresInARow()
        self._unchecked = Unchecked()

    async def run(self, slots: anyio.Semaphore | None = None) -> None:
        """Run everything that is missing. Finished items are kept, whatever happens.

        An item in which the engine fails is noted in the journal and left out, and the others go on. Where they would
        fail too, or where none has a result, the error is raised.

        A tree takes one of the `slots`, which several pools may share; by default there are `config.concurrency`.
        """
        self._report()
        slots = slots or anyio.Semaphore(self.config.concurrency)
        try:
            async with task_group() as group:
                for job in self.jobs:
                    for place in range(job.method.trees):
                        await slots.acquire()
                        group.start_soon(self._grow, job, place, slots)
        finally:
            self.journal.flush()
            self._unchecked.log_total()
        failures = self.journal.failures
        if failures and not self.journal.records:
            first = next(iter(failures.values()))
            raise EngineError(f"{first.task} ({first.method}): {first.error}")
        for failure in failures.values():
            LOG.warning("%s (%s) has no result: %s", failure.task, failure.method, failure.error)

    async def _grow(self, job: Job, place: int, slots: anyio.Semaphore) -> None:
        try:
            if job.failed:
                return
            job.trees[place] = await self._run_tree(job, place)
            grown = [tree for tree in job.trees if tree is not None]
            if len(grown) == job.method.trees:
                record = await ask_grader(job.item.taskset, partial(make_record, job, grown))
                self._finish(job, record, grown)
        except EngineError as error:
            self._fail(job, error)
        except ConfigError as error:  # the task cannot be run at all
            task = job.item.task.id
            if task in str(error):
                raise
            raise ConfigError(f"{task}: {error}") from error
        finally:
            slots.release()

    def _fail(self, job: Job, error: EngineError) -> None:
        """Leave out an item, once for all its trees."""
        if job.failed:
            return
        job.failed, job.trees = True, [None] * job.method.trees
        name, budget, task = job.key
        self.journal.fail(Failure(method=name, budget=budget, task=task, error=str(error)))
        if self._in_a_row.failed(error):
            raise EngineError(f"{task} ({name}): {error}", lasting=error.lasting) from error

    async def _run_tree(self, job: Job, place: int) -> Tree:
        item, method = job.item, job.method
        declared = budget_of(item.taskset, item.task)
        options = replace(
            self.options,
            budget=tree_budget(method, declared, tokens=job.budget, limits=self.limits, window=self.window),
            seed=seed_of(self.config.seed, method.name, job.budget, item.task.id, place),
            name=f"{method.name}.{job.budget or 'own'}.{item.task.id}.{place}",
        )
        tree = await self._play(item, method, options)
        tree.id = options.name
        self._unchecked.add([tree])
        return tree

    async def _play(self, item: Item, method: Method, options: TreeOptions) -> Tree:
        if not method.parts:
            return await play(item.taskset, item.task, options)
        chained = method.kind == "chain"
        return await play_control(item.taskset, item.task, options, parts=method.parts, chained=chained)

    def _finish(self, job: Job, record: Record, trees: Sequence[Tree]) -> None:
        self.journal.add(record, trees)
        self._in_a_row.succeeded()
        job.trees = []
        self._missing[job.method.name, job.budget] -= 1
        self._report()

    def _report(self) -> None:
        missing = self._missing.values()
        cells_done = sum(count == 0 for count in missing)
        self.on_progress(Progress(self._total - sum(missing), self._total, cells_done, len(missing)))


def make_record(job: Job, trees: Sequence[Tree]) -> Record:
    """The cost of all trees of an item, and the score of the tree that the method chose."""
    item = job.item
    chosen = choose_tree(job.method, item.taskset, item.task, trees)
    used = add_costs([tree_costs(tree) for tree in trees])
    return Record(
        method=job.method.name,
        budget=job.budget,
        task=item.task.id,
        bucket=item.bucket,
        size=item.size,
        beyond=item.beyond,
        score=root_score(chosen),
        answer=chosen.answer,
        generated=used.generated,
        prompt=used.prompt,
        cached=used.cached,
        critical_path=used.critical_path,
        critical_path_prompts=used.critical_path_prompts,
        peak_window=used.peak_window,
        nodes=used.nodes,
        depth=used.depth,
        delegated=used.delegated,
        concurrent=used.concurrent,
        seconds=used.seconds,
        dollars=used.dollars,
        trees=tuple(tree.id for tree in trees),
    )
