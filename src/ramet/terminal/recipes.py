"""Recipes and settings, printed."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.text import Text

from ramet.config import to_toml
from ramet.recipes import describe, recipe_names
from ramet.terminal.console import command, out, print_json
from ramet.types import printable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def list_recipes(*, as_json: bool) -> None:
    """Print the built-in recipes, one line each."""
    recipes = {name: describe(name) for name in recipe_names()}
    if as_json:
        return print_json(recipes)
    width = max(map(len, recipes))
    for name, about in recipes.items():
        out.print(Text(f"{name:{width}}  ", style="bold").append(about, style="not bold"))
    hint = f"\n{command()} train RECIPE   ({command()} train RECIPE --check prints its settings)"
    return out.print(hint, style="dim")


def print_settings(config: DataclassInstance, *, as_json: bool, note: str = "") -> None:
    """Print all settings, defaults included, as TOML or JSON; the note is a comment above them."""
    if as_json:
        print_json(asdict(config))
    else:
        comment = f"# {printable(' '.join(note.split()))}\n" if note else ""
        sys.stdout.write(comment + to_toml(config))
