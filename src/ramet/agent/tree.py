"""A tree: one root, everything its nodes share, and the public `run`."""

from __future__ import annotations

import asyncio
import hashlib
import math
import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import lru_cache
from typing import Any

import anyio
import sniffio

from ramet.agent.dialects import make_dialect
from ramet.agent.node import NodeRun
from ramet.agent.wording import WHY, cut
from ramet.budget import Budget
from ramet.errors import ConfigError, EngineError
from ramet.interfaces import Caching, Dialect, Engine, HostFunction, Left, Watcher, World
from ramet.types import Completion, Meter, Node, Piece, Prompt, Stop, Task, Tree

SMALLEST_SHARE = 0.001  # of a text: less of it says nothing


class TaskWorld:
    """A world with nothing in it but the task's texts."""

    def __init__(self, task: Task) -> None:
        self.context: Mapping[str, str] = task.context
        self.functions: Mapping[str, HostFunction] = {}


class TreeRun:
    """One tree being run. `tree` can be looked at any time; after a cancellation it holds what there is.

    Example:
        run = TreeRun("What is 2 + 2?", engine=engine, budget=Budget())
        await run.run()
        run.tree.answer
    """

    def __init__(
        self,
        task: Task | str,
        *,
        engine: Engine,
        budget: Budget | None = None,
        dialect: Dialect | str = "tools",
        world: World | None = None,
        temperature: float = 1.0,
        seed: int | None = None,
        show_budget: bool = False,
    ) -> None:
        if not 0 <= temperature < math.inf:
            raise ConfigError(f"temperature is a number from 0 up; got {temperature!r}")
        task = Task(question=task) if isinstance(task, str) else task
        self.engine = engine
        self.budget = budget or Budget()
        self.dialect = make_dialect(dialect) if isinstance(dialect, str) else dialect
        self.world: World = world or TaskWorld(task)
        self.show_budget = show_budget
        self.tree = Tree(id=uuid.uuid4().hex[:12], task=task, budget=self.budget, dialect=self.dialect.name)
        self.ledger = self.budget.ledger()
        self._temperature = temperature
        self._seed = seed
        self._began: float | None = None
        self.clock: Callable[[], float] = anyio.current_time
        self._systems: dict[tuple[bool, bool], str] = {}
        self.watcher = self.world if isinstance(self.world, Watcher) else None
        self.cache = engine if isinstance(engine, Caching) else None
        self.closing_size = self._closing_size()
        self.root = self._make_root()

    async def run(self) -> Tree:
        """Run to the end. An engine that fails the root raises `EngineError`, with the tree attached."""
        async with AsyncExitStack() as stack:
            if hasattr(self.dialect, "__aenter__"):
                opened: Any = self.dialect
                await stack.enter_async_context(opened)
            self.clock = _clock()
            self._began = self.clock()
            if self.budget.seconds is not None:
                self.root.deadline = self._began + self.budget.seconds
            try:
                await self.root.run()
            finally:
                self.tree.seconds = self.now()
        if self.ledger.open:
            raise AssertionError(f"{self.ledger.open} loans were never settled")
        if self.tree.root.stop is Stop.ERROR:
            error = EngineError(self.tree.root.error or "the engine failed")
            error.tree = self.tree
            raise error
        return self.tree

    def _make_root(self) -> NodeRun:
        """The root, with its window filled. A task that does not fit is refused here, before anything runs."""
        budget = self.budget
        root = self._open_root(self.world.context)
        if root.reads_texts and _missing(root) > 0:
            root = self._shortened(root)
        node = root.node
        needed = root.limits.smallest_window(root.transcript.size)
        if needed > budget.window:
            bound = "" if self.engine.renderer.exact else " (an upper bound: give a tokenizer for the exact number)"
            raise ConfigError(
                f"the task needs a window of {needed:,} tokens{bound}; budget.window is {budget.window:,}"
            )
        if self.ledger.money is not None and self.ledger.money < root.limits.smallest_money(root.transcript.size):
            raise ConfigError(f"budget.money of ${budget.money:g} does not pay for one turn and an answer")
        self.tree.nodes.append(node)
        if self.watcher is not None:
            self.watcher.spawned(node)
        return root

    def _open_root(self, context: Mapping[str, str]) -> NodeRun:
        node = Node(index=0, parent=None, depth=0, path=(), goal=self.tree.task.question, grant=self.budget.tokens)
        root = NodeRun(self, node, self.ledger, deadline=math.inf, context=context)
        root.open()
        return root

    def _shortened(self, root: NodeRun) -> NodeRun:
        """A root that has to read texts itself, which its window does not hold: it gets as much of each as fits."""
        context = root.context
        bare = self._open_root(dict.fromkeys(context, ""))
        texts = root.transcript.size - bare.transcript.size
        share = -_missing(bare) / texts if texts else 0.0
        while share > SMALLEST_SHARE:
            shorter = self._open_root(
                {key: cut(text, int(share * len(text.encode()))) for key, text in context.items()}
            )
            if _missing(shorter) <= 0:
                return shorter
            share *= 0.9
        return root

    # What nodes share.

    async def sample(self, prompt: Prompt, *, max_tokens: int, seed: int | None, meter: Meter) -> Completion:
        return await self.engine.sample(
            prompt,
            max_tokens=max_tokens,
            stop=self.dialect.stop,
            temperature=self._temperature,
            seed=seed,
            meter=meter,
        )

    def now(self) -> float:
        """Seconds since the tree began."""
        return 0.0 if self._began is None else self.clock() - self._began

    def system(self, *, child: bool, depth: int) -> str:
        """The system prompt: the same text, and so the same cached prefix, for all nodes alike."""
        may_delegate = depth > 0
        key = (child, may_delegate)
        if key not in self._systems:
            self._systems[key] = self.dialect.system(
                functions=self.world.functions, may_delegate=may_delegate, child=child
            )
        return self._systems[key]

    def left(self, run: NodeRun) -> str:
        """What a node may still spend, in its dialect's words."""
        ledger, budget = run.ledger, self.budget
        seconds = run.deadline - self.clock() if self._began is not None else budget.seconds or math.inf
        return self.dialect.left(
            Left(
                tokens=ledger.tokens,
                turns=budget.turns - len(run.node.turns),
                clones=ledger.nodes,
                levels=ledger.depth,
                seconds=max(0.0, seconds) if seconds < math.inf else None,
            )
        )

    def seed_for(self, path: tuple[int, ...], turn: int) -> int | None:
        """A seed that depends on the place in the tree, not on which sibling came first."""
        if self._seed is None:
            return None
        digest = hashlib.blake2b(repr((self._seed, path, turn)).encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1

    def _closing_size(self) -> int:
        """Room that the call for a final answer takes at most, in tokens."""
        renderer = self.engine.renderer
        before = Piece(sampled=True, text="")  # without an end-of-turn token: the longer case
        words = [self.dialect.closing(why) for why in WHY]
        if self.show_budget:
            most = self.dialect.left(Left(tokens=1_000_000, turns=100, clones=10_000, levels=100, seconds=1.0))
            words = [f"{most}\n\n{text}" for text in words]
        return _largest(renderer, before, tuple(words))


def _missing(run: NodeRun) -> int:
    """Tokens by which a node's window is too small for what it starts from; below zero, what is to spare."""
    return run.limits.smallest_window(run.transcript.size) - run.tree.budget.window


def _clock() -> Callable[[], float]:
    """The event loop's clock, found once: nodes look at it often."""
    if sniffio.current_async_library() == "asyncio":
        return asyncio.get_running_loop().time
    return anyio.current_time


@lru_cache(maxsize=64)
def _largest(renderer: Any, before: Piece, words: tuple[str, ...]) -> int:
    return max(renderer.size(renderer.reply(text, after=before)) for text in words)


async def run(
    task: Task | str,
    *,
    engine: Engine,
    budget: Budget | None = None,
    dialect: Dialect | str = "tools",
    world: World | None = None,
    temperature: float = 1.0,
    seed: int | None = None,
    show_budget: bool = False,
) -> Tree:
    """Run a tree of clones on a task, within a budget that holds.

    Example:
        tree = await ramet.run("What is 2 + 2?", engine=engine, budget=ramet.Budget(tokens=4000, nodes=16, depth=3))
        print(tree.answer)
    """
    tree_run = TreeRun(
        task,
        engine=engine,
        budget=budget,
        dialect=dialect,
        world=world,
        temperature=temperature,
        seed=seed,
        show_budget=show_budget,
    )
    return await tree_run.run()
