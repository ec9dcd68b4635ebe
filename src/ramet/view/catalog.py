"""Which runs a viewer shows, by id. Every path that is read comes from here, never from a request.

id          path
nano        runs/nano
nano/warm   runs/nano/warm, its supervised start
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from ramet.errors import ConfigError

META = "meta.json"
LEVELS = 2  # of folders below a given one in which runs are found
MAX_TEXT = 4 * 2**20  # bytes of config.toml or meta.json


class Catalog:
    """The runs below the given folders. Runs that are created later appear by themselves.

    Example:
        catalog = Catalog([Path("runs")])
        catalog.find("nano/warm")
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = [root.resolve() for root in dict.fromkeys(roots)]
        for root in self.roots:
            if not root.is_dir():
                raise ConfigError(f"{root} is not a folder with runs: {'a file' if root.exists() else 'not there'}")

    def runs(self) -> dict[str, Path]:
        """Every run by its id, those of the first folder first."""
        found: dict[str, Path] = {}
        seen: set[Path] = set()
        for root in self.roots:
            base = root.parent if is_run(root) else root
            for path in _runs_in(root, LEVELS):
                if path not in seen:
                    seen.add(path)
                    found[_free_name(path.relative_to(base).as_posix(), found)] = path
        return found

    def find(self, run: str) -> Path | None:
        """The path of a run, by its id."""
        return self.runs().get(run)

    def add(self, run: Path) -> str:
        """Show one more run; returns its id."""
        run = run.resolve()
        if run not in self.runs().values():
            self.roots.append(run)
        return next(name for name, path in self.runs().items() if path == run)

    def folder_for(self, run: Path) -> Path:
        """Where a new run that is made from this one goes: beside it, or beside the run that it is part of."""
        while is_run(run.parent):
            run = run.parent
        return run.parent


def is_run(path: Path) -> bool:
    return (path / META).is_file()


def _runs_in(folder: Path, levels: int) -> Iterator[Path]:
    """The folder if it is a run, and the runs below it. Links that lead out of the folder are not followed."""
    if is_run(folder):
        yield folder
    if levels:
        try:
            inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        except OSError:
            return
        for path in inner:
            if path.name not in ("trees", "checkpoints", "report") and is_inside(path, folder):
                yield from _runs_in(path, levels - 1)


def _free_name(name: str, taken: dict[str, Path]) -> str:
    return name if name not in taken else _free_name(f"{name}+", taken)


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a file or folder lies in a folder, also after all links are followed."""
    try:
        return path.resolve(strict=True).is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False


def read_text(run: Path, name: str) -> str:
    """The text of a file of a run; empty if there is none, if it is too large or lies elsewhere."""
    path = run / name
    try:
        if not is_inside(path, run) or path.stat().st_size > MAX_TEXT:
            return ""
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def read_meta(run: Path) -> dict[str, Any]:
    """The contents of meta.json, as far as they can be read."""
    try:
        found: object = json.loads(read_text(run, META) or "{}")
    except (ValueError, RecursionError):
        return {}
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def read_config(run: Path) -> dict[str, Any]:
    """The settings of a run, as far as they can be read."""
    try:
        return tomllib.loads(read_text(run, "config.toml"))
    except (ValueError, RecursionError):
        return {}
