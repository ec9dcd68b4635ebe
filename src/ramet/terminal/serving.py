"""The command that serves: settings, engine, what is printed at the start."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from ramet.config import load, merge_settings, names_server
from ramet.draw import one_line
from ramet.engine.open import OpenedEngine, clone_config, closing, open_clone_engine, open_engine
from ramet.evaluate.model import not_overridden
from ramet.serve.server import Served, banner, print_line, read_access, serve
from ramet.serve.settings import ServeConfig
from ramet.tasks.trained import FoundModel, find_named_model, run_of, trained_window
from ramet.terminal.evaluation import LONGEST
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
    config, taken_over = resolve_serve(file=file, words=words, flags=flags)
    clone_config(config.engine, config.clone)
    read_access(config)
    engine = open_engine(config.engine, api_key=api_key)
    clones = open_clone_engine(config.engine, config.clone, api_key=api_key)
    announce = partial(_announce, taken_over)
    anyio.run(partial(_serve, config, engine, clones, runs=runs, quiet=quiet, announce=announce))


def resolve_serve(
    *, file: Path | None = None, words: Sequence[str] = (), flags: Mapping[str, Any]
) -> tuple[ServeConfig, list[str]]:
    """The settings of a server, and those of them that come from the training of its model, as words.

    The file, the words and the flags override what a model was trained with.
    """
    given = load(ServeConfig, file=file, words=words, flags=flags)
    own = merge_settings(file=file, words=words, flags=flags)
    if not given.engine.model:
        return given, []
    found = find_named_model(given.engine.model, on_server=names_server(own))
    base = _of_training(found)
    named = {"name": run_of(Path(found.name)).name} if base else {}
    config = load(ServeConfig, file=file, words=words, flags={**flags, "engine.model": found.name}, base=base | named)
    return config, list(not_overridden(base, own))


def _of_training(found: FoundModel) -> dict[str, Any]:
    """Settings of the training that a server has too. The options of its taskset do not apply to other questions."""
    if not found.settings:
        return {}
    shared = {key: value for key, value in found.settings.items() if key in ServeConfig.__dataclass_fields__}
    window = trained_window(found.name)
    return shared | {"budget": ({} if window is None else {"window": window}) | shared.get("budget", {})}


async def _serve(
    config: ServeConfig,
    engine: OpenedEngine,
    clones: OpenedEngine | None,
    *,
    runs: Path,
    quiet: bool,
    announce: Callable[[Served], None],
) -> None:
    say = None if quiet else print_line
    async with closing(engine, clones):
        config = await check_engines(config, engine, clones, explain=True)  # before clients can connect
        await serve(config, engine, clone_engine=clones, runs=runs, say=say, on_start=announce)


def _announce(taken_over: Sequence[str], served: Served) -> None:
    for line in banner(served):
        print_line(line)
    if taken_over:
        print_line(one_line(f"from the training: {' '.join(taken_over)}", LONGEST))
