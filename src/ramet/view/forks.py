"""Fork a tree from the page: the model of the run, or the one that `ramet view --model` names, goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio

from ramet.agent.live import LiveLog
from ramet.agent.recording import ForkPoint
from ramet.config import on_this_machine
from ramet.engine.open import OpenedEngine, closing, open_clone_engine, open_engines, with_model
from ramet.errors import ForkError, RametError
from ramet.inputs.open import as_stored
from ramet.store import RunDir
from ramet.store.checkpoints import latest
from ramet.tasks.forking import ForkPlan, resolve_fork
from ramet.tasks.judge import Judge
from ramet.tasks.play import grade
from ramet.types import Tree
from ramet.view.catalog import Catalog, read_config

MAX_TEXT = 200_000  # characters of an edited text
RAISED = "the fork ended with an exception: its traceback is where ramet view runs"


@dataclass(slots=True, kw_only=True)
class Job:
    """One fork: where its tree can be followed, or why there is none."""

    state: str = "loading"  # loading, running, done, failed
    problem: str = ""
    run: str = ""
    tree: str = ""

    def facts(self) -> dict[str, str]:
        return {"state": self.state, "problem": self.problem, "run": self.run, "tree": self.tree}


class Forks:
    """Runs forks one after the other, each in a new run directory beside the run of its tree."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        settings: Mapping[str, Any] | None = None,
        api_key: str | None = None,
        open_: Callable[..., tuple[OpenedEngine, OpenedEngine | None]] = open_engines,
    ) -> None:
        self.catalog = catalog
        self.settings = dict(settings or {})  # like engine.model, instead of the run's own
        self.api_key = api_key
        self._open = open_
        self.jobs: list[Job] = []
        self._one_at_a_time = threading.Lock()

    def problem(self, run: Path) -> str | None:
        """Why trees of this run cannot be forked here; None if there is a model."""
        if self.settings.get("engine.model") or self.settings.get("engine.base_url"):
            return None
        engine = read_config(run).get("engine")
        settings = cast(dict[str, Any], engine) if isinstance(engine, dict) else {}
        if not settings:
            return None if latest(run) else "no checkpoint of this run is here: name a model with ramet view --model"
        model = str(settings.get("model") or "")
        if settings.get("kind") == "http" and model:
            has_ids = settings.get("tokenizer") or self.settings.get("engine.tokenizer")
            return None if has_ids else "its trees have no token ids: over HTTP, run with --tokenizer to have them"
        return None if model and on_this_machine(model) else f"its model {model!r} is not on this machine"

    def start(self, run: Path, tree: Tree, point: ForkPoint) -> int:
        """Begin a fork in a thread of its own; returns its number. Settings that are wrong are an error now."""
        plan = resolve_fork(run, tree, point, flags=self.settings)
        self.jobs.append(Job())
        number = len(self.jobs) - 1
        threading.Thread(target=self._work, args=(plan, self.jobs[number]), daemon=True, name="fork").start()
        return number

    def _work(self, plan: ForkPlan, job: Job) -> None:
        with self._one_at_a_time:
            try:
                engine = with_model(plan.config.engine, api_key=self.api_key)
                plan = replace(plan, config=replace(plan.config, engine=engine))
                judge = None if plan.taskset is None else plan.config.judge
                engine, judging = self._open(plan.config.engine, judge, api_key=self.api_key)
                clones = open_clone_engine(plan.config.engine, plan.config.clone, api_key=self.api_key)
                anyio.run(partial(self._run, plan, engine, judging, clones, job))
                job.state = "done"
            except (RametError, OSError) as error:
                job.problem = str(error)
            finally:  # whatever it is, such as a GPU without memory or a mistake in a taskset: the page must not wait
                if job.state != "done":
                    job.state, job.problem = "failed", job.problem or RAISED

    async def _run(
        self,
        plan: ForkPlan,
        engine: OpenedEngine,
        judge: OpenedEngine | None,
        clones: OpenedEngine | None,
        job: Job,
    ) -> None:
        async with closing(engine, judge, clones), plan.open(engine, clones) as fork:
            run_dir = self._create(plan)
            fork.tree_run.watcher = LiveLog(run_dir.path)
            job.run, job.tree, job.state = self.catalog.add(run_dir.path), fork.tree.id, "running"
            forked = await fork.run()
            if plan.taskset is not None:
                await grade(forked, plan.taskset, fork.tree_run.world, judge=None if judge is None else Judge(judge))
            run_dir.write([forked])

    def _create(self, plan: ForkPlan) -> RunDir:
        name = f"fork-{plan.tree.id}-{plan.point.node}-{plan.point.turn}"
        folder = self.catalog.folder_for(plan.run.resolve())
        return RunDir.create(folder, name, config=as_stored(plan.config), kind="fork", facts={"fork": plan.provenance})


def point_of(request: Mapping[str, Any]) -> ForkPoint:
    """Where a request forks and what it changes. Anything else than the known fields is refused."""
    known = {"node", "turn", "say", "tell", "without_delegation", "without_clone"}
    wrong = sorted(set(request) - known - {"run", "tree"})
    if wrong:
        raise ForkError(f"unknown field {wrong[0]!r}: a fork has {', '.join(sorted(known))}")
    point = ForkPoint(node=_whole(request, "node"), turn=_whole(request, "turn"))
    for name in ("say", "tell"):
        text = request.get(name)
        if text is not None and (not isinstance(text, str) or not text or len(text) > MAX_TEXT):
            raise ForkError(f"{name} is a text of 1 to {MAX_TEXT:,} characters")
    clone = None if request.get("without_clone") is None else _whole(request, "without_clone")
    return replace(
        point,
        say=request.get("say"),
        tell=request.get("tell"),
        without_delegation=bool(request.get("without_delegation")),
        without_clone=clone,
    )


def _whole(request: Mapping[str, Any], name: str) -> int:
    value = request.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 10**6:
        raise ForkError(f"{name} is a whole number from 0 up; got {str(value)[:40]!r}")
    return value
