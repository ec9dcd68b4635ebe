"""`ramet backend serve` and `ramet backend check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ramet.cli.options import Json

app = typer.Typer(help="Servers that sample and train for `ramet train backend.kind=tinker`.", no_args_is_help=True)


@app.command("serve")
def serve(
    model: Annotated[str, typer.Argument(help="A Hugging Face folder, smollm2 or nano.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings of SkyRL's JAX backend, like tensor_parallel_size=2."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 8123,
    folder: Annotated[
        Path, typer.Option(help="Folder for the database, the checkpoints and the log; used again by a later server.")
    ] = Path("runs/tinker-server"),
    install: Annotated[
        bool, typer.Option("--install", help="Make the environment of the server if there is none, and keep it.")
    ] = False,
    python: Annotated[
        Path | None, typer.Option(help="Python of an environment that has skyrl 0.3.0 with its extras tinker and jax.")
    ] = None,
    rank: Annotated[int, typer.Option(min=1, help="Largest LoRA rank.")] = 32,
    adapters: Annotated[int, typer.Option(min=2, help="Adapters at a time; one is the base model.")] = 8,
    session_timeout_s: Annotated[
        int, typer.Option(min=1, help="An adapter is dropped when its client has been silent for so many seconds.")
    ] = 300,
    ready_s: Annotated[float, typer.Option(min=1, help="Most seconds until the server answers.")] = 600.0,
) -> None:
    """Start a SkyRL server (JAX) with MODEL on this machine, on loopback, and keep it until Ctrl-C.

    Example: ramet backend serve nano --install
    """
    from ramet.terminal.backend_serve import serve as serve_model

    serve_model(
        model,
        port=port,
        folder=folder,
        python=python,
        install=install,
        rank=rank,
        adapters=adapters,
        session_timeout_s=session_timeout_s,
        ready_s=ready_s,
        words=settings or [],
    )


@app.command("check")
def check(
    url: Annotated[str, typer.Argument(help="Address of the server, like http://127.0.0.1:8123.")],
    model: Annotated[str | None, typer.Option(help="Base model to try; the server's only one by default.")] = None,
    timeout_s: Annotated[float, typer.Option(min=1, help="Most seconds for the whole check.")] = 600.0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Train nothing: report server, models and client, and what is left out.")
    ] = False,
    json: Json = False,
) -> None:
    """Report what a Tinker server is, what it can do and which settings it ignores.

    Trains an adapter for a few steps and unloads it. The API key is read from TINKER_API_KEY.
    """
    from ramet.terminal.backend_check import check_server

    check_server(url, model=model, timeout_s=timeout_s, as_json=json, quick=quick)
