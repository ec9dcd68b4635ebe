"""Recipes and settings, printed."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from rich.text import Text

from ramet.config import toml_value
from ramet.recipes import describe, recipe_names
from ramet.terminal.console import command, out, print_json
from ramet.types import printable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


OPEN = "settings after a # are not set; the value shown is the one that then applies (limits: those of the first task)"


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


def print_settings(
    config: DataclassInstance, effective: Mapping[str, Any], *, as_json: bool, notes: Sequence[str] = ()
) -> None:
    """Print all settings as TOML or JSON; the notes are comments above them.

    `effective` are the values of all settings. In TOML, those that the settings leave open are comments.
    """
    if as_json:
        return print_json(effective)
    comments = [f"# {printable(' '.join(line.split()))}\n" for line in (*notes, OPEN)]
    sys.stdout.write("".join(comments) + "\n".join(_table("", asdict(config), effective)).strip() + "\n")
    return None


def _table(name: str, given: Mapping[str, Any] | None, effective: Mapping[str, Any]) -> list[str]:
    """The lines of a table and of those inside it. `given` is what is set there; None: there is no such table."""
    known = given or {}
    lines = [f"\n{'# ' if given is None else ''}[{name}]"] if name else []
    values = {**effective, **{key: value for key, value in known.items() if key not in effective}}
    inner = {key: cast(dict[str, Any], value) for key, value in values.items() if isinstance(value, dict)}
    lines += [_line(key, value, known.get(key) is not None) for key, value in values.items() if key not in inner]
    for key, value in inner.items():
        lines += _table(f"{name}.{_key(key)}" if name else _key(key), known.get(key), value)
    return lines


def _line(key: str, value: Any, given: bool) -> str:
    if value is None:
        return f"# {_key(key)}: not set"
    return f"{'' if given else '# '}{_key(key)} = {toml_value(value)}"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else toml_value(key)
