"""Run an evaluation in a run directory: find the directory again, check its settings, resume what is missing.

The command line, the demo and `ramet.evaluate.evaluate` all go through `resume`.

    config, model = resolve_eval_config(["craft:hard"], flags={"engine.model": "runs/my-run"})
    evaluation, run = run_evaluation(config, model)
    print(evaluation.table())
"""

from __future__ import annotations

import hashlib
import shlex
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio

from ramet import plugins
from ramet.agent.dialects import make_dialect
from ramet.config import build, load, merge_settings, names_server, settings_of, to_toml
from ramet.engine.http import HttpEngine
from ramet.engine.open import OpenedEngine, check_named, closing, open_engines, with_model
from ramet.errors import ConfigError, EngineError
from ramet.evaluate.journal import FAILED, Failure, Journal
from ramet.evaluate.model import Model, engine_facts, find_model, hardware, not_overridden, weights_stamp
from ramet.evaluate.record import Record
from ramet.evaluate.run import Job, OnProgress, Pool, ignore, missing_jobs, plan_jobs
from ramet.evaluate.settings import EvaluateConfig
from ramet.evaluate.tables import Section, make_sections, section_facts
from ramet.evaluate.text import as_text
from ramet.interfaces import Dialect, Engine, NodeJudge, Taskset, World
from ramet.store import RunDir, slug
from ramet.store.lock import exclusive_lock
from ramet.tasks.judge import open_judge
from ramet.tasks.provenance import FIELD, plugin_facts
from ramet.tasks.registry import check_split, short_name
from ramet.tasks.trained import check_model, run_of

OnStart = Callable[[RunDir], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The records of an evaluation: one for every item of every cell.

    `failures` are the items in which the engine failed. They have no record and are not counted.
    """

    config: EvaluateConfig
    records: list[Record]
    failures: tuple[Failure, ...] = ()
    run: RunDir | None = None

    def sections(self) -> list[Section]:
        """The tables as numbers: one section per split."""
        splits = [plugins.shortened(spec) for spec in self.config.tasks]
        return make_sections(self.records, splits=splits if len(splits) > 1 else ())

    def table(self, *, width: int = 120) -> str:
        """The tables as text."""
        return as_text(self.sections(), width=width)

    def facts(self) -> dict[str, Any]:
        """Everything, as plain data for JSON."""
        run = {} if self.run is None else {"run": str(self.run.path), "meta": self.run.meta}
        return {
            **run,
            "config": asdict(self.config),
            "sections": [section_facts(section) for section in self.sections()],
            "records": [asdict(record) for record in self.records],
            **({"failures": [asdict(failure) for failure in self.failures]} if self.failures else {}),
        }


def resolve_eval_config(
    words: Sequence[str], *, flags: Mapping[str, Any] | None = None, file: Path | None = None
) -> tuple[EvaluateConfig, Model]:
    """The settings of an evaluation, and its model.

    `words` are tasks (`craft:hard`) and settings (`budget.nodes=8`). A model from a run directory brings the settings
    it was trained with; the file, the words and the flags override them, in this order.
    """
    given = dict(flags or {})
    specs = [plugins.anchored(word, Path.cwd()) for word in words if "=" not in word]
    settings = [word for word in words if "=" in word]
    if specs and "tasks" in settings_of(settings):
        raise ConfigError(
            "tasks= and tasks given by name exclude each other; the number of tasks is num_tasks=N, or -n N"
        )
    if specs:
        given["tasks"] = specs
    own = merge_settings(file=file, words=settings, flags=given)
    engine, tasks = own.get("engine"), own.get("tasks")
    name = cast(dict[str, Any], engine).get("model") if isinstance(engine, dict) else None
    if not name:
        return load(EvaluateConfig, file=file, words=settings, flags=given), find_model("")
    model = find_model(str(name), cast(list[str], tasks) if isinstance(tasks, list) else ())
    check_model(str(name), on_server=names_server(own))
    given["engine.model"] = model.name
    config = load(EvaluateConfig, file=file, words=settings, flags=given, base=model.settings)
    return config, replace(model, taken_over=tuple(not_overridden(model.settings, own)))


def run_evaluation(
    config: EvaluateConfig,
    model: Model,
    *,
    runs: Path = Path("runs"),
    into: Path | None = None,
    api_key: str | None = None,
    on_start: OnStart = ignore,
    on_progress: OnProgress = ignore,
) -> tuple[Evaluation, RunDir]:
    """Run an evaluation with the engine of its settings, or resume it, or only read it if it is finished.

    `on_start` gets the run directory before the first tree is grown; a finished evaluation calls neither callback.
    """
    config = replace(config, engine=with_model(config.engine, api_key=api_key))
    make_dialect(config.dialect)  # an unknown dialect fails before a model is loaded
    jobs = plan_jobs(config, trained=model.trained)
    eval_run = EvalRun.locate(config, runs=runs, into=into)
    run = eval_run.find()
    if run is None or missing_jobs(jobs, Journal(run)):
        engine, judge = open_engines(config.engine, config.judge, api_key=api_key)
        callbacks = {"on_start": on_start, "on_progress": on_progress}
        run = anyio.run(partial(_resume_and_close, eval_run, jobs, engine, judge, **callbacks))
    return read_evaluation(config, jobs, Journal(run)), run


async def evaluate(
    tasks: Sequence[str | Taskset | tuple[Taskset, str]],
    *,
    engine: Engine,
    dialect: str | Dialect = "tools",
    world: str | World | type[World] = "",
    methods: Sequence[str] = ("single", "clones"),
    budgets: Sequence[int] = (),
    n: int = 100,
    into: Path | str | None = None,
    judge: NodeJudge | None = None,
    on_start: OnStart = ignore,
    on_progress: OnProgress = ignore,
    **settings: Any,
) -> Evaluation:
    """Compare methods under the same budgets on the first `n` tasks of each split.

    A split is `"craft:hard"`, or a taskset of your own (then its split `eval`), alone or with the name of a split.

    Example:
        evaluation = await evaluate(["arithmetic:eval"], engine=engine, methods=["single", "vote@4"], budgets=[400])
        print(evaluation.table())
        evaluation.records[0].score

    With `into`, records and trees are kept in that run directory; the same call resumes it, and other settings are
    refused. Items in which the engine fails are left out, logged and in `failures`; resuming tries them again. Further
    settings are those of `EvaluateConfig`.
    """
    specs, own = _named_tasks(tasks)
    given: dict[str, Any] = {"tasks": specs, "methods": list(methods), "budgets": list(budgets), "num_tasks": n}
    with ExitStack() as stack:
        for name, part in (("dialect", dialect), ("world", world)):
            given[name] = part if isinstance(part, str) else stack.enter_context(plugins.holding(part, name))
        config = build(EvaluateConfig, given | settings)
        jobs = plan_jobs(config, own=own)
        callbacks: dict[str, Any] = {"on_start": on_start, "on_progress": on_progress}
        return await _evaluate(config, jobs, engine=engine, judge=judge, into=into, **callbacks)


def _named_tasks(tasks: Sequence[str | Taskset | tuple[Taskset, str]]) -> tuple[list[str], dict[str, Taskset]]:
    """The splits by name, and the tasksets that are objects by these names."""
    specs: list[str] = []
    own: dict[str, Taskset] = {}
    for entry in tasks:
        if isinstance(entry, str):
            specs.append(entry)
            continue
        taskset, split = entry if isinstance(entry, tuple) else (entry, check_split(entry, "", default="eval"))
        spec = f"{taskset.name}:{split}"
        if spec in specs:
            raise ConfigError(f"{spec} is given twice: give one of two tasksets of the same class another `name`")
        specs.append(spec)
        own[spec] = taskset
    return specs, own


async def _evaluate(
    config: EvaluateConfig,
    jobs: Sequence[Job],
    *,
    engine: Engine,
    judge: NodeJudge | None,
    into: Path | str | None,
    on_start: OnStart,
    on_progress: OnProgress,
) -> Evaluation:
    if into is None:
        journal = Journal()
        await Pool(config, jobs, engine=engine, journal=journal, judge=judge, on_progress=on_progress).run()
        return read_evaluation(config, jobs, journal)
    eval_run = EvalRun.locate_for(engine, config, into=Path(into))
    run = eval_run.find()
    if run is None or missing_jobs(jobs, Journal(run)):
        run = await resume(eval_run, jobs, engine=engine, judge=judge, on_start=on_start, on_progress=on_progress)
    return read_evaluation(config, jobs, Journal(run))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRun:
    """The run directory that belongs to these settings and this model, whether it exists yet or not."""

    config: EvaluateConfig
    path: Path
    key: str  # hash of the settings and of the sizes and times of the weight files
    facts: Callable[[], Mapping[str, Any]]  # model and machine, for meta.json

    @classmethod
    def locate(cls, config: EvaluateConfig, *, runs: Path, into: Path | None) -> EvalRun:
        """The directory `into`, or one under `runs` named after the tasks, the model and the key."""
        stamp = f"{to_toml(config)}\n{weights_stamp(config.engine)}{_plugin_hashes(config)}"
        key = hashlib.sha256(stamp.encode()).hexdigest()
        earlier = runs / f"eval-{slug('-'.join(map(plugins.shortened, config.tasks)))}-{key[:8]}"  # by 0.1 and before
        model = run_of(Path(config.engine.model)) if config.engine.kind == "local" else Path(config.engine.model)
        path = runs / f"eval-{slug(short_name(*config.tasks))}-{slug(model.name)}-{key[:8]}"
        path = into or (earlier if earlier.exists() else path)
        return cls(config=config, path=path, key=key, facts=partial(_config_facts, config))

    @classmethod
    def locate_for(cls, engine: Engine, config: EvaluateConfig, *, into: Path) -> EvalRun:
        """The same for an engine that is already open."""
        facts = _open_engine_facts(engine)
        key = hashlib.sha256(f"{to_toml(config)}\n{facts}{_plugin_hashes(config)}".encode()).hexdigest()
        more = {"hardware": hardware(local=False), **plugin_facts(config)}
        return cls(config=config, path=into, key=key, facts=lambda: {**facts, **more})

    def find(self) -> RunDir | None:
        """The existing directory, or None. A directory with other settings is refused."""
        if not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir())):
            return None
        run = RunDir.open(self.path)
        if run.meta.get("key") != self.key:
            raise ConfigError(
                f"{self.path} was made with other settings{_differences(run, self.config)}: give another --into"
            )
        return run

    def create(self) -> RunDir:
        """A new directory. Its meta.json says where the numbers come from."""
        facts = {"key": self.key, "command": written_command(sys.argv), "seed": self.config.seed}
        return RunDir.create_at(self.path, config=self.config, kind="eval", facts={**facts, **self.facts()})


def _open_engine_facts(engine: Engine) -> dict[str, Any]:
    """What identifies an open engine. The weights of one in this process are not read."""
    if isinstance(engine, HttpEngine):
        return {"model": engine.model, "server": engine.base_url}
    return {"engine": type(engine).__name__}


def _config_facts(config: EvaluateConfig) -> dict[str, Any]:
    local = config.engine.kind == "local"
    return {**engine_facts(config.engine), "hardware": hardware(local=local), **plugin_facts(config)}


def _plugin_hashes(config: EvaluateConfig) -> str:
    """The contents of the plug-ins' files: an evaluation with other ones is another evaluation."""
    return "".join(f"\n{fact['sha256']}" for fact in plugin_facts(config).get(FIELD, []))


def written_command(argv: Sequence[str]) -> str:
    """The command line as it can be repeated, without the API key. Of other programs, only the name.

    Example:
        written_command(["/bin/ramet", "eval", "craft:easy", "--api-key", "secret"])  # "ramet eval craft:easy"
        written_command(["ramet", "eval", "--api-key=secret", "a b"])                 # "ramet eval 'a b'"
        written_command(["compare.py", "--token", "secret"])                          # "compare.py"
    """
    program, words = Path(argv[0]), argv[1:]
    if program.stem != "ramet" and program.parent.name != "ramet":  # the latter: python -m ramet
        return shlex.quote(program.name)
    kept: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        if "--api-key" not in (before, word) and not word.startswith("--api-key="):
            kept.append(word)
    return shlex.join(["ramet", *kept])


def _differences(run: RunDir, config: EvaluateConfig) -> str:
    """The settings that differ from those of the run, in brackets."""
    if run.kind != "eval":
        return f", by ramet {run.kind}"
    before = run.settings
    now = tomllib.loads(to_toml(config))
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    changed = [fact["reference"] for fact in run.meta.get(FIELD, []) if fact not in plugin_facts(config)[FIELD]]
    if not names and changed:
        return f" (the file of {changed[0]} has changed)"
    return f" ({', '.join(names) or 'the model has changed'})"


async def resume(
    eval_run: EvalRun,
    jobs: Sequence[Job],
    *,
    engine: Engine,
    judge: NodeJudge | None = None,
    slots: anyio.Semaphore | None = None,
    on_start: OnStart = ignore,
    on_progress: OnProgress = ignore,
) -> RunDir:
    """Run the missing jobs. The directory is created once the engine is known to answer.

    `slots` limit the trees that run at the same time, of several evaluations together.
    """
    if isinstance(engine, HttpEngine):
        await check_named(engine)
    run = eval_run.find() or eval_run.create()
    on_start(run)
    with exclusive_lock(run.path):
        run.restore_folder()
        pool = Pool(eval_run.config, jobs, engine=engine, journal=Journal(run), judge=judge, on_progress=on_progress)
        try:
            await pool.run(slots)
        except EngineError as error:
            if error.lasting == "missing" and not pool.journal.records and run.remove_if_empty(ignoring=[FAILED]):
                raise
            hint = f"finished items are kept in {run.path}: run the same command again to resume"
            raise EngineError(f"{error} · {hint}") from error
    return run


async def _resume_and_close(
    eval_run: EvalRun, jobs: Sequence[Job], engine: OpenedEngine, judge: OpenedEngine | None, **callbacks: Any
) -> RunDir:
    async with closing(engine, judge):
        if isinstance(judge, HttpEngine) and judge is not engine:
            await judge.check()
        judging = None if judge is None else open_judge(judge, eval_run.config.judge, run=eval_run.path)
        return await resume(eval_run, jobs, engine=engine, judge=judging, **callbacks)


def read_evaluation(config: EvaluateConfig, jobs: Sequence[Job], journal: Journal) -> Evaluation:
    """The records of these jobs, in the order of the jobs."""
    order = {job.key: place for place, job in enumerate(jobs)}
    records = [record for record in journal.records if (record.method, record.budget, record.task) in order]
    records.sort(key=lambda record: order[record.method, record.budget, record.task])
    failures = [journal.failures[key] for key in order if key in journal.failures]
    return Evaluation(config=config, records=records, failures=tuple(failures), run=journal.run)
