"""What `ramet train` and `ramet warmstart` do: read settings, show progress, say where things are."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ramet.commands import command, out
from ramet.config import load
from ramet.errors import ConfigError
from ramet.models import check_packages
from ramet.store import RunDir

if TYPE_CHECKING:
    from ramet.train.held import Started, Tell

RECIPES = Path(__file__).parent / "recipes"


def train(recipe: str | None, words: Sequence[str], *, resume: Path | None, runs: Path, as_json: bool) -> None:
    """Train a model, or go on with a run."""
    check_packages("", "peft")
    from ramet.train import loop
    from ramet.train.settings import TrainConfig

    if resume is not None:
        _refuse_settings(recipe, words)
        return _watched("train", lambda tell, started: loop.resume(resume, tell=tell, started=started), as_json)
    file, words = _recipe(recipe, words)
    config = load(TrainConfig, file=file, words=words)
    return _watched("train", lambda tell, started: loop.train(config, runs=runs, tell=tell, started=started), as_json)


def warmstart(recipe: str | None, words: Sequence[str], *, resume: Path | None, runs: Path, as_json: bool) -> None:
    """Teach a model by demonstrations, or go on with it."""
    check_packages("", "peft")
    from ramet.train import warmstart as warm
    from ramet.train.settings import WarmConfig

    if resume is not None:
        _refuse_settings(recipe, words)
        return _watched(
            "warmstart", lambda tell, started: warm.resume_warmstart(resume, tell=tell, started=started), as_json
        )
    file, words = _recipe(recipe, words)
    config = load(WarmConfig, file=file, words=words)
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


def _refuse_settings(recipe: str | None, words: Sequence[str]) -> None:
    if recipe is not None or words:
        raise ConfigError("a resumed run keeps its settings: give --resume RUN alone")


def _watched(verb: str, work: Callable[[Tell, Started], RunDir], as_json: bool) -> None:
    """Run with a line a step; whoever interrupts is told how to go on."""
    begun: list[RunDir] = []

    def started(run: RunDir) -> None:
        begun.append(run)
        if not as_json:
            out.print(str(run.path), style="dim")

    def tell(record: dict[str, Any]) -> None:
        if as_json:
            sys.stdout.write(json.dumps(record) + "\n")
            sys.stdout.flush()
        else:
            out.print(line(record))

    try:
        run = work(tell, started)
    except KeyboardInterrupt:
        if begun:
            out.print(f"go on with: {command()} {verb} --resume {begun[0].path}", style="dim")
        raise
    if not as_json:
        out.print(f"{_newest(run)}  ({command()} run QUESTION --model {_newest(run)})", style="dim")


def _newest(run: RunDir) -> Path:
    from ramet.train.checkpoint import latest

    return latest(run.path) or run.path


def line(record: dict[str, Any]) -> Text:
    """One step in one line.

    Example:
        str(line({"step": 3, "loss": 0.25, "note": "slow"}))  # "step 4  loss 0.250  slow"
    """
    parts = [f"step {record['step'] + 1}"]
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
