"""What `ramet train` and `ramet warmstart` do: read settings, show progress, say where things are."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ramet.cli.commands import command, out, print_json
from ramet.config import load, to_toml
from ramet.errors import ConfigError
from ramet.models.folders import check_packages
from ramet.store import RunDir
from ramet.terminal.training import Watch, shown

if TYPE_CHECKING:
    from ramet.train.local.backend import Started, Tell
    from ramet.train.settings import TrainConfig

RECIPES = Path(__file__).parents[1] / "recipes"


def train(
    recipe: str | None,
    words: Sequence[str],
    *,
    resume: Path | None,
    runs: Path,
    data: str | None,
    check: bool,
    as_json: bool,
) -> None:
    """Train a model, or go on with a run. Without anything, say what recipes there are."""
    if recipe is None and not words and resume is None:
        return list_recipes(as_json=as_json)
    check_packages("", "peft")
    from ramet.train.settings import TrainConfig

    if resume is not None:
        _refuse_settings(recipe, words, data, check)
        return train_on(resume, as_json=as_json)
    file, words = _recipe(recipe, words)
    config = load(TrainConfig, file=file, words=words, flags=_options(data))
    if check:
        return show_settings(config, as_json=as_json)
    return train_anew(config, runs=runs, as_json=as_json)


def train_anew(config: TrainConfig, *, runs: Path, as_json: bool = False) -> None:
    """A new run, watched."""
    from ramet.train import loop

    _watched("train", lambda tell, started: loop.train(config, runs=runs, tell=tell, started=started), as_json)


def train_on(run: Path, *, as_json: bool = False) -> None:
    """A run that was left, watched again."""
    from ramet.train import loop

    _watched("train", lambda tell, started: loop.resume(run, tell=tell, started=started), as_json)


def show_settings(config: TrainConfig, *, as_json: bool) -> None:
    """Find everything that settings name, but for the weights, and print them with all that was left unsaid."""
    from ramet.train.loop import check_files, work_of

    check_files(work_of(config))
    if as_json:
        return print_json(asdict(config))
    sys.stdout.write(to_toml(config))
    return None


def list_recipes(*, as_json: bool) -> None:
    """What comes with the package, one line each."""
    found = {name: about(name) for name in recipes()}
    if as_json:
        return print_json(found)
    width = max(map(len, found))
    for name, line in found.items():
        out.print(Text(f"{name:{width}}  ", style="bold").append(line, style="not bold"))
    out.print(f"\n{command()} train RECIPE   ({command()} train RECIPE --check prints its settings)", style="dim")
    return None


def about(recipe: str) -> str:
    """The first line of a recipe, which says what it is for."""
    first = (RECIPES / f"{recipe}.toml").read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip()


def warmstart(
    recipe: str | None, words: Sequence[str], *, resume: Path | None, runs: Path, data: str | None, as_json: bool
) -> None:
    """Teach a model by demonstrations, or go on with it."""
    check_packages("", "peft")
    from ramet.train import warmstart as warm
    from ramet.train.settings import WarmConfig

    if resume is not None:
        _refuse_settings(recipe, words, data)
        return _watched(
            "warmstart", lambda tell, started: warm.resume_warmstart(resume, tell=tell, started=started), as_json
        )
    file, words = _recipe(recipe, words)
    config = load(WarmConfig, file=file, words=words, flags=_options(data))
    return _watched(
        "warmstart", lambda tell, started: warm.warmstart(config, runs=runs, tell=tell, started=started), as_json
    )


def recipes() -> list[str]:
    """The recipes that come with the package."""
    return sorted(file.stem for file in RECIPES.glob("*.toml"))


def _recipe(recipe: str | None, words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The file that a name means, and the settings after it. A first word with = is a setting already."""
    if recipe is None or "=" in recipe:
        return None, [*([] if recipe is None else [recipe]), *words]
    if recipe.endswith(".toml") or Path(recipe).is_file():
        return Path(recipe), list(words)
    if recipe not in recipes():
        near = get_close_matches(recipe, recipes(), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"no recipe {recipe!r}: {hint}give a TOML file, or one of {', '.join(recipes())}")
    return RECIPES / f"{recipe}.toml", list(words)


def _options(data: str | None) -> dict[str, Any]:
    return {} if data is None else {"taskset.data": data}


def _refuse_settings(*given: object) -> None:
    if any(given):
        raise ConfigError("a resumed run keeps its settings: give --resume RUN alone")


def _watched(verb: str, work: Callable[[Tell, Started], RunDir], as_json: bool) -> None:
    """Run and show it: drawn in a terminal, else a line a step. Whoever interrupts is told how to go on."""
    begun: list[RunDir] = []
    watch = Watch()
    drawn = out.is_terminal and not as_json

    def started(run: RunDir) -> None:
        begun.append(run)
        watch.started(run)
        if not as_json and not drawn:
            out.print(str(run.path), style="dim")

    def tell(record: dict[str, Any]) -> None:
        watch.tell(record)
        if as_json:
            sys.stdout.write(json.dumps(record) + "\n")
            sys.stdout.flush()
        elif not drawn:
            out.print(line(record))

    try:
        with shown(watch, out) if drawn else nullcontext():
            run = work(tell, started)
    except KeyboardInterrupt:
        if begun:
            out.print(f"go on with: {command()} {verb} --resume {begun[0].path}", style="dim")
        raise
    if not as_json:
        out.print(f"{_newest(run)}  ({command()} run QUESTION --model {_newest(run)})", style="dim")
        if watch.left:
            out.print(f"time is up; go on with: {command()} {verb} --resume {run.path}", style="dim")


def _newest(run: RunDir) -> Path:
    from ramet.train.local.checkpoint import latest

    return latest(run.path) or run.path


def line(record: dict[str, Any]) -> Text:
    """One step in one line.

    Example:
        str(line({"step": 3, "loss": 0.25, "note": "slow"}))  # "step 4  loss 0.250  slow"
    """
    parts = [f"{record['part']} step {record['step'] + 1}" if "part" in record else f"step {record['step'] + 1}"]
    for name, label, shape in SHOWN:
        value = record.get(name)
        if value is not None:
            parts.append(f"{label} {value:{shape}}")
    text = Text("  ".join(parts))
    if "note" in record:
        text.append(f"  {record['note']}", style="yellow")
    return text


SHOWN = (
    ("reward", "reward", ".3f"),
    ("success", "success", ".0%"),
    ("delegated", "delegated", ".0%"),
    ("nodes", "nodes", ".1f"),
    ("tokens", "tokens", ",.0f"),
    ("loss", "loss", ".3f"),
    ("norm", "norm", ".3g"),
    ("gap", "gap", ".1e"),
    ("collect_s", "collect", ".1f"),
    ("learn_s", "learn", ".1f"),
    ("eval_success", "eval success", ".0%"),
    ("eval_delegated", "eval delegated", ".0%"),
    ("eval_tokens", "eval tokens", ",.0f"),
)
