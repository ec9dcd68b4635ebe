"""The table of `ramet bench train`, its JSON, and a sentence on what limits each lane."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Facts = Mapping[str, Any]
WIDE = 200  # columns when the output is not a terminal
PARTS = {
    "loop": "event loop",
    "engine": "engine",
    "device": "device (the engine waits)",
    "learning": "learning",
    "storing": "storing",
    "credit": "credit",
    "process": "all threads of this process",
    "players": "other processes",
}
PYTHON_IS_FULL = 0.85  # share of the time in which some thread of the process computes
FEW = 64  # rows of an engine step that a GPU computes in hardly more time than one


def shares(seconds: Facts) -> dict[str, float]:
    """How much of the time each part took; of threads, how much of it they computed.

    Example:
        shares({"wall": 4.0, "loop": 1.0})  # {"loop": 0.25}
    """
    return {part: seconds[part] / seconds["wall"] for part in PARTS if part in seconds}


def limit(result: Facts) -> str:
    """What would have to be faster, as far as the shares tell."""
    part, rows = shares(result["seconds"]), tokens_per_step(result["seconds"])
    if not result["overlap"]:
        return "collecting and learning take turns: see overlap"
    if part["loop"] + part["engine"] + part["storing"] + part["credit"] >= PYTHON_IS_FULL:
        more = "more overlap does not help" if result["processes"] else "try collect.processes"
        return f"Python in the training process: {more}"
    if part["learning"] >= PYTHON_IS_FULL:
        return "learning: trees are ready before the learner is"
    players = part["players"] - (part["learning"] if result["own_learner"] else 0.0)
    if players >= PYTHON_IS_FULL * max(1, result["processes"]):
        return "players: try more collect.processes"
    if rows < FEW:
        return f"steps of the engine with few requests ({rows:.0f}): try more overlap or tasks_per_step"
    return f"the device: its steps have {rows:.0f} requests"


def tokens_per_step(seconds: Facts) -> float:
    return seconds["tokens"] / max(1, seconds["steps"])


def report(title: str, results: Sequence[dict[str, Any]], *, json_to: Path | None) -> None:
    """Print the table; with `json_to`, write all numbers, to standard output if it is `-`."""
    for result in results:
        seconds = result["seconds"]
        result["times_first"] = result["tokens_per_s"] / results[0]["tokens_per_s"]
        result["tokens_per_engine_step"] = tokens_per_step(seconds)
        result["shares"] = shares(seconds)
        result["us_per_token"] = {part: 1e6 * seconds[part] / max(1, seconds["tokens"]) for part in PARTS}
        result["limit"] = limit(result)
    if json_to is not None:
        text = json.dumps({"title": title, "results": results}, indent=1) + "\n"
        sys.stdout.write(text) if str(json_to) == "-" else json_to.write_text(text, encoding="utf-8")
    _print(title, results, to_stderr=str(json_to) == "-")


def _step_times(result: Facts) -> str:
    """Milliseconds of the device per step, by kind of step."""
    seconds = result["seconds"]
    each = [1e3 * seconds[kind] / max(1, seconds[f"{kind}_steps"]) for kind in ("decoding", "reading")]
    return "; ".join(f"{time:.1f}" for time in each)


def _print(title: str, results: Sequence[Facts], *, to_stderr: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=to_stderr)
    if not console.is_terminal:
        console = Console(stderr=to_stderr, width=WIDE)
    table = Table("", *(str(result["name"]) for result in results), title=title)
    table.add_row("generated tokens/s", *(f"{result['tokens_per_s']:,.0f}" for result in results))
    table.add_row("times the first", *(f"{result['times_first']:.2f}" for result in results))
    table.add_row("tokens per engine step", *(f"{result['tokens_per_engine_step']:.0f}" for result in results))
    read = (result["seconds"]["prompts"] / max(1, result["seconds"]["tokens"]) for result in results)
    table.add_row("prompt tokens read per token", *(f"{each:.2f}" for each in read))
    if results[0]["seconds"]["reading_steps"]:
        table.add_row("GPU: ms per step that decodes; that also reads", *map(_step_times, results))
    if results[0]["peak_gib"] is not None:
        table.add_row("peak GPU memory, GiB", *(f"{result['peak_gib']:.1f}" for result in results))
    if "save_s" in results[0]:
        table.add_row("checkpoint, GB", *(f"{result['checkpoint_gb']:.2f}" for result in results))
        cells = (f"{result['save_s']:.1f}, {result['restore_s']:.1f}" for result in results)
        table.add_row("to save it, to restore it: s", *cells)
    table.add_section()
    for part, name in PARTS.items():
        cells = (f"{result['shares'][part]:4.0%} {result['us_per_token'][part]:8.1f}" for result in results)
        table.add_row(f"{name}: share, µs/token", *cells)
    console.print(table)
    for result in results:
        console.print(f"{result['name']}: {result['limit']}", markup=False, highlight=False)
