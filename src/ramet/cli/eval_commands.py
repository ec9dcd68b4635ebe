"""What `ramet eval` does: settle the settings, find its run directory again, show progress, print tables."""

from __future__ import annotations

import hashlib
import shlex
import sys
import tomllib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ramet.agent.dialects import make_dialect
from ramet.cli.commands import command, out, print_json
from ramet.config import load, settings_of, to_toml
from ramet.engine.http import HttpEngine
from ramet.engine.open import ChosenEngine, closing, engines_of
from ramet.errors import ConfigError, EngineError
from ramet.evaluate.journal import FILE, Journal, alone
from ramet.evaluate.model import Model, facts_of, hardware, model_of, stamp_of
from ramet.evaluate.run import Evaluation, Job, Pool, Standing, Tell, evaluation_of, jobs_of, missing, quiet
from ramet.evaluate.settings import EvaluateConfig
from ramet.evaluate.text import rendered
from ramet.store import RunDir, slug
from ramet.tasks.judge import Judge

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
    config, model = settled(words, flags, file)
    found, run = evaluated(config, model, api_key=api_key, runs=runs, into=into, as_json=as_json)
    if as_json:
        print_json(_facts(found, run))
    else:
        wide = out if out.is_terminal else Console(width=PIPED, highlight=False, markup=False)
        wide.print(rendered(found.sections(), width=wide.width))
    finish(run, as_json=as_json)


def evaluated(
    config: EvaluateConfig,
    model: Model,
    *,
    runs: Path = Path("runs"),
    into: Path | None = None,
    api_key: str | None = None,
    as_json: bool = False,
) -> tuple[Evaluation, RunDir]:
    """Do what is still to be done of an evaluation, and read what came of it."""
    make_dialect(config.dialect)  # what is wrong is told before a model is loaded
    jobs = jobs_of(config, trained=model.trained)
    place = place_of(config, runs=runs, into=into)
    run = place.found()
    if run is None or missing(jobs, Journal(run)):
        engine, judge = engines_of(config, judged=True, api_key=api_key)
        run = anyio.run(partial(_go_on, place, jobs, engine, judge, as_json=as_json))
    return evaluation_of(config, jobs, Journal(run)), run


def finish(run: RunDir, *, as_json: bool) -> None:
    """Write the report of a finished evaluation, unless there is one of all its records, and say where things are."""
    page = run.path / "report" / "index.html"
    if find_spec("matplotlib") is None:
        hint = "a page with pictures: pip install 'ramet[report]', then the same command again"
    else:
        if not page.exists() or page.stat().st_mtime < (run.path / FILE).stat().st_mtime:
            from ramet.report.page import write_report

            write_report([run.path], page.parent)
        hint = str(page)
    if not as_json:
        out.print(f"{run.path}  ({command()} show {run.path} --tree ID)", style="dim")
        out.print(hint, style="dim")


def settled(words: Sequence[str], flags: Mapping[str, Any], file: Path | None) -> tuple[EvaluateConfig, Model]:
    """Settings, over those the model was trained with; and the model."""
    flags = dict(flags)
    specs = [word for word in words if "=" not in word]
    if specs:
        flags["tasks"] = specs
    settings = [word for word in words if "=" in word]
    named = flags.get("engine.model") or settings_of(settings).get("engine", {}).get("model")
    model = None if named is None else model_of(str(named), specs)
    if model is not None:
        flags["engine.model"] = model.name
    config = load(
        EvaluateConfig, file=file, words=settings, flags=flags, base=None if model is None else model.settings
    )
    if not config.engine.model:
        raise ConfigError("which model? give --model: a run directory, a folder, smollm2, or its name on a server")
    return config, model or model_of(config.engine.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The run directory that settings and a model mean: the same command finds what it left."""

    config: EvaluateConfig
    path: Path
    key: str  # a hash of settings, and sizes and times of the weights

    def found(self) -> RunDir | None:
        """The directory, if it is there; one that was made with other settings is refused."""
        if not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir())):
            return None
        run = RunDir.open(self.path)
        if run.meta.get("key") != self.key:
            raise ConfigError(
                f"{self.path} was made with other settings{_changed(run, self.config)}: give another --into"
            )
        return run

    def made(self) -> RunDir:
        """A new one, with what a reader needs to trace its numbers."""
        facts = {"key": self.key, "command": written(sys.argv[1:]), "seed": self.config.seed}
        machine = hardware(local=self.config.engine.kind == "local")
        return RunDir.create_at(
            self.path,
            config=self.config,
            kind="eval",
            facts={**facts, **facts_of(self.config.engine), "hardware": machine},
        )


def place_of(config: EvaluateConfig, *, runs: Path, into: Path | None) -> Place:
    """Where it goes: a name that ends with the key, unless a directory is given."""
    key = hashlib.sha256(f"{to_toml(config)}\n{stamp_of(config.engine)}".encode()).hexdigest()
    path = into or runs / f"eval-{slug('-'.join(config.tasks))}-{key[:8]}"
    return Place(config=config, path=path, key=key)


def written(words: Sequence[str]) -> str:
    """A command as it can be repeated; a key is never written down.

    Example:
        written(["eval", "craft:easy", "--api-key", "secret", "-n", "3"])  # "ramet eval craft:easy -n 3"
        written(["eval", "--api-key=secret", "a b"])                       # "ramet eval 'a b'"
    """
    kept: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        if "--api-key" not in (before, word) and not word.startswith("--api-key="):
            kept.append(word)
    return shlex.join(["ramet", *kept])


def _changed(run: RunDir, config: EvaluateConfig) -> str:
    """What differs from the settings a run was made with."""
    if run.kind != "eval":
        return f", by ramet {run.kind}"
    before = tomllib.loads((run.path / "config.toml").read_text(encoding="utf-8"))
    now = tomllib.loads(to_toml(config))
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return f" ({', '.join(names) or 'the model has changed'})"


async def _go_on(
    place: Place, jobs: Sequence[Job], engine: ChosenEngine, judge: ChosenEngine | None, *, as_json: bool
) -> RunDir:
    """Do what is still to be done. A directory is made when the model is known to be there."""
    async with closing(engine, judge):
        if isinstance(engine, HttpEngine):
            await engine.check()
        run = place.found() or place.made()
        if not as_json:
            out.print(str(run.path), style="dim")
        with alone(run), progress(as_json=as_json) as tell:
            judging = None if judge is None else Judge(judge)
            pool = Pool(place.config, jobs, engine=engine, journal=Journal(run), judge=judging, tell=tell)
            try:
                await pool.run()
            except EngineError as error:
                raise EngineError(f"{error} · what is finished is in {run.path}; the same command goes on") from error
            except anyio.get_cancelled_exc_class():
                if not as_json:
                    out.print("what is finished is kept; the same command goes on", style="dim")
                raise
    return run


@contextmanager
def progress(*, as_json: bool) -> Generator[Tell]:
    """Cells and items done, items a second, time left: a bar on a terminal, else a line at every tenth."""
    if as_json or not out.is_terminal:
        yield quiet if as_json else _lines()
        return
    columns = (
        TextColumn("{task.fields[cells]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=out, transient=True) as bar:
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


def _lines() -> Tell:
    told: set[int] = set()

    def tell(now: Standing) -> None:
        tenth = 10 * now.done // now.total
        if tenth not in told:
            told.add(tenth)
            out.print(f"{now.done:,} of {now.total:,} items, {now.cells_done} of {now.cells} cells", style="dim")

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
