"""`ramet run`, `ramet show` and `ramet sql`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ramet.cli.options import (
    INPUT,
    ApiKey,
    BaseUrl,
    CloneModel,
    ConfigFile,
    DataPath,
    Depth,
    DialectName,
    EngineKind,
    Json,
    ModelName,
    Nodes,
    Provider,
    RunPath,
    Runs,
    Seconds,
    Seed,
    ShowBudget,
    Temperature,
    Tokenizer,
    Tokens,
    clone_settings,
)
from ramet.cli.view import View, viewing

STDIN = "-"  # as a word: standard input
MAX_SYSTEM = 2**20  # bytes of --system


def run(
    question: Annotated[
        str | None,
        typer.Argument(
            metavar="QUESTION",
            help="A question, or a task as NAME:SPLIT/INDEX, like craft:hard/17. - reads it from standard input.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="- | KEY=VALUE",
            help="- adds standard input as a text. KEY=VALUE is any other setting, like budget.turns=4 or "
            "taskset.digits=2.",
        ),
    ] = None,
    context: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=INPUT,
            metavar="FILE",
            help="A text that the model may read and hand to clones. Can be repeated.",
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=INPUT, metavar="FILE", help="A text that is added to the system prompt of every node."
        ),
    ] = None,
    functions: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=INPUT, metavar="FILE[:NAME]", help="Python functions, or a World, that the model may call."
        ),
    ] = None,
    mcp: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=INPUT,
            metavar="COMMAND|URL",
            help="An MCP server whose tools the model may call. Can be repeated.",
        ),
    ] = None,
    questions: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=INPUT,
            metavar="FILE",
            help="Many questions instead of one: a line or a JSON object each. Can be resumed.",
        ),
    ] = None,
    config: ConfigFile = None,
    engine: EngineKind = None,
    base_url: BaseUrl = None,
    model: ModelName = None,
    provider: Provider = None,
    clone_model: CloneModel = None,
    api_key: ApiKey = None,
    tokenizer: Tokenizer = None,
    tokens: Tokens = None,
    nodes: Nodes = None,
    depth: Depth = None,
    seconds: Seconds = None,
    dialect: DialectName = None,
    temperature: Temperature = None,
    seed: Seed = None,
    show_budget: ShowBudget = None,
    data: DataPath = None,
    runs: Runs = Path("runs"),
    view: View = False,
    json: Json = False,
) -> None:
    """Answer QUESTION with a tree of clones within a hard budget, and show the tree while it runs.

    Example: ramet run "Compare Rome and Oslo" --model my-model --tokens 4000 --nodes 16 --depth 3 --seconds 60

    Without a server: ramet run "What is the capital of France?" --model smollm2

    With texts: cat report.txt | ramet run "What changed?" - --context last-year.txt --model my-model

    The exit code is 0 with an answer, 1 without one, 2 for a mistake in the command.
    """
    from ramet.tasks.question import resolve_run
    from ramet.terminal.questions import run_questions
    from ramet.terminal.trees import run_question

    words = list(settings or [])
    if questions is not None and question is not None:
        words, question = [question, *words], None  # without a question the first word is a setting
    _refuse_stray(words, is_question=questions is None)
    texts = [*(context or []), *(word for word in words if word == STDIN)]

    flags = {
        "engine.kind": engine,
        "engine.provider": provider,
        "engine.base_url": base_url,
        **clone_settings(clone_model),
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
        "context": texts or None,
        "functions": functions or None,
        "mcp": mcp or None,
        "instructions": None if system is None else _read_system(system),
    }
    given = {key: value for key, value in flags.items() if value is not None}
    source: dict[str, Any] = {"file": config, "words": [word for word in words if word != STDIN], "flags": given}
    if questions is not None:
        with viewing(view, runs):
            answered = run_questions(questions, source, api_key=api_key, runs=runs, as_json=json)
    else:
        plan = resolve_run(**source, stdin=sys.stdin.buffer)
        with viewing(view, runs):
            answered = run_question(plan, api_key=api_key, runs=runs, as_json=json)
    if not answered:
        raise typer.Exit(1)


def _refuse_stray(words: list[str], *, is_question: bool) -> None:
    """Refuse words that are no settings: usually the rest of a question without quotes."""
    from ramet.errors import ConfigError

    stray = next((word for word in words if "=" not in word and word != STDIN and not Path(word).is_file()), None)
    if stray is not None:
        hint = "and a question in quotes" if is_question else "and no question beside --questions"
        raise ConfigError(f"{stray!r} is not a setting: write key=value, like budget.tokens=2000, {hint}")


def _read_system(file: str) -> str:
    from ramet.inputs.texts import read_text

    return read_text(file, limit=MAX_SYSTEM, stdin=sys.stdin.buffer).strip()


def show(
    run: RunPath,
    tree: Annotated[str | None, typer.Option(help="Only trees whose id starts with this.")] = None,
    node: Annotated[int | None, typer.Option(help="Print every message of this node instead.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write this file instead: a moving picture of the tree.")] = None,
    json: Json = False,
) -> None:
    """Draw the trees of a RUN directory, or print every message of one node."""
    from ramet.terminal.trees import save_moving_tree, show_node, show_trees

    if svg is not None:
        save_moving_tree(run, svg, tree_id=tree)
    elif node is None:
        show_trees(run, tree_id=tree, as_json=json)
    else:
        show_node(run, node, tree_id=tree, as_json=json)


def sql(
    run: RunPath, query: Annotated[str, typer.Argument(metavar="QUERY", help="SQL for DuckDB.")], json: Json = False
) -> None:
    """Query a RUN directory with SQL. Tables: nodes, trees, metrics; records in an evaluation; credit in a training.

    Example: ramet sql runs/my-run "select depth, count(*), avg(tokens) from nodes group by depth"
    """
    from ramet.terminal.query import print_query

    print_query(run, query, as_json=json)
