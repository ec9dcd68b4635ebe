"""`ramet eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramet.cli.options import BUDGET, MODEL, ApiKey, ConfigFile, DataPath, Json, Provider, Runs, ShowBudget, Temperature
from ramet.errors import ConfigError


def evaluate(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME:SPLIT | KEY=VALUE",
            help="Tasks, like craft:hard or my_tasks.py:Mine, or a pinned suite, suite:delegation-1; and any other "
            "setting, like budget.nodes=8.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=MODEL,
            help="A run directory of train or warmstart, a model folder, smollm2, or a name on a server (default: the "
            "server's only one).",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods to compare: single, vote@K, best@K, split@K, chain, clones, clones/DEPTH "
            "(default: single,clones)."
        ),
    ] = None,
    budgets: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=BUDGET, help="Generated tokens per item, like 1000,2000 (default: what each task declares)."
        ),
    ] = None,
    number: Annotated[
        int | None, typer.Option("-n", metavar="N", min=1, help="Tasks of each split (default: 100).")
    ] = None,
    config: ConfigFile = None,
    provider: Provider = None,
    base_url: Annotated[str | None, typer.Option(rich_help_panel=MODEL, help="Address of the server.")] = None,
    api_key: ApiKey = None,
    dialect: Annotated[
        str | None, typer.Option(rich_help_panel=MODEL, help="Format of the model's actions (default: tools).")
    ] = None,
    temperature: Temperature = None,
    seed: Annotated[int | None, typer.Option(rich_help_panel=MODEL, help="Random seed (default: 0).")] = None,
    window: Annotated[
        int | None, typer.Option(rich_help_panel=MODEL, help="Context window of every node, in tokens.")
    ] = None,
    show_budget: ShowBudget = None,
    trained: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=MODEL,
            metavar="LEAST:MOST",
            help="Sizes of the tasks that it was trained on (default: those of its run directory).",
        ),
    ] = None,
    data: DataPath = None,
    runs: Runs = Path("runs"),
    into: Annotated[Path | None, typer.Option(help="Run directory (default: one under --runs).")] = None,
    size: Annotated[str | None, typer.Option(help="Size of a pinned suite: quick or full (default: quick).")] = None,
    json: Json = False,
) -> None:
    """Compare methods under the same budgets: one long chain, votes, fixed splits, trees of clones.

    Example: ramet eval craft:hard --model runs/my-run --methods single,vote@8,clones --budgets 1000,4000 -n 200

    A pinned suite writes a card of the model: ramet eval suite:delegation-1 --model my-model --base-url http://host/v1
    (suite:compare A/card.json B/card.json compares two of them).

    Run the same command again to resume. The exit code is 1 if items failed because of the server.
    """
    from ramet.evaluate.session import resolve_eval_config, run_evaluation
    from ramet.terminal.evaluation import print_evaluation, show_progress

    flags = {
        "engine.provider": provider,
        "engine.model": model,
        "engine.base_url": base_url,
        "methods": methods and methods.replace(" ", "").split(","),
        "budgets": None if budgets is None else _parse_budgets(budgets),
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
    if words and words[0].startswith("suite:"):
        from ramet.terminal.suite import evaluate_suite

        if config is not None:
            raise ConfigError(f"{words[0]} pins its settings: leave out --config")
        return evaluate_suite(
            words, flags=given, size=size or "quick", api_key=api_key, runs=runs, into=into, as_json=json
        )
    if size is not None:
        raise ConfigError("--size is for pinned suites, like suite:delegation-1")
    resolved, found = resolve_eval_config(words or [], flags=given, file=config)
    with show_progress(as_json=json, taken_over=found.taken_over) as callbacks:
        evaluation, run = run_evaluation(resolved, found, runs=runs, into=into, api_key=api_key, **callbacks)
    print_evaluation(evaluation, run, as_json=json)
    if evaluation.failures:
        raise typer.Exit(1)
    return None


def _parse_budgets(text: str) -> list[int]:
    words = text.replace(" ", "").split(",")
    if not all(word.isdecimal() for word in words):
        raise ConfigError(f"--budgets is whole numbers separated by commas, like 1000,2000; got {text!r}")
    return [int(word) for word in words]
