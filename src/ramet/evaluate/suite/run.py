"""Run a suite: all parts at the same time on one engine, each in a run directory, resumed where they stopped.

At the same time, because the last item of a part may take long, and an engine with a single request is mostly idle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from ramet.agent.task_groups import task_group
from ramet.config import load, settings_of, to_toml
from ramet.engine.http import HttpEngine
from ramet.engine.open import OpenedEngine, check_named, closing, open_engine, with_model
from ramet.errors import ConfigError
from ramet.evaluate.journal import Journal
from ramet.evaluate.model import engine_facts, find_model, hardware, weights_stamp
from ramet.evaluate.run import Job, OnProgress, Progress, ignore, missing_jobs, plan_jobs
from ramet.evaluate.session import EvalRun, Evaluation, OnStart, read_evaluation, resume
from ramet.evaluate.settings import EvaluateConfig
from ramet.evaluate.suite.card import make_card
from ramet.evaluate.suite.definition import Part, Size, Suite, suite_hash
from ramet.store import RunDir, slug

FREE = ("engine", "concurrency", "budget.prices")  # all that can be set beside the model and its dialect
OnCard = Callable[[dict[str, Any]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRun:
    """A suite for one model: what each part runs, and where."""

    suite: Suite
    size: Size
    hash: str
    folder: Path
    configs: Mapping[str, EvaluateConfig]  # by part

    @property
    def engine(self) -> Any:
        return next(iter(self.configs.values())).engine

    @property
    def dialect(self) -> str:
        return next(iter(self.configs.values())).dialect


def resolve_suite(
    suite: Suite,
    size: Size,
    *,
    words: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    runs: Path = Path("runs"),
    into: Path | None = None,
    api_key: str | None = None,
) -> SuiteRun:
    """The settings of every part. Nothing can be set but the model, its engine, its dialect and its prices."""
    given = dict(flags or {})
    _refuse_pinned(suite, [*settings_of(words).items(), *given.items()])
    name = given.get("engine.model") or settings_of(words).get("engine", {}).get("model")
    model = find_model(str(name or ""))
    dialect = given.pop("dialect", None) or settings_of(words).get("dialect") or model.settings.get("dialect", "tools")
    if name:
        given["engine.model"] = model.name
    free = [word for word in words if not word.startswith("dialect=")]
    configs = {
        part.name: load(
            EvaluateConfig,
            base={**suite.settings(part, size, dialect=dialect), "budget": dict(suite.limits)},
            words=free,
            flags=given,
        )
        for part in suite.parts
    }
    engine = with_model(next(iter(configs.values())).engine, api_key=api_key)
    configs = {part: replace(config, engine=engine) for part, config in configs.items()}
    pinned = suite_hash(suite, size, dialect=dialect)
    first = next(iter(configs.values()))
    key = hashlib.sha256(f"{pinned}\n{to_toml(first)}\n{weights_stamp(first.engine)}".encode()).hexdigest()
    folder = into or runs / f"{suite.name}-{size}-{slug(Path(engine.model or engine.kind).name)}-{key[:8]}"
    return SuiteRun(suite=suite, size=size, hash=pinned, folder=folder, configs=configs)


def _refuse_pinned(suite: Suite, given: Sequence[tuple[str, Any]]) -> None:
    for name, value in given:
        names = [f"{name}.{inner}" for inner in value] if name == "budget" and isinstance(value, dict) else [name]  # pyright: ignore[reportUnknownVariableType]
        for full in names:
            if full != "dialect" and not any(full == free or full.startswith(f"{free}.") for free in FREE):
                raise ConfigError(
                    f"{suite.name} pins {full}, so that all cards answer the same question; what can be set: "
                    f"the model, dialect, {', '.join(FREE)}"
                )


def run_suite(
    plan: SuiteRun,
    *,
    api_key: str | None = None,
    on_start: OnStart = ignore,
    on_progress: OnProgress = ignore,
    on_card: OnCard = ignore,
) -> dict[str, Any]:
    """Run what is missing of a suite and return its card. `on_card` gets the card after every part."""
    skipped: dict[str, str] = {}
    jobs: dict[str, list[Job]] = {}
    for name, config in plan.configs.items():
        try:
            jobs[name] = plan_jobs(config)
        except ConfigError as error:  # a package that a taskset needs is missing
            skipped[name] = str(error)
    if not jobs:
        raise ConfigError(f"no part of {plan.suite.name} can be run: {next(iter(skipped.values()))}")
    suite_jobs = SuiteJobs(plan, jobs, skipped, on_start=on_start, on_progress=on_progress, on_card=on_card)
    if suite_jobs.is_missing():
        engine = open_engine(plan.engine, api_key=api_key)
        anyio.run(partial(suite_jobs.run, engine))
    return suite_jobs.card()


class SuiteJobs:
    """The parts of a suite. A part that the model cannot take is left out, with the reason."""

    def __init__(
        self,
        plan: SuiteRun,
        jobs: Mapping[str, Sequence[Job]],
        skipped: dict[str, str],
        *,
        on_start: OnStart,
        on_progress: OnProgress,
        on_card: OnCard,
    ) -> None:
        self.plan = plan
        self.jobs = jobs
        self.skipped = skipped
        self.on_start = on_start
        self.on_progress = on_progress
        self.on_card = on_card
        self._done = dict.fromkeys(jobs, 0)

    def is_missing(self) -> bool:
        """Whether anything has to be run. Parts that were skipped before are tried again: it takes no time."""
        return any(self._is_missing(name) for name in self.jobs)

    def _is_missing(self, name: str) -> bool:
        run = self._located(name).find()
        return run is None or bool(missing_jobs(self.jobs[name], Journal(run)))

    async def run(self, engine: OpenedEngine) -> None:
        async with closing(engine):
            if isinstance(engine, HttpEngine):
                await check_named(engine)
            self.on_start(RunDir(self.plan.folder))
            slots = anyio.Semaphore(next(iter(self.plan.configs.values())).concurrency)
            async with task_group() as group:
                for name in self.jobs:
                    group.start_soon(self._run_part, name, engine, slots)

    async def _run_part(self, name: str, engine: OpenedEngine, slots: anyio.Semaphore) -> None:
        """Run what is missing of a part. An engine that fails ends all parts."""
        jobs, located = self.jobs[name], self._located(name)
        run = located.find()
        try:
            if run is None or missing_jobs(jobs, Journal(run)):
                await resume(located, jobs, engine=engine, slots=slots, on_progress=partial(self._report, name))
        except ConfigError as error:  # a prompt that does not fit its window, functions in a dialect without them
            self.skipped[name] = str(error)
        if name in self.skipped or not self._is_missing(name):
            self._report(name, Progress(len(jobs), len(jobs), 1, 1))
        self.on_card(self.card())

    def _report(self, name: str, progress: Progress) -> None:
        self._done[name] = progress.done
        sizes = {part: len(jobs) for part, jobs in self.jobs.items()}
        finished = sum(self._done[part] == size for part, size in sizes.items())
        self.on_progress(Progress(sum(self._done.values()), sum(sizes.values()), finished, len(sizes)))

    def card(self) -> dict[str, Any]:
        """The card of the parts that are complete."""
        finished: list[tuple[Part, Evaluation]] = []
        skipped = dict(self.skipped)
        for part in self.plan.suite.parts:
            if part.name in skipped:
                continue
            run = self._located(part.name).find()
            if run is None or missing_jobs(self.jobs[part.name], Journal(run)):
                skipped[part.name] = "not finished yet: run the same command again"
            else:
                evaluation = read_evaluation(self.plan.configs[part.name], self.jobs[part.name], Journal(run))
                finished.append((part, evaluation))
        return make_card(self.plan, finished, skipped, model=self._model())

    def _model(self) -> dict[str, Any]:
        """What identifies the model, without the address of its server: a card is there to be published."""
        engine = self.plan.engine
        facts = {key: value for key, value in engine_facts(engine).items() if key != "server"}
        local = engine.kind == "local"
        name = Path(facts["model"]).name if local else facts["model"]
        return {**facts, "model": name, **({"hardware": hardware(local=True)} if local else {})}

    def _located(self, name: str) -> EvalRun:
        return EvalRun.locate(self.plan.configs[name], runs=self.plan.folder, into=self.plan.folder / slug(name))
