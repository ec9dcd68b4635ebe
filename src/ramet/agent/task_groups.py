"""A task group that raises errors of ramet as themselves, so that they can be caught by their class."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import cast

import anyio
from anyio.abc import TaskGroup

from ramet.errors import RametError


@asynccontextmanager
async def task_group() -> AsyncGenerator[TaskGroup]:
    """A task group. The first `RametError` ends all of its tasks and is raised as it is, not in an exception group.

    If a task raises an error of another kind, all errors are in an exception group, as anyio raises it.
    """
    first: RametError | None = None
    try:
        async with anyio.create_task_group() as group:
            yield group
    except BaseExceptionGroup as raised:
        errors = list(_leaves(raised))
        own = [error for error in errors if isinstance(error, RametError)]
        ended = [error for error in errors if isinstance(error, anyio.get_cancelled_exc_class())]
        if not own or len(own) + len(ended) < len(errors):
            raise
        first = own[0]
    if first is not None:  # outside of the handler, which would become its context
        raise first


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The errors in a group and in the groups within it, in order."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(cast(BaseExceptionGroup[BaseException], error))
        else:
            yield error
