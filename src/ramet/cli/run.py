"""`ramet run`, `ramet show` and `ramet sql`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramet.cli.options import ApiKey, ConfigFile, DataPath, Json, RunPath, Runs, ShowBudget, Temperature


def run(
    question: Annotated[str, typer.Argument(help="A question, or a task as NAME:SPLIT/INDEX, like craft:hard/17.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Any other setting, like budget.turns=4 or taskset.digits=2."),
    ] = None,
    config: ConfigFile = None,
    engine: Annotated[
        str | None, typer.Option(help="http: an OpenAI-compatible server. local: in this process.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Address of the server (default: http://127.0.0.1:8000/v1).")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model name on the server. smollm2, or a folder with config.json, is loaded into this process unless "
            "--engine or --base-url names a server."
        ),
    ] = None,
    api_key: ApiKey = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Folder with tokenizer.json, .gguf file or smollm2, for exact token ids over HTTP."),
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Generated tokens of the whole tree (default: 4000).")] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes in the tree, including the root (default: 16).")] = None,
    depth: Annotated[int | None, typer.Option(help="Levels below the root (default: 3).")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Wall-clock time of the whole tree (default: no limit).")
    ] = None,
    dialect: Annotated[
        str | None, typer.Option(help="Format of the model's actions: tools, python or terse (default: tools).")
    ] = None,
    temperature: Temperature = None,
    seed: Annotated[int | None, typer.Option(help="Random seed; some servers ignore it.")] = None,
    show_budget: ShowBudget = None,
    data: DataPath = None,
    runs: Runs = Path("runs"),
    json: Json = False,
) -> None:
    """Answer QUESTION with a tree of clones within a hard budget, and show the tree while it runs.

    Example: ramet run "Compare Rome and Oslo" --model my-model --tokens 4000 --nodes 16 --depth 3 --seconds 60

    Without a server: ramet run "What is the capital of France?" --model smollm2
    """
    from ramet.tasks.question import resolve_run
    from ramet.terminal.trees import run_question

    flags = {
        "engine.kind": engine,
        "engine.base_url": base_url,
        "engine.model": model,
        "engine.tokenizer": tokenizer,
        "budget.tokens": tokens,
        "budget.nodes": nodes,
        "budget.depth": depth,
        "budget.seconds": seconds,
        "dialect": dialect,
        "temperature": temperature,
        "seed": seed,
        "show_budget": show_budget,
        "question": question,
        "taskset.data": data,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    plan = resolve_run(file=config, words=settings or [], flags=given)
    run_question(plan, api_key=api_key, runs=runs, as_json=json)


def show(
    run: RunPath,
    tree: Annotated[str | None, typer.Option(help="Only trees whose id starts with this.")] = None,
    node: Annotated[int | None, typer.Option(help="Print every message of this node instead.")] = None,
    json: Json = False,
) -> None:
    """Draw the trees of a RUN directory, or print every message of one node."""
    from ramet.terminal.trees import show_node, show_trees

    if node is None:
        show_trees(run, tree_id=tree, as_json=json)
    else:
        show_node(run, node, tree_id=tree, as_json=json)


def sql(run: RunPath, query: Annotated[str, typer.Argument(help="SQL for DuckDB.")], json: Json = False) -> None:
    """Query a RUN directory with SQL. Tables: nodes, trees, metrics; records in an evaluation.

    Example: ramet sql runs/my-run "select depth, count(*), avg(tokens) from nodes group by depth"
    """
    from ramet.terminal.trees import print_query

    print_query(run, query, as_json=json)
