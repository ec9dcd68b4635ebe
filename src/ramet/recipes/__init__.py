"""The recipes that come with the package: TOML files with the settings of a training run."""

from __future__ import annotations

from pathlib import Path

from ramet.errors import ConfigError, did_you_mean

FOLDER = Path(__file__).parent


def recipe_names() -> list[str]:
    """The built-in recipes, sorted."""
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


def recipe_file(name: str) -> Path:
    """The file of a recipe: a path to a TOML file, or the name of a built-in recipe."""
    if name.endswith(".toml") or Path(name).is_file():
        return Path(name)
    if name not in recipe_names():
        raise ConfigError(f"no recipe {name!r}: {did_you_mean(name, ['a TOML file', *recipe_names()])}")
    return FOLDER / f"{name}.toml"


def describe(name: str) -> str:
    """The first line of a built-in recipe, which says what it is for."""
    first = recipe_file(name).read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip()
