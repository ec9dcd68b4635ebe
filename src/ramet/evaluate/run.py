"""Every method under every budget on every task, many trees at once through one engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from ramet.config import build
from ramet.errors import ConfigError, RametError
from ramet.evaluate.costs import costs_of, side_by_side
from ramet.evaluate.items import Item, Trained, items_of, tasksets_of
from ramet.evaluate.journal import Journal
from ramet.evaluate.methods import Method, choose, methods_of, score_of, seed_of, tree_budget
from ramet.evaluate.record import Record
from ramet.evaluate.settings import EvaluateConfig, limits_of, range_of
from ramet.evaluate.tables import Section, sections_of
from ramet.evaluate.text import as_text
from ramet.interfaces import Engine, Sized, Taskset, Windowed
from ramet.store import RunDir
from ramet.tasks.judge import Judge
from ramet.tasks.play import play
from ramet.types import Tree

Key = tuple[str, int | None, str]  # method, budget, task


@dataclass(frozen=True, slots=True)
class Standing:
    """How far an evaluation is."""

    done: int
    total: int
    cells_done: int
    cells: int


Tell = Callable[[Standing], None]


def quiet(heard: object) -> None:
    """Says nothing."""
    del heard


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What came of it: a record for every item of every cell."""

    config: EvaluateConfig
    records: list[Record]
    run: RunDir | None = None

    def sections(self) -> list[Section]:
        """The tables as numbers: one section a split."""
        return sections_of(self.records, splits=self.config.tasks if len(self.config.tasks) > 1 else ())

    def table(self, *, width: int = 120) -> str:
        """The tables as text."""
        return as_text(self.sections(), width=width)


@dataclass(slots=True, kw_only=True)
class Job:
    """One item under one method and budget, and the trees grown for it so far."""

    method: Method
    budget: int | None
    item: Item
    trees: list[Tree | None] = field(default_factory=list[Tree | None])

    @property
    def key(self) -> Key:
        return self.method.name, self.budget, self.item.task.id


async def evaluate(
    tasks: Sequence[str | tuple[Taskset, str]],
    *,
    engine: Engine,
    methods: Sequence[str] = ("single", "clones"),
    budgets: Sequence[int] = (),
    n: int = 100,
    run: RunDir | None = None,
    judge: Judge | None = None,
    **settings: Any,
) -> Evaluation:
    """Compare methods under the same budgets on the first `n` tasks of each split: `"craft:hard"`, or a taskset and it.

    Example:
        found = await evaluate(["arithmetic:eval"], engine=engine, methods=["single", "vote@4"], budgets=[400], n=50)
        print(found.table())
        found.records[0].score

    With a `run` directory, records and trees are kept there, and what it has already is not done again. Other settings
    are those of `EvaluateConfig`.
    """
    own = {one[0].name: one[0] for one in tasks if not isinstance(one, str)}
    specs = [one if isinstance(one, str) else f"{one[0].name}:{one[1]}" for one in tasks]
    given: dict[str, Any] = {"tasks": specs, "methods": list(methods), "budgets": list(budgets), "num_tasks": n}
    config = build(EvaluateConfig, given | settings)
    jobs, journal = jobs_of(config, own=own), Journal(run)
    await Pool(config, jobs, engine=engine, journal=journal, judge=judge).run()
    return evaluation_of(config, jobs, journal)


def evaluation_of(config: EvaluateConfig, jobs: Sequence[Job], journal: Journal) -> Evaluation:
    """What the journal has of these jobs, in their order."""
    wanted = {job.key: place for place, job in enumerate(jobs)}
    records = [one for one in journal.records if (one.method, one.budget, one.task) in wanted]
    records.sort(key=lambda one: wanted[one.method, one.budget, one.task])
    return Evaluation(config=config, records=records, run=journal.run)


def jobs_of(
    config: EvaluateConfig, *, trained: Sequence[Trained] = (), own: Mapping[str, Taskset] | None = None
) -> list[Job]:
    """Everything to be done, cell by cell."""
    tasksets = tasksets_of(config.tasks, config.taskset, own=own)
    said = range_of(config.trained)
    if said is not None:
        for spec, taskset, _ in tasksets:
            if not isinstance(taskset, Sized):
                raise ConfigError(f"{spec} has no sizes, so --trained means nothing there")
        trained = [said]
    items = items_of(tasksets, num_tasks=config.num_tasks, trained=trained)
    return [
        Job(method=method, budget=budget, item=item, trees=[None] * method.trees)
        for method in methods_of(config.methods)
        for budget in config.budgets or (None,)
        for item in items
    ]


def missing(jobs: Sequence[Job], journal: Journal) -> list[Job]:
    """The jobs that are still to be done."""
    known = {(record.method, record.budget, record.task) for record in journal.records}
    return [job for job in jobs if job.key not in known]


class Pool:
    """Grows the trees of all jobs that the journal does not have yet, in their order, no more than so many at once."""

    def __init__(
        self,
        config: EvaluateConfig,
        jobs: Sequence[Job],
        *,
        engine: Engine,
        journal: Journal,
        judge: Judge | None = None,
        tell: Tell = quiet,
    ) -> None:
        self.config = config
        self.engine = engine
        self.judge = judge
        self.journal = journal
        self.jobs = missing(jobs, journal)
        self.tell = tell
        self.limits = limits_of(config.budget)
        self.window = engine.window if isinstance(engine, Windowed) else None
        self._total = len(jobs)
        self._left = dict.fromkeys([(job.method.name, job.budget) for job in jobs], 0)
        for job in self.jobs:
            self._left[job.method.name, job.budget] += 1
        self._failed: list[RametError] = []
        self._scope = anyio.CancelScope()

    async def run(self) -> None:
        """Until all is done, or something fails; what was finished by then is kept."""
        self._say()
        slots = anyio.Semaphore(self.config.concurrency)
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    for job in self.jobs:
                        for place in range(job.method.trees):
                            await slots.acquire()
                            group.start_soon(self._grow, job, place, slots)
        finally:
            self.journal.flush()
        if self._failed:
            raise self._failed[0]

    async def _grow(self, job: Job, place: int, slots: anyio.Semaphore) -> None:
        try:
            job.trees[place] = await self._tree(job, place)
            grown = [tree for tree in job.trees if tree is not None]
            if len(grown) == job.method.trees:
                self._finish(job, grown)
        except RametError as error:  # said once, as itself, and not inside a group of others
            self._failed.append(_named(error, job))
            self._scope.cancel()
        finally:
            slots.release()

    async def _tree(self, job: Job, place: int) -> Tree:
        config, item, method = self.config, job.item, job.method
        tree = await play(
            item.taskset,
            item.task,
            engine=self.engine,
            budget=tree_budget(
                method, item.taskset.budget(item.task), tokens=job.budget, limits=self.limits, window=self.window
            ),
            dialect=config.dialect,
            judge=self.judge,
            temperature=config.temperature,
            seed=seed_of(config.seed, method.name, job.budget, item.task.id, place),
            show_budget=config.show_budget,
        )
        tree.id = f"{method.name}.{job.budget or 'own'}.{item.task.id}.{place}"
        return tree

    def _finish(self, job: Job, trees: Sequence[Tree]) -> None:
        self.journal.add(record_of(job, trees), trees)
        job.trees = []
        self._left[job.method.name, job.budget] -= 1
        self._say()

    def _say(self) -> None:
        left = self._left.values()
        done = sum(count == 0 for count in left)
        self.tell(Standing(self._total - sum(left), self._total, done, len(self._left)))


def record_of(job: Job, trees: Sequence[Tree]) -> Record:
    """What an item cost with all its trees, and what the tree that was chosen made of it."""
    item = job.item
    chosen = choose(job.method, item.taskset, item.task, trees)
    used = side_by_side([costs_of(tree) for tree in trees])
    return Record(
        method=job.method.name,
        budget=job.budget,
        task=item.task.id,
        bucket=item.bucket,
        size=item.size,
        beyond=item.beyond,
        score=score_of(chosen),
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


def _named(error: RametError, job: Job) -> RametError:
    """A task that cannot be played is named."""
    return ConfigError(f"{job.item.task.id}: {error}") if isinstance(error, ConfigError) else error
