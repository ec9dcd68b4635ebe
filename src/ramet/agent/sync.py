"""Run a tree from code that is not async."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import sniffio

from ramet.agent.tree import run
from ramet.errors import ConfigError
from ramet.interfaces import Engine
from ramet.types import Task, Tree


def run_sync(task: Task | str, *, engine: Engine, **settings: Any) -> Tree:
    """`run` without `await`, for scripts and the interactive interpreter. It takes the same settings.

    Example:
        tree = ramet.run_sync("What is 2 + 2?", engine=engine, budget=ramet.Budget(tokens=4000))
        print(tree.answer)
    """
    try:
        sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        return anyio.run(partial(_run_and_disconnect, task, engine, settings))
    raise ConfigError("run_sync cannot be used where an event loop is running, as in notebooks: await ramet.run(...)")


async def _run_and_disconnect(task: Task | str, engine: Engine, settings: dict[str, Any]) -> Tree:
    """Connections of an engine belong to the event loop, which ends here; the engine opens new ones when needed."""
    try:
        return await run(task, engine=engine, **settings)
    finally:
        close: Any = getattr(engine, "aclose", None)
        if close is not None:
            await close()
