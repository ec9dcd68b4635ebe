"""`ramet fork`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramet.cli.options import (
    ApiKey,
    CloneModel,
    DataPath,
    EngineKind,
    Json,
    RunPath,
    Runs,
    Seed,
    Temperature,
    Tokenizer,
    clone_settings,
)


def fork(
    run: RunPath,
    node: Annotated[int, typer.Option(help="Node to fork at, as `ramet show RUN` numbers them; 0 is the root.")],
    turn: Annotated[int, typer.Option(help="Turn of the node to resample, counted from 0.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Any other setting, like engine.top_p=0.9 or judge.model=NAME."),
    ] = None,
    tree: Annotated[
        str | None, typer.Option(help="Tree id or unique prefix; not needed if the run has only one tree.")
    ] = None,
    without_delegation: Annotated[
        bool, typer.Option("--without-delegation", help="The node may not delegate from this turn on.")
    ] = False,
    without_clone: Annotated[
        int | None, typer.Option(metavar="NODE", help="Keep the turn, but do not start this clone.")
    ] = None,
    say: Annotated[str | None, typer.Option(help="Text of the turn, used instead of sampling it.")] = None,
    tell: Annotated[
        str | None, typer.Option(help="Message that the node reads before the turn, instead of the recorded one.")
    ] = None,
    engine: EngineKind = None,
    base_url: Annotated[str | None, typer.Option(help="Address of the server (default: the run's own model).")] = None,
    model: Annotated[
        str | None, typer.Option(help="Model name on the server, smollm2, or a folder (default: the run's own model).")
    ] = None,
    clone_model: CloneModel = None,
    mcp: Annotated[
        list[str] | None,
        typer.Option(metavar="COMMAND|URL", help="An MCP server of the run: commands are not stored in full."),
    ] = None,
    api_key: ApiKey = None,
    tokenizer: Tokenizer = None,
    temperature: Temperature = None,
    seed: Seed = None,
    data: DataPath = None,
    runs: Runs = Path("runs"),
    json: Json = False,
) -> None:
    """Resample one turn of a recorded tree: same prefix, new continuation. Shows both trees.

    Example: ramet fork runs/my-run --node 0 --turn 0 --without-delegation

    A turn in your own words: ramet fork runs/my-run --tree 5f1c --node 3 --turn 2 --say "Answer: 42"
    """
    from ramet.agent.recording import ForkPoint
    from ramet.tasks.forking import resolve_fork
    from ramet.terminal.forks import run_fork

    flags = {
        "engine.kind": engine,
        "engine.base_url": base_url,
        "engine.model": model,
        "engine.tokenizer": tokenizer,
        **clone_settings(clone_model),
        "mcp": mcp or None,
        "temperature": temperature,
        "seed": seed,
        "taskset.data": data,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    point = ForkPoint(
        node=node, turn=turn, without_delegation=without_delegation, without_clone=without_clone, say=say, tell=tell
    )
    plan = resolve_fork(run, tree, point, words=settings or [], flags=given)
    run_fork(plan, api_key=api_key, runs=runs, as_json=json)
