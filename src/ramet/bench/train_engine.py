"""An engine with the turns of demonstrations, for a model that cannot act yet.

The model computes as many tokens as the turn has, with all that belongs to it: batches, cache, log-probs. Then their
ids are replaced by those of the turn. So trees have the shape of a task's demonstrations, whatever the weights. Some
turns are cut short, which is a mistake: otherwise all trees of a task would be equal, and there would be nothing to
learn.
"""

# pyright: standard

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio

from ramet.engine.local import LocalEngine
from ramet.engine.local.scheduler import Stats
from ramet.errors import RametError
from ramet.interfaces import Taskset
from ramet.tasks.play import demonstrate
from ramet.tokens.render import TokenRenderer
from ramet.train.collect import Attempt
from ramet.train.settings import TrainConfig
from ramet.types import Completion, Meter, Prompt

MISTAKES = 0.1  # share of turns that are cut short
Turns = Mapping[str, Sequence[tuple[int, ...]]]  # ids of each turn, by goal


def demonstrated_turns(
    taskset: Taskset, attempts: Iterable[Attempt], config: TrainConfig, renderer: TokenRenderer
) -> Turns:
    """The turns of the oracle for all goals that occur in its trees on these tasks."""
    turns: dict[str, list[tuple[int, ...]]] = {}

    async def play_all() -> None:
        for attempt in {attempt.task.id: attempt for attempt in attempts}.values():
            tree = await demonstrate(
                taskset,
                attempt.task,
                dialect=config.dialect,
                budget=attempt.budget,
                renderer=renderer,
                show_budget=config.show_budget,
                allow_impossible=config.allow_impossible,
                instructions=config.instructions,
                delegate_instructions=config.delegate_instructions,
            )
            for node in tree.nodes:
                turns.setdefault(node.goal, [piece.token_ids for piece in node.pieces if piece.sampled])

    anyio.run(play_all)
    return turns


class DemonstratedEngine:
    """A local engine whose completions are the turns of demonstrations."""

    def __init__(self, inner: LocalEngine, turns: Turns, renderer: TokenRenderer) -> None:
        self.inner = inner
        self.renderer = renderer
        self.window = inner.window
        self._turns = turns
        self._end = () if renderer.end_of_turn is None else (renderer.end_of_turn,)

    @property
    def stats(self) -> Stats:
        return self.inner.stats

    def ended(self, node_id: str) -> None:
        self.inner.ended(node_id)

    async def sample(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        temperature: float = 1.0,
        seed: int | None = None,
        meter: Meter | None = None,
    ) -> Completion:
        del stop
        ids = self._ids(prompt, max_tokens, seed)
        made = await self.inner.sample(
            prompt, max_tokens=len(ids), temperature=temperature, seed=seed, meter=meter, stop_tokens=()
        )
        made = _with_ids(made, ids)
        return replace(made, text=self.renderer.decode(made.token_ids))

    def submit(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        stop: Sequence[str],
        on_end: Callable[[Completion | RametError], None],
        seed: int | None,
        **given: Any,
    ) -> Callable[[], None]:
        del stop
        ids = self._ids(prompt, max_tokens, seed)

        def end(result: Completion | RametError) -> None:
            on_end(_with_ids(result, ids) if isinstance(result, Completion) else result)

        return self.inner.submit(prompt, max_tokens=len(ids), stop=(), seed=seed, on_end=end, stop_tokens=(), **given)

    def _ids(self, prompt: Prompt, max_tokens: int, seed: int | None) -> tuple[int, ...]:
        """The node's turn, or the last one of its goal; cut short now and then, by the seed of the call."""
        turns = self._turns.get(prompt.goal) or [self._end]
        ids = turns[-1 if prompt.closing else min(prompt.turn, len(turns) - 1)] or self._end
        dice = random.Random(seed)
        if dice.random() < MISTAKES:
            ids = ids[: dice.randint(1, len(ids))]
        return ids[:max_tokens]


def _with_ids(made: Completion, ids: tuple[int, ...]) -> Completion:
    return replace(made, token_ids=ids[: made.num_tokens], finish="stop")
