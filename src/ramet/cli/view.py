"""`ramet view`, and the `--view` of other commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ramet.cli.options import ApiKey
from ramet.draw import counted
from ramet.errors import StoreError
from ramet.types import printable

View = Annotated[bool, typer.Option("--view", help="Follow it in the browser; the page stays until Ctrl-C.")]


def view(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Run directories, or folders of them (default: runs)."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 is a free one.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the address, and open no browser.")] = False,
    tree: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Open this tree, by its id or the beginning of it; with --export, repeat it."),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the trees named by --tree as one HTML file, and end.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model that forks are sampled from: a folder, smollm2, or a name on the server.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Address of the server of --model; a server with one model needs no --model.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder with tokenizer.json, .gguf file or smollm2, for forks over HTTP.")
    ] = None,
    api_key: ApiKey = None,
) -> None:
    """Show runs in the browser: training curves, evaluations and trees, also while they are written.

    The page is on this machine only, and its address has a random token.

    Example: ramet view runs/my-run

    One file to mail: ramet view runs/my-run --tree 5f1c --export tree.html
    """
    from ramet.view.server import check_packages

    folders = runs or [Path("runs")]
    if export is not None:
        return _export(folders, tree or [], export)
    check_packages()
    from ramet.view import start

    settings = {"engine.model": model, "engine.base_url": base_url, "engine.tokenizer": tokenizer}
    given = {key: value for key, value in settings.items() if value is not None}
    with start(folders, port=port, fork_settings=given, api_key=api_key) as viewer:
        address = viewer.url
        if tree:
            from ramet.view.export import find_tree

            address = viewer.link(*find_tree(viewer.api, tree[0]))
        elif len(viewer.api.catalog.runs()) == 1:
            address = viewer.link(next(iter(viewer.api.catalog.runs())))
        _announce(address, open_browser=not no_open)
        _wait()
    return None


@contextmanager
def viewing(wanted: bool, runs: Path, *, stay: bool = True) -> Generator[None]:
    """Serve the page over a folder of runs, or one run, while a command works and, if it is to stay, until Ctrl-C.

    Over a folder the page opens the run that begins next; a run that is resumed is opened itself.
    """
    if not wanted:
        yield
        return
    from ramet.view import start

    try:
        runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write to {runs}: {error.strerror}") from None
    with start([runs]) as viewer:
        own = [name for name, path in viewer.api.catalog.runs().items() if path == runs.resolve()]
        _announce(viewer.link(own[0]) if own else viewer.url + "#/newest", open_browser=True)
        yield
        if stay:
            typer.echo("The page stays open; Ctrl-C ends it.", err=True)
            _wait()


def _announce(address: str, *, open_browser: bool) -> None:
    """Print the address to standard error: standard output may be JSON."""
    import webbrowser

    typer.echo(printable(address), err=True)
    if open_browser and _has_screen():
        webbrowser.open(address)


def _has_screen() -> bool:
    """Whether there is a desktop. Elsewhere a browser would be one for the terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _wait() -> None:
    import time

    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return


def _export(runs: list[Path], trees: list[str], file: Path) -> None:
    from ramet.store.atomic import write_text
    from ramet.view.export import export

    page = export(runs, trees)
    try:
        write_text(file, page)
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror}") from None
    written = counted(max(1, len(trees)), "tree")
    typer.echo(f"{printable(str(file))}: {written}, {len(page) / 1e6:.1f} MB")
