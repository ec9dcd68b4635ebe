"""The results of the engine benchmark, as tables and as JSON."""

# pyright: standard

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import ramet
from ramet.bench.workload import Workload

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@dataclass(slots=True, kw_only=True)
class Row:
    """One engine on one workload, with or without log-probs."""

    engine: str
    workload: str
    logprobs: bool
    generated_tokens: int
    seconds: list[float] = field(default_factory=list[float])
    peak_bytes: int | None = None
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """The speed of the best pass; None for a row with an error."""
        return self.generated_tokens / min(self.seconds) if self.seconds and self.error is None else None


def bench_facts(rows: Sequence[Row], workloads: Sequence[Workload], *, options: Mapping[str, Any]) -> dict[str, Any]:
    """All results, with the command, the hardware and the versions."""
    return {
        "command": shlex.join(
            ["ramet", "bench", "engine", *sys.argv[3 if sys.argv[1:3] == ["bench", "engine"] else 1 :]]
        ),
        "options": dict(options),
        "hardware": _hardware(options["device"]),
        "versions": _versions(),
        "workloads": {work.name: asdict(work.shape()) for work in workloads},
        "results": [
            asdict(row) | {"tokens_per_s": row.tokens_per_s, "times_generate": times_generate(row, rows)}
            for row in rows
        ],
    }


def times_generate(row: Row, rows: Sequence[Row]) -> float | None:
    """The speed relative to `transformers.generate` on the same work; None if one of them has no number."""
    same = [other for other in rows if (other.workload, other.logprobs) == (row.workload, row.logprobs)]
    base = next((other.tokens_per_s for other in same if other.engine == "generate"), None)
    return row.tokens_per_s / base if row.tokens_per_s and base else None


def show(console: Console, facts: Mapping[str, Any]) -> None:
    """Print a table per workload, then errors, hardware and versions."""
    options = facts["options"]
    for name, shape in facts["workloads"].items():
        console.print(_title(name, shape), style="bold", soft_wrap=True)
        console.print(_table([row for row in facts["results"] if row["workload"] == name]))
    for row in facts["results"]:
        if row["error"] is not None:
            mode = "with" if row["logprobs"] else "without"
            console.print(
                f"{row['engine']}, {row['workload']} {mode} log-probs: {row['error']}", style="red", soft_wrap=True
            )
    versions = " · ".join(f"{name} {number}" for name, number in facts["versions"].items())
    console.print(f"{facts['hardware']} · {options['model']} in {options['dtype']} · {versions}", soft_wrap=True)
    note = (
        f"Generated tokens per second, best of {options['sizes']['repeat']} passes. Each cache has "
        f"{options['cache_tokens']:,} tokens. ramet always returns log-probs."
    )
    if any(row["engine"] == "vllm" and row["peak_bytes"] for row in facts["results"]):
        note += " Memory is the peak allocated by torch; for vllm, what it takes when it starts."
    console.print(note, style="dim", soft_wrap=True)


def _title(name: str, shape: Mapping[str, int]) -> str:
    roots = shape["roots"]
    trees = f"{roots:,} tree{'s' if roots > 1 else ''}, " if roots < shape["calls"] else ""
    return (
        f"{name}: {trees}{shape['calls']:,} calls, {shape['prompt_tokens']:,} prompt tokens "
        f"({shape['unique_prompt_tokens']:,} unique), {shape['generated_tokens']:,} generated"
    )


def _table(results: Sequence[Mapping[str, Any]]) -> Table:
    from rich.table import Table

    table = Table("engine", "version", "log-probs")
    for column in ("tokens/s", "times generate", "peak MB"):
        table.add_column(column, justify="right")
    for row in results:
        head = [row["engine"], str(row["facts"].get("version", "")), "yes" if row["logprobs"] else "no"]
        missing = "not measured" if row["error"] is None else "refused"
        speed = missing if row["tokens_per_s"] is None else f"{row['tokens_per_s']:,.0f}"
        times = "" if row["times_generate"] is None else f"{row['times_generate']:.2f}"
        peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:,.0f}"
        table.add_row(*head, speed, times, peak)
    return table


def _hardware(device: str) -> str:
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device)
    return f"{os.cpu_count()} CPU cores, {platform.machine()}"


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "ramet": ramet.__version__}
    for name in ("torch", "transformers", "vllm"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
