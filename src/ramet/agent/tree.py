"""A tree: its root, what its nodes share, and the public `run`."""

from __future__ import annotations

import asyncio
import hashlib
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import anyio
import sniffio

from ramet.agent.dialects import make_dialect
from ramet.agent.functions import notify
from ramet.agent.limits import Speed
from ramet.agent.node import NodeRun
from ramet.agent.options import TreeOptions
from ramet.agent.toolcalls import CallsTools
from ramet.agent.wording import CLOSING_REASON, cut, num_bytes
from ramet.budget import Budget
from ramet.config import TEMPERATURE
from ramet.errors import BudgetTooSmall, ConfigError, EngineError
from ramet.interfaces import Caching, Dialect, Engine, NodeObserver, Remaining, TaskWorld, Windowed, World
from ramet.tokens.render import Renderer
from ramet.types import Node, Piece, Stop, Task, Tree

SMALLEST_SHARE = 0.001  # of a text; less of it is useless
WORKING_ROOM = 8  # one eighth of the window is kept to work in when texts are cut


class TreeRun:
    """Runs one tree. `tree` can be read at any time; after a cancellation it holds what was done so far.

    Example:
        run = TreeRun("What is 2 + 2?", TreeOptions(engine=engine, budget=Budget()))
        await run.run()
        run.tree.answer
    """

    def __init__(self, task: Task | str, options: TreeOptions) -> None:
        task = Task(question=task) if isinstance(task, str) else task
        dialect = options.dialect
        self.options = options
        self.engine = options.engine
        self.budget = within_window(options.budget or Budget(), self.engine)
        self.dialect = make_dialect(dialect) if isinstance(dialect, str) else dialect
        # Protocols are checked once per tree: a check takes as long as many other steps of a turn.
        self.native = self.dialect if isinstance(self.dialect, CallsTools) else None
        self.world: World = TaskWorld(task) if options.world is None else options.world
        engines = [self.engine, options.clone_engine or self.engine]
        self._caching = {id(engine): engine for engine in engines if isinstance(engine, Caching)}
        if self.native is not None and any(engine.renderer.exact for engine in engines):
            raise ConfigError(
                f"dialect {self.dialect.name} needs a server that takes messages: leave out the tokenizer, or use tools"
            )
        name = dialect if isinstance(dialect, str) else dialect.name
        self.tree = Tree(id=uuid.uuid4().hex[:12], task=task, budget=self.budget, dialect=name)
        self.ledger = self.budget.ledger()
        self.clock: Callable[[], float] = anyio.current_time
        self.observer = self.world if isinstance(self.world, NodeObserver) else None
        self.watcher = options.watcher
        self._speeds: dict[int, Speed] = {}  # of all calls of an engine
        self._closing_sizes: dict[int, int] = {}  # by renderer
        self._started: float | None = None
        self._system_prompts: dict[tuple[bool, bool], str] = {}
        self._tools: dict[tuple[bool, bool], Sequence[Mapping[str, Any]]] = {}
        self.root = self._make_root()

    async def run(self) -> Tree:
        """Run to the end. When the engine fails for the root, raise `EngineError` with the tree attached."""
        async with AsyncExitStack() as stack:
            if hasattr(self.dialect, "__aenter__"):
                opened: Any = self.dialect
                await stack.enter_async_context(opened)
            self.clock = _clock()
            self._started = self.clock() - self.options.elapsed_s
            if self.budget.seconds is not None:
                self.root.deadline = self._started + self.budget.seconds
            if self.watcher is not None:
                self.watcher.started(self)
            try:
                await self.root.run()
            finally:
                self.tree.seconds = self.now()
                if self.watcher is not None:
                    self.watcher.ended(self)
        if self.ledger.open:
            raise AssertionError(f"{self.ledger.open} loans were never settled")
        if self.tree.root.stop is Stop.ERROR:
            error = EngineError(self.tree.root.error or "the engine failed", lasting=self.root.lasting_error)
            error.tree = self.tree
            raise error
        return self.tree

    def _make_root(self) -> NodeRun:
        """The root with its window filled. A task that does not fit is refused before anything runs."""
        budget = self.budget
        root = self._open_root(self.world.context)
        if root.reads_texts and _shortage(root) > 0:
            root = self._with_shortened_texts(root)
        node = root.node
        needed = root.limits.smallest_window(root.transcript.size)
        if needed > budget.window:
            bound = "" if self.engine.renderer.exact else " (an upper bound: give a tokenizer for the exact number)"
            of_model = isinstance(self.engine, Windowed) and self.engine.window == budget.window
            allowed = f"{'that of the model' if of_model else 'budget.window'} is {budget.window:,}"
            raise BudgetTooSmall(f"the task needs a window of {needed:,} tokens{bound}; {allowed}", limit="window")
        if self.ledger.money is not None and self.ledger.money < root.limits.smallest_money(root.transcript.size):
            message = f"budget.money of ${budget.money:g} does not pay for one turn and an answer"
            raise BudgetTooSmall(message, limit="money")
        self.tree.nodes.append(node)
        self.notify("spawned", node)
        return root

    def _open_root(self, context: Mapping[str, str]) -> NodeRun:
        node = Node(index=0, parent=None, depth=0, path=(), goal=self.tree.task.question, grant=self.budget.tokens)
        root = NodeRun(self, node, self.ledger, deadline=math.inf, context=context, path_tokens=self.budget.path_tokens)
        root.open()
        return root

    def _with_shortened_texts(self, root: NodeRun) -> NodeRun:
        """A root that gets the same share of each text, as much as its window holds beside room to work in."""
        context = root.context
        bare = self._open_root(dict.fromkeys(context, ""))
        texts, free = root.transcript.size - bare.transcript.size, -_shortage(bare)
        room = min(self.budget.window // WORKING_ROOM, free // 2)
        share = (free - room) / texts if texts else 0.0
        while share > SMALLEST_SHARE:
            shorter = self._open_root({key: cut(text, int(share * num_bytes(text))) for key, text in context.items()})
            if _shortage(shorter) + room <= 0:
                return shorter
            share *= 0.9
        return root

    # Shared by all nodes.

    def engine_of(self, node: Node) -> Engine:
        """The engine that samples for a node: clones may have their own."""
        return self.engine if node.parent is None else self.options.clone_engine or self.engine

    def window_of(self, node: Node) -> int:
        """The window of a node. The model of clones may have a smaller one than that of the root."""
        clones = self.options.clone_engine
        if node.parent is None or clones is None or not isinstance(clones, Windowed):
            return self.budget.window
        return min(self.budget.window, clones.window)

    def ended(self, node_id: str, engine: Engine) -> None:
        """Notify an engine that keeps a cache that a node takes no more turns."""
        caching = self._caching.get(id(engine))
        if caching is not None:
            caching.ended(node_id)

    def notify(self, event: Literal["spawned", "ended"], node: Node) -> None:
        """Notify the world, if it observes its nodes."""
        if self.observer is not None:
            notify(self.observer, event, node)

    def speed_of(self, engine: Engine) -> Speed:
        """The speed of an engine in all calls of the tree so far."""
        return self._speeds.setdefault(id(engine), Speed())

    def now(self) -> float:
        """Seconds since the tree began."""
        return 0.0 if self._started is None else self.clock() - self._started

    def system_prompt(self, *, child: bool, depth: int) -> str:
        """The system prompt: the same text, and so the same cached prefix, for all nodes of one kind."""
        may_delegate = depth > 0
        key = (child, may_delegate)
        if key not in self._system_prompts:
            own = self.dialect.system(functions=self.world.functions, may_delegate=may_delegate, child=child)
            more = (self.options.instructions, self.options.delegate_instructions if may_delegate else "")
            self._system_prompts[key] = "\n\n".join([own, *filter(None, more)]) if any(more) else own
        return self._system_prompts[key]

    def tools(self, *, child: bool, depth: int) -> Sequence[Mapping[str, Any]]:
        """What a node may call, for a dialect that uses the server's tool calling; none for others."""
        if self.native is None:
            return ()
        key = (child, depth > 0)
        if key not in self._tools:
            self._tools[key] = self.native.tools(functions=self.world.functions, may_delegate=depth > 0, child=child)
        return self._tools[key]

    def remaining(self, node_run: NodeRun) -> str:
        """What a node may still spend, as its dialect writes it."""
        ledger, budget = node_run.ledger, self.budget
        seconds = node_run.deadline - self.clock() if self._started is not None else budget.seconds or math.inf
        return self.dialect.remaining(
            Remaining(
                tokens=ledger.tokens,
                turns=budget.turns - len(node_run.node.turns),
                clones=ledger.nodes,
                levels=ledger.depth,
                seconds=max(0.0, seconds) if seconds < math.inf else None,
            )
        )

    def seed_for(self, path: tuple[int, ...], turn: int) -> int | None:
        """A seed that depends on the place in the tree, not on the order in which siblings run."""
        if self.options.seed is None:
            return None
        digest = hashlib.blake2b(repr((int(self.options.seed), path, turn)).encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1

    def closing_size(self, renderer: Renderer) -> int:
        """The most tokens that the call for a final answer can take."""
        if id(renderer) not in self._closing_sizes:
            self._closing_sizes[id(renderer)] = self._closing_size(renderer)
        return self._closing_sizes[id(renderer)]

    def _closing_size(self, renderer: Renderer) -> int:
        before = Piece(sampled=True, text="")  # without an end-of-turn token: the longer case
        reasons = [why for why in CLOSING_REASON if why is not Stop.REPEATS or self.budget.repeats is not None]
        messages = [self.dialect.closing(why) for why in reasons]
        if self.options.show_budget:
            longest = _most(self.budget)
            messages = [f"{self.dialect.remaining(longest)}\n\n{text}" for text in messages]
        return _largest(renderer, before, tuple(messages))


def within_window(budget: Budget, engine: Engine) -> Budget:
    """The budget with the window of the engine's model, where that is known and smaller."""
    return replace(budget, window=min(engine.window, budget.window)) if isinstance(engine, Windowed) else budget


def _most(budget: Budget) -> Remaining:
    """At least as much as a node of this budget ever has left: no message about it is longer."""
    return Remaining(
        tokens=max(1_000_000, budget.tokens),
        turns=max(100, budget.turns),
        clones=max(10_000, budget.nodes),
        levels=max(100, budget.depth),
        seconds=max(1.0, budget.seconds or 0.0),
    )


def _shortage(node_run: NodeRun) -> int:
    """Tokens by which the window is too small for the node's prompt; negative when there is room to spare."""
    return node_run.limits.smallest_window(node_run.transcript.size) - node_run.tree_run.budget.window


def _clock() -> Callable[[], float]:
    """The event loop's clock, looked up once because nodes read it often."""
    if sniffio.current_async_library() == "asyncio":
        return asyncio.get_running_loop().time
    return anyio.current_time


@lru_cache(maxsize=64)
def _largest(renderer: Any, before: Piece, messages: tuple[str, ...]) -> int:
    return max(renderer.size(renderer.reply(text, after=before)) for text in messages)


async def run(
    task: Task | str,
    *,
    engine: Engine,
    clone_engine: Engine | None = None,
    budget: Budget | None = None,
    dialect: Dialect | str = "tools",
    world: World | None = None,
    temperature: float = TEMPERATURE,
    seed: int | None = None,
    show_budget: bool = False,
    allow_same_goal: bool = False,
    instructions: str = "",
    delegate_instructions: str = "",
) -> Tree:
    """Run a tree of clones on a task, within a hard budget.

    `budget` has the limits of the whole tree: by default 4,000 generated tokens, 16 nodes and 3 levels of clones.
    `dialect` is how the model writes actions: "tools", "native" (the server's tool calling), "python" or "terse".
    `world` has functions that the model may call and texts that it may read; `ramet.Task(context=...)` has texts too.
    `clone_engine` samples for all nodes but the root. With `show_budget` the model reads what it may still spend. The
    other settings are explained at `TreeOptions`.

    A limit that is reached ends a node, never with an exception: see `tree.root.stop`. If the engine fails for the
    root, `EngineError` is raised, and its attribute `tree` has what was done so far.

    Example:
        tree = await ramet.run("What is 2 + 2?", engine=engine, budget=ramet.Budget(tokens=4000))
        print(tree.answer)
        print(tree)
    """
    options = TreeOptions(
        engine=engine,
        clone_engine=clone_engine,
        budget=budget,
        dialect=dialect,
        world=world,
        temperature=temperature,
        seed=seed,
        show_budget=show_budget,
        allow_same_goal=allow_same_goal,
        instructions=instructions,
        delegate_instructions=delegate_instructions,
    )
    return await TreeRun(task, options).run()
