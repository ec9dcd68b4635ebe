"""Run a tree from code that is not async."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

import anyio
import sniffio

from ramet.agent.tree import run
from ramet.errors import ConfigError
from ramet.interfaces import Engine
from ramet.types import Task, Tree

P = ParamSpec("P")
T = TypeVar("T")


def _takes_the_same_as(function: Callable[P, Any]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Give a function the parameters of another one, for editors, type checkers and `help`."""

    def with_signature(wrapper: Callable[..., T]) -> Callable[P, T]:
        wrapper.__signature__ = inspect.signature(function)  # pyright: ignore[reportFunctionMemberAccess]
        return wrapper

    return with_signature


@_takes_the_same_as(run)
def run_sync(task: Task | str, *, engine: Engine, **settings: Any) -> Tree:
    """`ramet.run` without `await`, for scripts and the interactive interpreter. It takes the same arguments.

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
    """Connections of engines belong to the event loop, which ends here; engines open new ones when needed."""
    try:
        return await run(task, engine=engine, **settings)
    finally:
        for one in (engine, settings.get("clone_engine")):
            close: Any = getattr(one, "aclose", None)
            if close is not None:
                await close()
