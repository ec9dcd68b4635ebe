"""Engine calls without a task that waits for each: those of other processes come by the hundred."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import anyio
from anyio.abc import TaskGroup

from ramet.errors import RametError
from ramet.interfaces import Caching, Engine
from ramet.types import Completion, Meter, Prompt

OnEnd = Callable[[Completion | RametError], None]


@runtime_checkable
class Submitting(Protocol):
    """An engine that takes calls and reports their end.

    `on_end` is called in the event loop that submitted the call, unless the function that is returned has cancelled it.
    Completions have ids; they may have no text.
    """

    def submit(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        stop: Sequence[str],
        temperature: float,
        seed: int | None,
        meter: Meter,
        on_end: OnEnd,
    ) -> Callable[[], None]: ...


class EngineTasks:
    """Any engine as one that calls can be submitted to: each is a task of a group."""

    def __init__(self, engine: Engine, group: TaskGroup) -> None:
        self._engine = engine
        self._group = group
        self._caching = engine if isinstance(engine, Caching) else None

    def submit(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        stop: Sequence[str],
        temperature: float,
        seed: int | None,
        meter: Meter,
        on_end: OnEnd,
    ) -> Callable[[], None]:
        scope = anyio.CancelScope()
        sample = partial(self._engine.sample, prompt, max_tokens=max_tokens, stop=stop)

        async def run() -> None:
            with scope:
                try:
                    result = await sample(temperature=temperature, seed=seed, meter=meter)
                except RametError as error:
                    result = error
                on_end(result)

        self._group.start_soon(run)
        return scope.cancel

    def ended(self, node_id: str) -> None:
        if self._caching is not None:
            self._caching.ended(node_id)
