"""What `ramet report` does: read runs, write the page, say in the terminal what is on it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ramet.cli.commands import out, print_json
from ramet.errors import ConfigError
from ramet.report.format import amount, hundredths, method_name, percent, points, short_tokens, signed, verdict
from ramet.report.numbers import Comparison, Versus
from ramet.report.page import Report, make_report, save_report
from ramet.store import slug

PIPED = 100_000  # columns: into a file or pipe everything goes in full


def report(words: Sequence[str], *, into: Path | None, as_json: bool) -> None:
    """Write the page of these runs, and print the most important of it."""
    named = [run_of(word) for word in words]
    paths = [path for _, path in named]
    target = into or default_folder(paths)
    if target.exists() and not target.is_dir():
        raise ConfigError(f"--into {target}: there is a file of that name; give a folder")
    with nullcontext() if as_json or not out.is_terminal else out.status("reading and drawing"):
        made = make_report(paths, names=[name for name, _ in named])
        page = save_report(made, target)
    if as_json:
        return print_json(facts_of(made) | {"page": str(page)})
    wide = out if out.is_terminal else Console(width=PIPED, highlight=False, markup=False)
    for line in made.headline:
        out.print(Text(line, style="bold"))
    for comparison in made.comparisons:
        out.print()
        wide.print(_table(comparison))
    for run in made.runs:
        for note in run.notes:
            out.print(Text(f"{run.name}: {note}", style="yellow"))
    out.print()
    out.print(f"{page}  (open it in a browser)", style="dim")
    return None


def run_of(word: str) -> tuple[str | None, Path]:
    """A run and the name somebody gave it. A directory whose own name has a = in it is meant as it stands.

    Example:
        run_of("after=runs/x")  # ("after", Path("runs/x"))
    """
    name, sign, path = word.partition("=")
    if not sign or "/" in name or Path(word).exists():
        return None, Path(word)
    if not name.strip() or not path:
        raise ConfigError(f"{word!r}: write NAME=RUN, like after=runs/my-run")
    return name.strip(), Path(path)


def default_folder(paths: Sequence[Path]) -> Path:
    """Inside the run; for several, beside the first."""
    if len(paths) == 1:
        return paths[0] / "report"
    names = "-".join(path.resolve().name for path in paths)
    return paths[0].parent / f"report-{slug(names)}"


def _table(comparison: Comparison) -> Table:
    """Every cell in a line."""
    table = Table(title=comparison.title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    several = comparison.several
    names = [*(["run"] if several else []), "method", "budget", "accuracy"]
    for name in [*names, "tokens", "path", "delegated", "front"]:
        table.add_column(name, justify="left" if name in ("run", "method", "front") else "right", no_wrap=True)
    for cell in comparison.cells:
        marks = [word for word, on in (("tokens", cell.front), ("path", cell.front_critical)) if on]
        row = [
            *([cell.run] if several else []),
            method_name(cell.method),
            short_tokens(cell.budget),
            percent(cell.accuracy),
            amount(cell.generated),
            amount(cell.critical_path),
            f"{hundredths(cell.delegated)} %",
            ", ".join(marks),
        ]
        table.add_row(*map(Text, row))
    return table


def facts_of(made: Report) -> dict[str, Any]:
    """The same for machines."""
    return {
        "headline": list(made.headline),
        "runs": [{"name": run.name, "path": str(run.path), "kind": run.kind, "notes": run.notes} for run in made.runs],
        "cells": [
            {
                "title": comparison.title,
                "run": cell.run,
                "method": cell.method,
                "budget": cell.budget,
                "items": len(cell.records),
                "accuracy": asdict(cell.accuracy),
                "generated": cell.generated,
                "critical_path": cell.critical_path,
                "delegated": cell.delegated,
                "oracle": cell.oracle,
                "front": cell.front,
                "front_critical_path": cell.front_critical,
            }
            for comparison in made.comparisons
            for cell in comparison.cells
        ],
        "differences": [
            _difference(comparison, one)
            for comparison in made.comparisons
            for one in (*comparison.methods_apart, *comparison.runs_apart)
        ],
        "pictures": [f"{picture.name}.png" for picture in made.pictures],
    }


def _difference(comparison: Comparison, one: Versus) -> dict[str, Any]:
    return {
        "title": comparison.title,
        "cell": one.cell,
        "against": one.other,
        "part": one.part,
        **asdict(one.gap),
        "points": f"{signed(one.gap.value)} {points(one.gap.low, one.gap.high)}",
        "verdict": verdict(one),
    }
