"""What `ramet eval` does: settle the settings, find its run directory again, show progress, print tables."""

from __future__ import annotations

import hashlib
import shlex
import sys
import tomllib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ramet.agent.dialects import make_dialect
from ramet.commands import command, out, print_json
from ramet.config import load, to_toml
from ramet.engine.choose import ChosenEngine, closing, engines_of
from ramet.engine.http import HttpEngine
from ramet.errors import ConfigError
from ramet.evaluate.items import Trained
from ramet.evaluate.journal import Journal, alone
from ramet.evaluate.model import facts_of, hardware, model_of
from ramet.evaluate.run import Evaluation, Job, Pool, Standing, Tell, evaluation_of, jobs_of, missing, quiet
from ramet.evaluate.settings import EvaluateConfig
from ramet.evaluate.text import rendered
from ramet.judge import Judge
from ramet.store import RunDir, slug

PIPED = 100_000  # columns: into a file or pipe everything goes in full


def evaluate(
    words: Sequence[str],
    *,
    flags: Mapping[str, Any],
    file: Path | None,
    api_key: str | None,
    runs: Path,
    into: Path | None,
    as_json: bool,
) -> None:
    """Evaluate, or go on with it, and print what came of it."""
    config, trained = settled(words, flags, file)
    make_dialect(config.dialect)  # what is wrong is told before a model is loaded
    jobs = jobs_of(config, trained=trained)
    run = run_of(config, runs=runs, into=into)
    if not as_json:
        out.print(str(run.path), style="dim")
    with alone(run):
        journal = Journal(run)
        try:
            _go_on(config, jobs, journal, api_key=api_key, as_json=as_json)
        except KeyboardInterrupt:
            if not as_json:
                out.print("the same command goes on from here", style="dim")
            raise
    found = evaluation_of(config, jobs, journal)
    if as_json:
        print_json(_facts(found, run))
    else:
        wide = out if out.is_terminal else Console(width=PIPED, highlight=False, markup=False)
        wide.print(rendered(found.sections()))
    finish(run, as_json=as_json)


def finish(run: RunDir, *, as_json: bool) -> None:
    """What is done with a finished evaluation."""
    if not as_json:
        out.print(f"{run.path}  ({command()} show {run.path} --tree ID)", style="dim")


def settled(words: Sequence[str], flags: Mapping[str, Any], file: Path | None) -> tuple[EvaluateConfig, list[Trained]]:
    """Settings, with the model found; and what that was trained on."""
    flags = dict(flags)
    specs = [word for word in words if "=" not in word]
    if specs:
        flags["tasks"] = specs
    settings = [word for word in words if "=" in word]
    config = load(EvaluateConfig, file=file, words=settings, flags=flags)
    name = config.engine.model
    if not name:
        raise ConfigError("which model? give --model: a run directory, a folder, smollm2, or its name on a server")
    model, trained = model_of(name)
    if model != name:
        config = load(EvaluateConfig, file=file, words=settings, flags=flags | {"engine.model": model})
    return config, trained


def run_of(config: EvaluateConfig, *, runs: Path, into: Path | None) -> RunDir:
    """The run directory these settings and this model mean: found again, or new.

    Its name ends with a hash of both, so the same command finds what it left.
    """
    model = facts_of(config.engine)
    key = hashlib.sha256(repr((to_toml(config), sorted(model.items()))).encode()).hexdigest()
    path = into or runs / f"eval-{slug('-'.join(config.tasks))}-{key[:8]}"
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        facts = {"key": key, "command": shlex.join(["ramet", *sys.argv[1:]]), "seed": config.seed, **model}
        facts["hardware"] = hardware(local=config.engine.kind == "local")
        return RunDir.create_at(path, config=config, kind="eval", facts=facts)
    run = RunDir.open(path)
    if run.meta.get("key") != key:
        raise ConfigError(f"{path} was made with other settings{_changed(run, config)}: give another --into")
    return run


def _changed(run: RunDir, config: EvaluateConfig) -> str:
    """What differs from the settings a run was made with."""
    if run.kind != "eval":
        return f", by ramet {run.kind}"
    before = tomllib.loads((run.path / "config.toml").read_text(encoding="utf-8"))
    now = tomllib.loads(to_toml(config))
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return f" ({', '.join(names) or 'the model has changed'})"


def _go_on(
    config: EvaluateConfig, jobs: Sequence[Job], journal: Journal, *, api_key: str | None, as_json: bool
) -> None:
    """Do what is still to be done; without any, no model is loaded."""
    if not missing(jobs, journal):
        return
    engine, judge = engines_of(config, judged=True, api_key=api_key)
    with progress(as_json=as_json) as tell:
        anyio.run(partial(_run, config, jobs, journal, engine, judge, tell))


async def _run(
    config: EvaluateConfig,
    jobs: Sequence[Job],
    journal: Journal,
    engine: ChosenEngine,
    judge: ChosenEngine | None,
    tell: Tell,
) -> None:
    async with closing(engine, judge):
        if isinstance(engine, HttpEngine):
            await engine.check()
        judging = None if judge is None else Judge(judge)
        await Pool(config, jobs, engine=engine, journal=journal, judge=judging, tell=tell).run()


@contextmanager
def progress(*, as_json: bool) -> Generator[Tell]:
    """Cells and items done, items a second, time left: a bar on a terminal, else a line at every tenth."""
    console = Console(stderr=True, highlight=False, markup=False)
    if not console.is_terminal:
        yield quiet if as_json else _lines(console)
        return
    columns = (
        TextColumn("{task.fields[cells]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("items", total=None, cells="", rate="")

        def tell(now: Standing) -> None:
            speed = bar.tasks[0].speed
            bar.update(
                task,
                total=now.total,
                completed=now.done,
                cells=f"cell {min(now.cells_done + 1, now.cells)} of {now.cells}",
                rate="" if speed is None else f"{speed:.2f} items/s",
            )

        yield tell


def _lines(console: Console) -> Tell:
    told: set[int] = set()

    def tell(now: Standing) -> None:
        tenth = 10 * now.done // now.total
        if tenth not in told:
            told.add(tenth)
            console.print(f"{now.done:,} of {now.total:,} items, {now.cells_done} of {now.cells} cells", style="dim")

    return tell


def _facts(found: Evaluation, run: RunDir) -> dict[str, Any]:
    """Everything for machines."""
    return {
        "run": str(run.path),
        "meta": run.meta,
        "config": asdict(found.config),
        "sections": [asdict(section) for section in found.sections()],
        "records": [asdict(record) for record in found.records],
    }
