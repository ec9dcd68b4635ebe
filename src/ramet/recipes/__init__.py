"""The recipes that come with the package: TOML files with the settings of a training run."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from ramet.errors import ConfigError

FOLDER = Path(__file__).parent


def recipe_names() -> list[str]:
    """The built-in recipes, sorted."""
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


def recipe_file(name: str) -> Path:
    """The file of a recipe: a path to a TOML file, or the name of a built-in recipe."""
    if os.path.exists(name) and not os.path.isdir(name):
        return Path(name)
    if name not in recipe_names():
        raise ConfigError(_not_found(name))
    return FOLDER / f"{name}.toml"


def _not_found(name: str) -> str:
    """The error for what is no recipe: a misspelt file or name, a folder, or a task."""
    path = Path(name)
    if os.path.isdir(name):
        return f"{name} is a folder; a recipe is a TOML file{_of_run(path)}"
    if ":" in name:
        return f"no recipe {name!r}; to train on that task: task={name}"
    is_file = bool(path.suffix) or path.name != name
    missing = f"there is no file {name}" if is_file else f"no recipe {name!r}"
    return f"{missing}: {_nearest(path)}"


def _of_run(folder: Path) -> str:
    given = "; ramet train --resume {0} resumes this run, ramet train {0}/config.toml starts one with its settings"
    return given.format(folder) if (folder / "meta.json").is_file() else ""


def _nearest(path: Path) -> str:
    """Files beside a missing one and built-in recipes with a similar name, else where the recipes are listed."""
    beside = {file.name: str(file) for file in path.parent.glob("*.toml")} if os.path.isdir(path.parent) else {}
    near = [*get_close_matches(path.name, beside), *get_close_matches(path.stem, recipe_names())]
    longer = [name for name in recipe_names() if path.stem in name.split("-")]
    if not near and not longer:
        return "give a TOML file or a built-in recipe; ramet train lists them"
    *more, last = [beside.get(name, name) for name in dict.fromkeys([*near, *longer])]
    return f"did you mean {', '.join(more)}{' or ' if more else ''}{last}?"


def describe(name: str) -> str:
    """The first line of a built-in recipe, which says what it is for."""
    first = recipe_file(name).read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip()
