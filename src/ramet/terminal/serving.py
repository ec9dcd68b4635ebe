"""The command that serves: settings, engine, what is printed at the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from ramet.config import load
from ramet.engine.http import HttpEngine
from ramet.engine.open import OpenedEngine, closing, open_engine
from ramet.engine.probing import choose_dialect
from ramet.errors import ConfigError
from ramet.serve.server import Served, banner, print_line, read_access, serve
from ramet.serve.settings import ServeConfig


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
    config = load(ServeConfig, file=file, words=words, flags=flags)
    if not config.engine.model:
        raise ConfigError("which model? give --model NAME (the server's /v1/models lists them), a folder, or smollm2")
    read_access(config)
    engine = open_engine(config.engine, api_key=api_key)
    anyio.run(partial(_serve, config, engine, runs=runs, quiet=quiet))


async def _serve(config: ServeConfig, engine: OpenedEngine, *, runs: Path, quiet: bool) -> None:
    async with closing(engine):
        if isinstance(engine, HttpEngine):
            await engine.check()  # before clients can connect
        config = replace(config, dialect=await choose_dialect(config.dialect, [engine]))
        await serve(config, engine, runs=runs, say=None if quiet else print_line, on_start=_announce)


def _announce(served: Served) -> None:
    for line in banner(served):
        print_line(line)
