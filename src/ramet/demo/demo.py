"""The whole way in one command: a model made from nothing is shown how to delegate, learns by reward when it pays, and
is measured before and after. Everything runs through what other models are trained and measured with.

Running it again goes on where it stopped; a finished one is only read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramet.cli.commands import command, out
from ramet.cli.eval_commands import evaluated, settled
from ramet.cli.train_commands import RECIPES, train_anew, train_on
from ramet.config import load
from ramet.demo.effects import Effect, Measured, effects_of, effects_text
from ramet.errors import ConfigError
from ramet.evaluate.record import Record
from ramet.models.folders import check_packages
from ramet.store import RunDir

if TYPE_CHECKING:
    from ramet.train.settings import TrainConfig

TASKS = ("codes:eval", "codes:long")
METHODS = ("single", "clones")
TASK = """\
Its task: in a pattern like 1?0??101 every ? is 0 or 1, so 8 codes fit. Go through
them, a line each, and add up how long the longest run of equal digits in each is.
Alone, many codes overflow its small window; or it splits the pattern in two
(100??101 and 110??101) and asks two clones, who may do the same."""
TEMPERATURE = 0.3
AT_ONCE = 256  # trees
WIDE = 256  # a window in which the single agent can work out everything


def demo(runs: Path, *, words: Sequence[str] = (), number: int = 200) -> None:
    """Train, measure, compare; `words` are settings laid over the recipe `nano`."""
    where = runs / "demo"
    out.print(
        f"A model of a third of a million parameters learns to delegate, on this CPU.\nEverything goes to {where}."
    )
    out.print(TASK, style="dim")
    out.print("\n1. Shown how, then reward: patterns of 2 to 32 codes, in windows that hold a dozen", style="bold")
    config = _trained(runs, where, words)
    out.print("\n2. Before and after that reward, alone and with clones, on patterns never seen", style="bold")
    limits = {f"budget.{name}": limit for name, limit in config.budget.items() if name != "tokens"}
    wide = limits | {"budget.window": WIDE}
    measured = Measured(
        before=_measure(where / "warm", where / "before", limits, number=number),
        after=_measure(where, where / "after", limits, number=number),
        wide=_measure(where, where / "wide", wide, number=number, tasks=TASKS[:1], methods=("single",)),
    )
    effects = effects_of(measured)
    out.print("\n3. What came of it", style="bold")
    out.print(effects_text(effects))
    _say_where(where, effects)


def _trained(runs: Path, where: Path, words: Sequence[str]) -> TrainConfig:
    """Train, or go on with it, or find that it is done."""
    check_packages("nano", "peft", "matplotlib")
    from ramet.train.settings import TrainConfig

    config = load(TrainConfig, file=RECIPES / "nano.toml", words=words, flags={"name": where.name})
    if not where.exists():
        train_anew(config, runs=runs)
        return config
    run = RunDir.open(where)
    if run.kind != "train" or load(TrainConfig, file=where / "config.toml") != config:
        raise ConfigError(f"{where} was made with other settings: remove it, or give --runs another folder")
    if len(run.metrics()) < config.steps:
        train_on(where)
    else:
        out.print(f"{where} is there already: remove it to train again", style="dim")
    return config


def _measure(
    model: Path,
    into: Path,
    limits: Mapping[str, Any],
    *,
    number: int,
    tasks: Sequence[str] = TASKS,
    methods: Sequence[str] = METHODS,
) -> list[Record]:
    flags: dict[str, Any] = {"engine.model": str(model), "engine.device": "cpu", "methods": list(methods)}
    flags |= {"num_tasks": number, "temperature": TEMPERATURE, "concurrency": AT_ONCE}
    config, found = settled(list(tasks), flags | dict(limits), None)
    return evaluated(config, found, into=into)[0].records


def _say_where(where: Path, effects: Sequence[Effect]) -> None:
    from ramet.report.page import write_report

    shown = [where / "before", where / "after", where]
    page = write_report(shown, where / "report", names=["before", "after", "training"])
    failed = [effect.name for effect in effects if not effect.holds]
    if failed:
        out.print(f"Did not come out this time: {', '.join(failed)}.", style="yellow")
    out.print(f"\nThe page with all of it: {page}")
    out.print(f"One of the trees: {command()} show {where / 'after'} --tree clones.own.codes:long/0.0", style="dim")
