"""The whole method in one command: a model made from scratch learns from demonstrations how to delegate, learns by
reward when delegating pays, and is evaluated before and after. Larger models go through the same code.

Running it again resumes it; a finished demo is only read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ramet.config import load
from ramet.demo.compare import OURS, VARIANTS, comparison_table
from ramet.demo.effects import Effect, Measured, effects_text, measure_effects
from ramet.errors import ConfigError
from ramet.evaluate.record import Record
from ramet.evaluate.session import resolve_eval_config, run_evaluation
from ramet.models.packages import check_packages
from ramet.recipes import recipe_file
from ramet.store import RunDir
from ramet.store.checkpoints import latest
from ramet.terminal.console import command, out
from ramet.terminal.evaluation import show_progress
from ramet.terminal.report import find_export
from ramet.terminal.training import watch_training
from ramet.train import loop
from ramet.train.settings import TrainConfig
from ramet.train.variants import from_start

TASKS = ("codes:eval", "codes:long")
METHODS = ("single", "clones")
TASK = """\
Its task: in a pattern like 1?0??101 every ? is 0 or 1, so 8 codes match. List them,
one per line, and add up the length of the longest run of equal digits in each.
Alone, a pattern with many codes overflows its small window; or it splits the pattern
in two (100??101 and 110??101) and asks two clones, which may split again."""
TEMPERATURE = 0.3
CONCURRENCY = 256  # trees
WIDE = 256  # a window in which a single agent can list every code


def demo(runs: Path, *, words: Sequence[str] = (), num_tasks: int = 200, compare: bool = False) -> None:
    """Train and evaluate; `words` are settings that override the recipe `nano`.

    `compare`: then train with the rule as published, and a single agent, from the same supervised start.
    """
    folder = runs / "demo"
    check_packages("peft", "matplotlib")
    config = load(TrainConfig, file=recipe_file("nano"), words=words, flags={"name": folder.name})
    loop.check_plan(config)  # a mistake in the settings is one line, without the introduction
    out.print(f"A model with a third of a million parameters learns to delegate, on this CPU.\nOutput: {folder}")
    out.print(TASK, style="dim")
    out.print("\n1. Train by demonstrations, then by reward: 2 to 32 codes, windows for about a dozen", style="bold")
    _train_or_resume(config, runs, folder)
    out.print("\n2. Evaluate before and after reward, alone and with clones, on unseen patterns", style="bold")
    effects = measure_effects(_evaluate_all(folder, config, num_tasks=num_tasks))
    out.print("\n3. Results", style="bold")
    out.print(effects_text(effects))
    more = _compare(folder, config, num_tasks=num_tasks) if compare else []
    _write_report(folder, effects, more)


def _compare(folder: Path, config: TrainConfig, *, num_tasks: int) -> list[tuple[str, Path]]:
    """Train and evaluate the variants, print the table; names and paths of their runs."""
    out.print("4. The rule as published, and a single agent, from the same supervised start", style="bold")
    start = str(latest(folder / "warm"))
    records = {OURS: _evaluate(folder, folder / "after", TASKS, _flags(config, num_tasks))}
    runs: list[tuple[str, Path]] = []
    for variant in VARIANTS:
        own = replace(variant.change(from_start(config, start)), name=variant.name)
        _train_or_resume(own, folder, folder / variant.name)
        flags = _flags(config, num_tasks) | {"methods": [variant.method]}
        into = folder / f"after-{variant.name}"
        records[variant.title] = _evaluate(folder / variant.name, into, TASKS, flags)
        runs += [(f"after, {variant.name}", into), (f"training, {variant.name}", folder / variant.name)]
    out.print(comparison_table(records))
    return runs


def _train_or_resume(config: TrainConfig, runs: Path, folder: Path) -> None:
    """Train, resume the training, or find it finished."""
    if not folder.exists():
        watch_training(partial(loop.train, config, runs=runs))
        return
    run = RunDir.open(folder)
    if run.kind != "train" or load(TrainConfig, file=folder / "config.toml") != config:
        raise ConfigError(f"{folder} was made with other settings: remove it, or give another folder with --runs")
    if len(run.metrics()) < config.steps:
        watch_training(partial(loop.resume, folder))
    else:
        out.print(f"{folder} is already trained: remove it to train again", style="dim")


def _evaluate_all(folder: Path, config: TrainConfig, *, num_tasks: int) -> Measured:
    """The model before and after training by reward, and after it alone in a wide window."""
    flags = _flags(config, num_tasks)
    wide = flags | {"budget.window": WIDE, "methods": ["single"]}
    return Measured(
        before=_evaluate(folder / "warm", folder / "before", TASKS, flags),
        after=_evaluate(folder, folder / "after", TASKS, flags),
        wide=_evaluate(folder, folder / "wide", TASKS[:1], wide),
    )


def _flags(config: TrainConfig, num_tasks: int) -> dict[str, Any]:
    limits = {f"budget.{name}": limit for name, limit in config.budget.items() if name != "tokens"}
    return limits | {"num_tasks": num_tasks, "methods": list(METHODS)}


def _evaluate(model: Path, into: Path, tasks: Sequence[str], flags: Mapping[str, Any]) -> list[Record]:
    fixed = {"engine.device": "cpu", "temperature": TEMPERATURE, "concurrency": CONCURRENCY}
    config, found = resolve_eval_config(tasks, flags={**flags, **fixed, "engine.model": str(model)})
    with show_progress() as callbacks:
        evaluation, _ = run_evaluation(config, found, into=into, **callbacks)
    return evaluation.records


def _write_report(folder: Path, effects: Sequence[Effect], more: Sequence[tuple[str, Path]]) -> None:
    from ramet.report.page import is_current, write_report

    named = [("before", folder / "before"), ("after", folder / "after"), ("training", folder), *more]
    names, runs = zip(*named, strict=True)
    page = folder / "report" / "index.html"
    if not is_current(page, runs):
        write_report(runs, page.parent, names=names, export=find_export())
    failed = [effect.name for effect in effects if not effect.holds]
    if failed:
        out.print(f"Did not hold this time: {', '.join(failed)}.", style="yellow")
    out.print(f"\nReport: {page}")
    example = f"{command()} show {folder / 'after'} --tree clones.own.codes:long/0.0"
    out.print(f"A tree: {example}", style="dim")
