"""The words of `ramet eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramet.cli.options import ApiKey, DataPath, Json, Runs
from ramet.errors import ConfigError


def evaluate(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME:SPLIT... [KEY=VALUE]...",
            help="Tasks, like craft:hard; any other setting, like budget.nodes=8.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A run directory of train or warmstart, a folder, smollm2, a name on a server.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Of single, vote@K, best@K, clones, clones/DEPTH (single,clones).")
    ] = None,
    budgets: Annotated[
        str | None,
        typer.Option(help="Generated tokens per item, like 1000,2000; what each task declares unless given."),
    ] = None,
    number: Annotated[int | None, typer.Option("-n", min=1, help="Tasks of each split (100).")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    base_url: Annotated[str | None, typer.Option(help="The server's address.")] = None,
    api_key: ApiKey = None,
    dialect: Annotated[str | None, typer.Option(help="How the model writes actions (tools).")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy (0.7).")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the sampling (0).")] = None,
    window: Annotated[int | None, typer.Option(help="Window of every node, in tokens.")] = None,
    show_budget: Annotated[bool | None, typer.Option(help="Tell the model what it has left.")] = None,
    trained: Annotated[
        str | None, typer.Option(help="LEAST:MOST sizes it was trained on; a run directory knows.")
    ] = None,
    data: DataPath = None,
    runs: Runs = Path("runs"),
    into: Annotated[Path | None, typer.Option(help="The run directory itself.")] = None,
    json: Json = False,
) -> None:
    """Compare methods at the same budgets: one long chain, votes, trees of clones. The same command again goes on.

    Example: ramet eval craft:hard --model runs/my-run --methods single,vote@8,clones --budgets 1000,4000 -n 200
    """
    from ramet.cli import eval_commands

    flags = {
        "engine.model": model,
        "engine.base_url": base_url,
        "methods": methods and methods.replace(" ", "").split(","),
        "budgets": None if budgets is None else _numbers(budgets, flag="--budgets"),
        "num_tasks": number,
        "dialect": dialect,
        "temperature": temperature,
        "seed": seed,
        "budget.window": window,
        "show_budget": show_budget,
        "trained": trained,
        "taskset.data": data,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    eval_commands.evaluate(words or [], flags=given, file=config, api_key=api_key, runs=runs, into=into, as_json=json)


def _numbers(text: str, *, flag: str) -> list[int]:
    words = text.replace(" ", "").split(",")
    if not all(word.isdecimal() for word in words):
        raise ConfigError(f"{flag} is whole numbers with commas between, like 1000,2000; got {text!r}")
    return [int(word) for word in words]
