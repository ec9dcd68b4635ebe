"""The command that serves: settings, engine, what is printed at the start."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from ramet.config import load
from ramet.engine.open import OpenedEngine, clone_config, closing, open_clone_engine, open_engine
from ramet.serve.server import Served, banner, print_line, read_access, serve
from ramet.serve.settings import ServeConfig
from ramet.terminal.trees import check_engines

# Read when pyarrow is imported, with the first tree. Its own allocator keeps tens of megabytes of tables that are gone.
ARROW_POOL = "ARROW_DEFAULT_MEMORY_POOL"


def run_server(
    *,
    file: Path | None,
    words: Sequence[str],
    flags: Mapping[str, Any],
    api_key: str | None,
    runs: Path,
    quiet: bool,
) -> None:
    """Serve until a signal. Everything that can be wrong with the settings is found before a model is loaded."""
    os.environ.setdefault(ARROW_POOL, "system")
    config = load(ServeConfig, file=file, words=words, flags=flags)
    clone_config(config.engine, config.clone)
    read_access(config)
    engine = open_engine(config.engine, api_key=api_key)
    clones = open_clone_engine(config.engine, config.clone, api_key=api_key)
    anyio.run(partial(_serve, config, engine, clones, runs=runs, quiet=quiet))


async def _serve(
    config: ServeConfig, engine: OpenedEngine, clones: OpenedEngine | None, *, runs: Path, quiet: bool
) -> None:
    say = None if quiet else print_line
    async with closing(engine, clones):
        config = await check_engines(config, engine, clones)  # before clients can connect
        await serve(config, engine, clone_engine=clones, runs=runs, say=say, on_start=_announce)


def _announce(served: Served) -> None:
    for line in banner(served):
        print_line(line)
