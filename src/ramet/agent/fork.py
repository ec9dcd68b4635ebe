"""Fork a tree: the same prefix, another continuation.

The recorded turns run through the real runtime again: kept turns are given instead of sampled, so windows, ledgers,
worlds and code cells get into the state they were in. From the forked turn on the engine samples. So a budget holds in
a forked tree as in any other, and what was spent before the fork stays spent.

`recording` defines which turns are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import anyio

from ramet.agent.options import MessageOverride, Restriction, TreeOptions
from ramet.agent.recording import ForkPoint, Kept, Path, Place, Recording, Replayable
from ramet.agent.tree import TreeRun, within_window
from ramet.config import TEMPERATURE
from ramet.errors import ConfigError, ForkError
from ramet.interfaces import Caching, Engine, Windowed, World
from ramet.tokens.render import Renderer, TokenRenderer
from ramet.types import Completion, Meter, Node, Prompt, Tree


async def fork(
    tree: Tree,
    *,
    node: int,
    turn: int,
    engine: Engine,
    clone_engine: Engine | None = None,
    without_delegation: bool = False,
    without_clone: int | None = None,
    say: str | None = None,
    tell: str | None = None,
    world: World | None = None,
    temperature: float = TEMPERATURE,
    seed: int | None = None,
    show_budget: bool = False,
    allow_same_goal: bool = False,
    same_goal: Callable[[str, str], bool] | None = None,
    goal_size: Callable[[str], float | None] | None = None,
    instructions: str = "",
    delegate_instructions: str = "",
    allow_impossible: bool = True,
    impossible: Callable[[str], str | None] | None = None,
) -> Tree:
    """Continue a finished tree in another way, from one turn of one node on. Both are counted from 0.

    At most one change can be made: the node no longer delegates (`without_delegation`), this clone of the turn, a node
    index, is refused (`without_clone`), the node writes `say` in this turn, or it reads the message `tell` before it.
    Without a change the turn is sampled again. Pass a new `world` of the task, and the settings that the tree was run
    with. A tree that cannot be forked at this turn raises `ForkError`.

    Example:
        other = await ramet.fork(tree, node=0, turn=0, engine=engine, without_delegation=True)
    """
    point = ForkPoint(
        node=node, turn=turn, without_delegation=without_delegation, without_clone=without_clone, say=say, tell=tell
    )
    options = TreeOptions(
        engine=engine,
        clone_engine=clone_engine,
        world=world,
        temperature=temperature,
        seed=seed,
        show_budget=show_budget,
        allow_same_goal=allow_same_goal,
        same_goal=same_goal,
        goal_size=goal_size,
        instructions=instructions,
        delegate_instructions=delegate_instructions,
        allow_impossible=allow_impossible,
        impossible=impossible,
    )
    return await ForkRun(tree, point, options).run()


class ForkRun:
    """Runs one forked tree. Budget and dialect are those of the recorded tree.

    Example:
        run = ForkRun(tree, ForkPoint(node=0, turn=1), TreeOptions(engine=engine, world=taskset.world(tree.task)))
        other = await run.run()
    """

    def __init__(self, tree: Tree, point: ForkPoint, options: TreeOptions) -> None:
        self.recording = Recording(tree, point)
        self.engine = ForkEngine(options.engine, self.recording, clones=options.clone_engine)
        try:
            self.tree_run = TreeRun(tree.task, self._options(tree, options))
        except ConfigError as error:  # a root that cannot delegate reads all texts, which may not fit
            raise ForkError(f"tree {tree.id} cannot be forked there: {error}") from None
        self.engine.join(self.tree_run)
        exact = all(engine.renderer.exact for engine in (options.engine, options.clone_engine or options.engine))
        self.recording.refuse_unrepeatable(self.tree_run.world, exact=exact, show_budget=options.show_budget)

    @property
    def tree(self) -> Tree:
        return self.tree_run.tree

    @property
    def tokens(self) -> int:
        """Tokens that were paid for after the fork."""
        used = self.tree.usage
        return used.tokens + used.lost_tokens - self.engine.repeated_tokens

    async def run(self) -> Tree:
        """Run to the end. If the recorded turns cannot be repeated, raise `ForkError`."""
        with anyio.CancelScope() as scope:
            self.engine.give_up = scope.cancel
            await self.tree_run.run()
        if self.engine.problem is not None:
            raise ForkError(f"tree {self.recording.tree.id} cannot be forked there: {self.engine.problem}")
        self._restore_times()
        return self.tree

    def _options(self, tree: Tree, options: TreeOptions) -> TreeOptions:
        recording, point = self.recording, self.recording.point
        restriction = None
        if point.without_delegation:
            restriction = Restriction(path=recording.node.path, turn=point.turn)
        elif recording.clone is not None:
            restriction = Restriction(path=recording.node.path, turn=point.turn, clone=recording.clone.path[-1])
        override = None
        if point.tell is not None:
            override = MessageOverride(path=recording.node.path, turn=point.turn, text=point.tell)
        return replace(
            options,
            engine=self.engine,
            clone_engine=_fork_clones(self.engine, options.clone_engine),
            budget=within_window(tree.budget, options.engine),
            dialect=tree.dialect if isinstance(options.dialect, str) else options.dialect,
            restriction=restriction,
            message_override=override,
            elapsed_s=recording.elapsed_s,
        )

    def _restore_times(self) -> None:
        """Give repeated turns and nodes the times that were recorded, and nodes without a new turn their usage."""
        nodes = {node.path: node for node in self.tree.nodes}
        for path, number in self.engine.repeated:
            turn, before = nodes[path].turns[number], self.recording.kept[path, number].turn
            turn.started_s, turn.sampled_s = before.started_s, before.sampled_s
        for before in self.recording.line:
            if before.path in nodes:
                nodes[before.path].started_s = before.started_s
        for before in self.recording.branches:
            node = nodes.get(before.path)
            if node is None or node.path in self.engine.sampled:
                continue
            if all((node.path, i) in self.engine.repeated for i in range(len(node.turns))):
                node.started_s, node.ended_s, node.usage = before.started_s, before.ended_s, replace(before.usage)


class ForkEngine:
    """Gives kept turns as they were recorded, and samples all others.

    In a world whose order of calls matters, the turns before the fork are given in their recorded order: each one when
    the effects of the one before are over.
    """

    def __init__(self, engine: Engine, recording: Recording, *, clones: Engine | None = None) -> None:
        self.engine = engine
        self.clones = clones  # the engine of all nodes but the root, if it is another one
        self.recording = recording
        self.repeated: set[Place] = set()
        self.sampled: set[Path] = set()  # nodes with a call that was not repeated, also if it brought no turn
        self.repeated_tokens = 0
        self.problem: str | None = None  # why the recorded turns cannot be repeated
        self.give_up: Callable[[], None] = _ignore  # ends the tree when there is a problem
        self._nodes: Sequence[Node] = ()
        self._changed: set[Path] = set()  # nodes that read something else than was recorded
        self._forked = recording.forked
        self._queue = Queue(())

    @property
    def renderer(self) -> Renderer:
        return self.engine.renderer

    def join(self, tree_run: TreeRun) -> None:
        """Serve this tree."""
        self._nodes = tree_run.tree.nodes
        world = tree_run.world
        if isinstance(world, Replayable) and world.order_matters:
            self._queue = Queue(self.recording.order())

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
        node = self._node(prompt.node_id)
        place = (node.path, prompt.turn)
        kept = self.recording.kept.get(place)
        await self._check_order(place, kept)
        problem = None if kept is None else kept.problem(node, prompt, max_tokens)
        if kept is not None and kept.exactly and problem is not None:
            await self._fail(problem)
        if problem is not None:
            self._changed.add(node.path)
        if kept is not None and not self._is_changed(node.path):
            await self._queue.wait(place)
            return self._repeat(kept, meter)
        await self._queue.wait(None)
        forked, say = self._forked, self.recording.point.say
        if forked is not None and place == forked.place:
            self._forked = None  # a call that is cancelled at a deadline is followed by another one
            other = forked.other_prompt(prompt)
            if other is not None:
                await self._fail(other)
            if say is not None:
                return await self._said(say, self._engine_of(node).renderer, max_tokens, stop)
        self.sampled.add(node.path)
        return await self._engine_of(node).sample(
            prompt, max_tokens=max_tokens, stop=stop, temperature=temperature, seed=seed, meter=meter
        )

    def ended(self, node_id: str) -> None:
        node = self._node(node_id)
        path, engine = node.path, self._engine_of(node)
        self._queue.acted(path)
        missing = next((place for place in self._queue.left if place[0][: len(path)] == path), None)
        if missing is not None:
            self._refuse(_missing(missing))
        if isinstance(engine, Caching):
            engine.ended(node_id)

    async def _check_order(self, place: Place, kept: Kept | None) -> None:
        """Refuse a tree that takes another course before the fork: some turn of the recorded order never comes."""
        path, number = place
        self._queue.acted(path)
        waiting = self._queue.expected_before(place, kept is not None and kept.exactly)
        if waiting is None and number == 0 and path:
            waiting = self._missing_sibling(path)
        if waiting is not None:
            await self._fail(_missing(waiting))

    def _missing_sibling(self, path: Path) -> Place | None:
        """The first turn of a recorded clone that should have been started together with this one."""
        if self.recording.tree.dialect == "python":  # its cells start clones in several rounds
            return None
        together, started = self.recording.started_with(path), {node.path for node in self._nodes}
        left = [place for place in self._queue.left if place[1] == 0]
        return next((place for place in left if place[0] in together and place[0] not in started), None)

    async def _fail(self, problem: str) -> None:
        self._refuse(problem)
        await anyio.sleep_forever()

    def _refuse(self, problem: str) -> None:
        self.problem = self.problem or problem
        self.give_up()

    def _is_changed(self, path: Path) -> bool:
        return any(path[:length] in self._changed for length in range(len(path) + 1))

    def _repeat(self, kept: Kept, meter: Meter | None) -> Completion:
        completion = kept.completion
        self.repeated.add(kept.place)
        self.repeated_tokens += completion.num_tokens
        if meter is not None:
            meter.tokens = completion.num_tokens
        return completion

    async def _said(self, text: str, renderer: Renderer, max_tokens: int, stop: Sequence[str]) -> Completion:
        """A turn that a person wrote. It fills the window like any other, and costs nothing."""
        if not isinstance(renderer, TokenRenderer):
            raise AssertionError("a fork has token ids")
        ends = [text.index(mark) + len(mark) for mark in stop if mark in text]
        text = text[: min(ends)] if ends else text
        end = [] if ends or renderer.end_of_turn is None else [renderer.end_of_turn]
        ids = (*renderer.tokenizer.encode(text, control=False), *end)
        if len(ids) > max_tokens:
            await self._fail(f"the text has {len(ids)} tokens, and the turn may have at most {max_tokens}")
        return Completion(
            text=text, token_ids=ids, logprobs=(0.0,) * len(ids), num_tokens=0, finish="stop", taught=False
        )

    def _node(self, node_id: str) -> Node:
        return self._nodes[int(node_id.rpartition("/")[2])]

    def _engine_of(self, node: Node) -> Engine:
        return self.engine if node.parent is None else self.clones or self.engine


class ForkClones:
    """A `ForkEngine` for clones that have an engine of their own: prompts are in the tokens of that one."""

    def __init__(self, forking: ForkEngine, clones: Engine) -> None:
        self.forking, self.clones = forking, clones

    @property
    def renderer(self) -> Renderer:
        return self.clones.renderer

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
        return await self.forking.sample(
            prompt, max_tokens=max_tokens, stop=stop, temperature=temperature, seed=seed, meter=meter
        )

    def ended(self, node_id: str) -> None:
        self.forking.ended(node_id)


class WindowedForkClones(ForkClones):
    """The same for an engine that knows the window of its model."""

    def __init__(self, forking: ForkEngine, clones: Engine, *, window: int) -> None:
        super().__init__(forking, clones)
        self.window = window


def _fork_clones(forking: ForkEngine, clones: Engine | None) -> Engine | None:
    if clones is None:
        return None
    return (
        WindowedForkClones(forking, clones, window=clones.window)
        if isinstance(clones, Windowed)
        else ForkClones(forking, clones)
    )


def _ignore() -> None:
    """Before the tree runs there is nothing to end."""


def _missing(place: Place) -> str:
    path, number = place
    return f"turn {number} of the node at path {list(path)} does not come again"


class Queue:
    """Lets turns pass in a fixed order: the next one when the effects of the last one are over.

    The effects of a turn are over when its node or a descendant of it asks for a turn, or has ended.
    """

    def __init__(self, order: Sequence[Place]) -> None:
        self.left = list(order)
        self._acting: Path | None = None  # whose turn passed last
        self._gates: dict[Place | None, anyio.Event] = {}

    async def wait(self, place: Place | None) -> None:
        """Wait until this turn may pass; None: until all of the order have."""
        place = place if place in self.left else None
        if self._acting is not None or (self.left[0] if self.left else None) != place:
            await self._gates.setdefault(place, anyio.Event()).wait()
        if place is not None:
            del self.left[0]
            self._acting = place[0]

    def acted(self, path: Path) -> None:
        """A node asks for a turn, or has ended: an effect of its own last turn, or of an ancestor's."""
        if self._acting is None or path[: len(self._acting)] != self._acting:
            return
        self._acting = None
        gate = self._gates.pop(self.left[0] if self.left else None, None)
        if gate is not None:
            gate.set()

    def expected_before(self, place: Place, in_order: bool) -> Place | None:
        """A turn that has to pass before this one can be asked for, and has not."""
        path = place[0]
        for other in self.left:
            if other == place and in_order:
                return None
            if other[0][: len(path)] == path or path[: len(other[0])] == other[0]:
                return other
        return None
