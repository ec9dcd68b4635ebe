"""Trees of the next steps, collected while this one is learnt from.

At most `ahead` steps are under way beside the one that is learnt. So a tree that is learnt from began at most that many
versions of the weights ago, whoever is slow: what comes too early is not begun, and nothing has to be thrown away for
being too old, which would favour short trees. Groups are never torn apart: a step is learnt from when it is whole.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import anyio

from ramet.errors import RametError
from ramet.types import Tree

Collect = Callable[[int], Awaitable[list[Tree]]]  # the trees of a step


@asynccontextmanager
async def collecting(collect: Collect, steps: range, *, ahead: int) -> AsyncGenerator[Collect]:
    """A `collect` that begins with the next steps too. It has to be asked for one step after the other."""
    if not ahead:
        yield collect
        return
    begun = 0
    done: dict[int, anyio.Event] = {}
    found: dict[int, list[Tree]] = {}
    failed: list[RametError] = []

    async def one(step: int) -> None:
        try:
            found[step] = await collect(step)
        except RametError as error:  # told to whoever asks for this step, as itself
            failed.append(error)
        done[step].set()

    async def ask(step: int) -> list[Tree]:
        nonlocal begun
        for number in range(steps.start + begun, min(step + ahead + 1, steps.stop)):
            done[number] = anyio.Event()
            group.start_soon(partial(one, number))
            begun += 1
        await done[step].wait()
        if step not in found:
            raise failed[0]
        return found.pop(step)

    caught: RametError | None = None
    async with anyio.create_task_group() as group:
        try:
            yield ask
        except RametError as error:  # not inside a group of others
            caught = error
        group.cancel_scope.cancel()
    if caught is not None:
        raise caught


def ages(trees: Sequence[Tree], version: int) -> list[int]:
    """How many versions of the weights ago the oldest token of each tree was sampled."""
    versions = [
        [piece.policy_version or 0 for node in tree.nodes for piece in node.pieces if piece.sampled] for tree in trees
    ]
    return [version - min(one, default=version) for one in versions]
