"""What `ramet report` takes and gives apart from the page: named runs, the default folder, facts for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError
from ramet.evaluate.cells import Cell, Comparison
from ramet.evaluate.format import points, verdict
from ramet.evaluate.tables import Section
from ramet.report.page import Report
from ramet.store import slug


def parse_named_run(word: str) -> tuple[str | None, Path]:
    """The name and the path in `NAME=RUN`. A directory whose own name contains = is taken as it is.

    Example:
        parse_named_run("after=runs/x")  # ("after", Path("runs/x"))
    """
    name, sign, path = word.partition("=")
    if not sign or "/" in name or Path(word).exists():
        return None, Path(word)
    if not name.strip() or not path:
        raise ConfigError(f"{word!r}: write NAME=RUN, like after=runs/my-run")
    return name.strip(), Path(path)


def report_folder(paths: Sequence[Path], into: Path | None = None) -> Path:
    """The folder for the page: `into`, else inside the run; for several runs, next to the first."""
    if into is not None:
        if into.exists() and not into.is_dir():
            raise ConfigError(f"--into {into} is a file: give a folder")
        return into
    if len(paths) == 1:
        return paths[0] / "report"
    names = "-".join(path.resolve().name for path in paths)
    return paths[0].parent / f"report-{slug(names)}"


def report_facts(report: Report) -> dict[str, Any]:
    """The content of a report as plain data for JSON."""
    return {
        "headline": list(report.headline),
        "runs": [
            {"name": run.name, "path": str(run.path), "kind": run.kind, "notes": run.notes} for run in report.runs
        ],
        "cells": [_cell_facts(section, cell) for section in report.sections for cell in section.cells],
        "differences": [
            _difference_facts(section, comparison) for section in report.sections for comparison in section.comparisons
        ],
        "pictures": [picture.name for picture in report.pictures],
    }


def _cell_facts(section: Section, cell: Cell) -> dict[str, Any]:
    return {
        "title": section.title,
        "run": cell.run,
        "method": cell.method,
        "budget": cell.budget,
        "items": cell.items,
        "accuracy": asdict(cell.accuracy),
        "generated": cell.generated,
        "critical_path": cell.critical_path,
        "delegated": cell.delegated,
        "oracle": cell.oracle,
        "front": cell.front,
        "front_critical_path": cell.front_critical_path,
    }


def _difference_facts(section: Section, comparison: Comparison) -> dict[str, Any]:
    return {
        "title": section.title,
        "cell": comparison.cell,
        "against": comparison.other,
        "part": comparison.part,
        **asdict(comparison.difference),
        "points": points(comparison.difference),
        "verdict": verdict(comparison.difference),
    }
