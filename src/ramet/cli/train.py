"""`ramet train` and `ramet warmstart`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ramet.cli.options import AcceptChanges, DataPath, Json, Recipe, Resume, Runs, Settings
from ramet.cli.view import View, viewing
from ramet.errors import ConfigError

if TYPE_CHECKING:
    from ramet.train.loss import Loss
    from ramet.train.settings import TrainConfig, WarmConfig

NOTHING_TO_LEARN = (
    "say what to learn from: ramet warmstart task=NAME:SPLIT (demonstrations of its oracle; ramet tasks lists names), "
    "run=DIR (the trees of a run), or a file with settings; see ramet warmstart --help"
)


def train(
    recipe: Recipe = None,
    settings: Settings = None,
    resume: Resume = None,
    runs: Runs = Path("runs"),
    data: DataPath = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Load no model: check the settings, let the oracle try and print every setting."),
    ] = False,
    single: Annotated[
        bool,
        typer.Option("--single", help="The same run without delegation, to compare with: one node per tree."),
    ] = False,
    accept_changes: AcceptChanges = False,
    view: View = False,
    json: Json = False,
) -> None:
    """Train a model to delegate: run groups of trees, give every node credit, update the weights, repeat.

    Without a recipe and settings it lists the built-in recipes. All settings of one: ramet train nano --check

    Example: ramet train arithmetic-135m steps=50 budget.tokens=[200,900] show_budget=true

    Resume an interrupted run with ramet train --resume runs/arithmetic-135m, and lengthen one with steps=200 after it.
    Settings that do not change what is learnt, like save_every=5, can be given too.

    The exit code of --check is 1 if the oracle is right in none of the first tasks, 2 for a mistake in the settings.
    """
    from ramet.config import load
    from ramet.terminal.console import warn
    from ramet.terminal.recipes import list_recipes, print_settings
    from ramet.train import loop
    from ramet.train.effective import effective_settings
    from ramet.train.preview import device_problems, preview
    from ramet.train.settings import TrainConfig, warm_config
    from ramet.train.variants import single_variant

    if recipe is None and not settings and resume is None:
        return list_recipes(as_json=json)
    if resume is not None:
        _refuse_flags(data, check, single)
        length = _length(resume, recipe, settings, TrainConfig)
        with viewing(view, resume):
            return _watch(partial(loop.resume, resume, accept_changes=accept_changes, **length), as_json=json)
    config = load(TrainConfig, **_sources(recipe, settings or [], data))
    config = single_variant(config) if single else config
    _warn_of_idle_settings(config.loss, "loss.")
    if (supervised := warm_config(config)) is not None:
        _warn_of_idle_settings(supervised.loss, "warm.loss.")
        _warn_of_warmup(supervised, "warm.")
    _warn_of_warmup(config)
    _warn_of_normalised_price(config)
    if check:
        plan = loop.check_plan(config)
        for problem in device_problems(config):
            warn(problem)
        tried = preview(plan.taskset, plan.first_split, config)
        print_settings(config, effective_settings(plan), as_json=json, notes=tried.notes)
        if tried.problem is not None:
            warn(tried.problem)
            raise typer.Exit(1)
        return None
    _warn_of_full_window(config, recipe, settings or [])
    with viewing(view, runs):
        lower = _lower_overlap(recipe, settings or [])
        return _watch(partial(loop.train, config, runs=runs, lower_overlap=lower), as_json=json)


def _warn_of_idle_settings(loss: Loss, inside: str) -> None:
    from ramet.terminal.console import warn
    from ramet.train.loss import idle_settings

    for note in idle_settings(loss, inside=inside):
        warn(note)


def _warn_of_warmup(config: TrainConfig | WarmConfig, inside: str = "") -> None:
    """A learning rate that is still rising when the training ends is rarely meant: often only `steps` was changed."""
    from ramet.terminal.console import warn

    warmup, steps = config.update.warmup_steps, config.steps
    if 0 < steps < warmup:
        rate = config.update.rate_at(steps - 1, steps)
        longer = f"{inside}update.warmup_steps={warmup} is longer than {inside}steps={steps}"
        warn(f"{longer}: the learning rate ends at {rate:.3g}")


def _warn_of_normalised_price(config: TrainConfig) -> None:
    """Where all trees of a group are right, such a price is as large as the difference between right and wrong."""
    from ramet.credit import load_rule
    from ramet.credit.selfcest import Selfcest
    from ramet.terminal.console import warn

    rule = load_rule(config.rule, config.credit)
    if isinstance(rule, Selfcest) and rule.normalise and (rule.clone_cost or rule.token_cost or rule.prompt_cost):
        warn("a price with credit.normalise=true can end all delegation: set credit.normalise=false (docs/credit.md)")


def _warn_of_full_window(config: TrainConfig, recipe: str | None, words: Sequence[str]) -> None:
    """The window of a recipe may be too small for another task, from which nothing can be learnt then."""
    from ramet.config import settings_of
    from ramet.terminal.console import warn
    from ramet.train import loop
    from ramet.train.preview import full_window

    if "task" not in settings_of([word for word in (recipe, *words) if word is not None and "=" in word]):
        return
    plan = loop.check_plan(config)
    if note := full_window(plan.taskset, plan.first_split, config):
        warn(f"{note}: give a larger budget.window")


def _lower_overlap(recipe: str | None, words: Sequence[str]) -> Callable[[str], None] | None:
    """An `overlap` that only the recipe asks for is left out where it does not work; one that was given is refused."""
    from ramet.config import settings_of
    from ramet.terminal.console import warn

    given = settings_of([word for word in (recipe, *words) if word is not None and "=" in word])
    return None if given.keys() & {"overlap", "overlap_by", "max_age", "max_trees"} else warn


def warmstart(
    recipe: Recipe = None,
    settings: Settings = None,
    resume: Resume = None,
    runs: Runs = Path("runs"),
    data: DataPath = None,
    accept_changes: AcceptChanges = False,
    json: Json = False,
) -> None:
    """Train a model on demonstrations: of a taskset's oracle (task=NAME:SPLIT), or the trees of a run (run=DIR).

    Example: ramet warmstart task=craft:easy steps=100 delegate=0.5
    """
    from ramet.config import load
    from ramet.train import warmstart as warm
    from ramet.train.settings import WarmConfig

    if resume is not None:
        _refuse_flags(data)
        length = _length(resume, recipe, settings, WarmConfig)
        resumed = partial(warm.resume_warmstart, resume, accept_changes=accept_changes, **length)
        return _watch(resumed, as_json=json)
    if recipe is None and not settings:
        raise ConfigError(NOTHING_TO_LEARN)
    config = load(WarmConfig, **_sources(recipe, settings or [], data))
    _warn_of_idle_settings(config.loss, "loss.")
    return _watch(partial(warm.warmstart, config, runs=runs), as_json=json)


def _sources(recipe: str | None, words: Sequence[str], data: str | None) -> dict[str, Any]:
    """Where settings come from. A first word with `=` is a setting, not a recipe."""
    from ramet.recipes import recipe_file

    flags = {} if data is None else {"taskset.data": data}
    if recipe is None or "=" in recipe:
        return {"words": [*([] if recipe is None else [recipe]), *words], "flags": flags}
    return {"file": recipe_file(recipe), "words": words, "flags": flags}


def _refuse_flags(*given: object) -> None:
    if any(given):
        raise ConfigError("a resumed run keeps its settings: give only --resume RUN, and steps=N to lengthen it")


def _length(run: Path, recipe: str | None, settings: Sequence[str] | None, kind: Any) -> dict[str, Any]:
    """The new length of a resumed run. What else changes with it is printed."""
    from ramet.config import settings_of
    from ramet.store import RunDir
    from ramet.terminal.console import warn
    from ramet.train.length import length_notes, parse_length

    if recipe is not None and "=" not in recipe:
        raise ConfigError(
            f"a resumed run has its own settings: leave {recipe!r} out, or start a new run without --resume"
        )
    words = [*([] if recipe is None else [recipe]), *(settings or [])]
    length = parse_length(settings_of(words), run, kind)
    for note in length_notes(RunDir.open(run), kind, length.get("steps")) if length else ():
        warn(note)
    return length


def _watch(training: Any, *, as_json: bool) -> None:
    from ramet.terminal.training import watch_training

    watch_training(training, as_json=as_json)
