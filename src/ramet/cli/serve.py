"""`ramet serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramet.cli.options import (
    ApiKey,
    BaseUrl,
    CloneModel,
    ConfigFile,
    Depth,
    DialectName,
    EngineKind,
    ModelName,
    Nodes,
    Provider,
    Runs,
    Seconds,
    Seed,
    ShowBudget,
    Temperature,
    Tokenizer,
    Tokens,
    clone_settings,
)
from ramet.cli.view import viewing


def serve(
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Any other setting, like budget.turns=4 or max_body_bytes=65536."),
    ] = None,
    config: ConfigFile = None,
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on (default: 127.0.0.1). Any but a loopback address needs --keys."),
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port (default: 8100); 0 picks a free one.")] = None,
    keys: Annotated[str | None, typer.Option(help="TOML file with API keys and their limits.")] = None,
    engine: EngineKind = None,
    base_url: BaseUrl = None,
    model: ModelName = None,
    provider: Provider = None,
    clone_model: CloneModel = None,
    name: Annotated[str | None, typer.Option(help="Model name for clients; `ramet` always works.")] = None,
    api_key: ApiKey = None,
    tokenizer: Tokenizer = None,
    tokens: Tokens = None,
    nodes: Nodes = None,
    depth: Depth = None,
    seconds: Seconds = None,
    concurrency: Annotated[int | None, typer.Option(help="Trees that run at the same time (default: 64).")] = None,
    queue: Annotated[
        int | None, typer.Option(help="Requests that may wait (default: 256); further ones get a 429.")
    ] = None,
    dialect: DialectName = None,
    temperature: Temperature = None,
    seed: Seed = None,
    show_budget: ShowBudget = None,
    runs: Runs = Path("runs"),
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not log each tree.")] = False,
    view: Annotated[bool, typer.Option("--view", help="Also show the trees in the browser.")] = False,
) -> None:
    """Serve an OpenAI-compatible API: each request is answered by a tree of clones within a hard budget.

    Example: ramet serve --model my-model --tokens 4000 --nodes 16

    curl 127.0.0.1:8100/v1/responses --json '{"model": "ramet", "input": "Hi"}'

    import openai
    client = openai.OpenAI(base_url="http://127.0.0.1:8100/v1", api_key="none")
    print(client.responses.create(model="ramet", input="Hi").output_text)

    A request can lower its budget: "model": "ramet:tokens=2000,depth=2". See docs/serve.md.
    """
    from ramet.terminal.serving import run_server

    flags = {
        "host": host,
        "port": port,
        "keys": keys,
        "name": name,
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
        "concurrency": concurrency,
        "queue": queue,
        "dialect": dialect,
        "temperature": temperature,
        "seed": seed,
        "show_budget": show_budget,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    with viewing(view, runs, stay=False):
        run_server(file=config, words=settings or [], flags=given, api_key=api_key, runs=runs, quiet=quiet)
