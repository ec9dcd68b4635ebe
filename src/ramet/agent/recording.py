"""A recorded tree as the prefix of another one: which of its turns are kept, and whether they can be repeated.

The *line* of a fork is the forked node and its ancestors. Kept are

- the turns of the line that were sampled before the forked turn;
- the branches beside the line that were started before the line's result came back to their common ancestor. They do
  not depend on the forked turn, except through a world that nodes share.

Turns that had been sampled when the forked turn began are *before* the fork: they are repeated exactly, or the tree
cannot be forked. Turns of branches that ran on beside the forked turn are repeated as long as they read what they read
then, token for token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ramet.errors import ForkError
from ramet.interfaces import World
from ramet.types import Completion, Node, Prompt, Stop, Tree, Turn

Path = tuple[int, ...]
Place = tuple[Path, int]  # a turn: path of its node, index of the turn
CUT_SHORT = (Stop.DEADLINE, Stop.CANCELLED, Stop.ERROR)


@runtime_checkable
class Replayable(Protocol):
    """A world whose trees can be forked: the same calls, made again in the same order, give the same results and state.

    `order_matters` is False if the same holds in any order. A world without functions does not need this attribute.
    """

    @property
    def order_matters(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPoint:
    """Where a tree is forked, and what is different from there on. Nodes and turns are counted from 0.

    At most one of the last four may be set. With none, the turn is only sampled again.

    Example:
        ForkPoint(node=3, turn=2, without_delegation=True)
    """

    node: int
    turn: int
    without_delegation: bool = False  # the node may not delegate from this turn on
    without_clone: int | None = None  # the turn is kept, and this clone of it (a node index) is refused
    say: str | None = None  # the text of the turn; its tokens are not paid for and not trained on
    tell: str | None = None  # the message that the node reads before the turn: its task, or the results so far

    def __post_init__(self) -> None:
        texts = [self.say is not None, self.tell is not None]
        if sum([self.without_delegation, self.without_clone is not None, *texts]) > 1:
            raise ForkError(
                "without_delegation, without_clone, say and tell exclude each other: a fork changes one thing"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A recorded turn that is repeated."""

    node: Node
    number: int
    exactly: bool  # it was sampled before the fork

    @property
    def turn(self) -> Turn:
        return self.node.turns[self.number]

    @property
    def place(self) -> Place:
        return self.node.path, self.number

    @property
    def completion(self) -> Completion:
        """What was sampled then."""
        piece = [piece for piece in self.node.pieces if piece.sampled][self.number]
        return Completion(
            text=piece.text,
            token_ids=piece.token_ids,
            logprobs=piece.logprobs,
            num_tokens=self.turn.tokens,
            finish="stop" if self.turn.finish == "stop" else "length",
            policy_version=piece.policy_version or 0,
            taught=piece.taught,
        )

    def problem(self, node: Node, prompt: Prompt, max_tokens: int) -> str | None:
        """What is different from the recorded turn; None if it can be repeated."""
        where = f"node {self.node.index}, turn {self.number}"
        if (node.goal, node.grant) != (self.node.goal, self.node.grant):
            return f"{where}: it was started with {self.node.grant} tokens for {self.node.goal!r}, and now is not"
        other = self.other_prompt(prompt)
        if other is not None:
            return other
        if self.turn.tokens > max_tokens or (self.turn.finish == "length" and self.turn.tokens != max_tokens):
            return f"{where}: {max_tokens} tokens can be sampled there, and {self.turn.tokens} are recorded"
        return None

    def other_prompt(self, prompt: Prompt) -> str | None:
        """What is wrong if the turn does not read what it read then; None if it does."""
        if tuple(prompt.ids or ()) == self._read():
            return None
        return (
            f"node {self.node.index}, turn {self.number}, does not read what is recorded. Tokenizer, dialect, world, "
            "show_budget, allow_same_goal and allow_impossible have to be those of the recorded tree"
        )

    def _read(self) -> tuple[int, ...]:
        """The tokens in its window before the turn was sampled."""
        ids: list[int] = []
        turns = 0
        for piece in self.node.pieces:
            if piece.sampled and turns == self.number:
                break
            turns += piece.sampled
            ids += piece.token_ids
        return tuple(ids)


class Recording:
    """The turns of a tree that a fork keeps, by their place."""

    def __init__(self, tree: Tree, point: ForkPoint) -> None:
        self.tree = tree
        self.point = point
        self.node = find_node(tree, point)
        self.clone = None if point.without_clone is None else _find_clone(tree, self.node, point)
        forked = self.node.turns[point.turn]
        self.elapsed_s = forked.started_s if self.clone is None else forked.sampled_s
        self._turn_of = {
            child: number for node in tree.nodes for number, turn in enumerate(node.turns) for child in turn.children
        }
        self.line = [*_ancestors(tree, self.node), self.node, *([] if self.clone is None else [self.clone])]
        self._line_place = {node.index: place for place, node in enumerate(self.line)}
        self.kept = {kept.place: kept for node in self._repeated() for kept in self._kept_turns(node)}

    @property
    def branches(self) -> list[Node]:
        """The kept nodes beside the line; all of their turns are kept."""
        return [node for node in self._repeated() if node.index not in self._line_place]

    @property
    def tokens(self) -> int:
        """Tokens that were generated before the fork."""
        return sum(kept.turn.tokens for kept in self.kept.values() if kept.exactly)

    @property
    def forked(self) -> Kept | None:
        """The turn that is taken again; None if it is kept, or begins with another prompt."""
        begins_otherwise = self.point.tell is not None or (self.point.without_delegation and self.point.turn == 0)
        if self.clone is not None or begins_otherwise:
            return None
        return Kept(node=self.node, number=self.point.turn, exactly=False)

    def refuse_unrepeatable(self, world: World, *, exact: bool, show_budget: bool) -> None:
        """Raise `ForkError` if the kept turns cannot be repeated, or not in their order."""
        problem = (
            self._missing_ids(exact=exact)
            or self._interrupted()
            or self._changing_texts(show_budget=show_budget)
            or self._unknown_world(world)
        )
        if problem is not None:
            raise ForkError(f"tree {self.tree.id} cannot be forked there: {problem}")

    def started_with(self, path: Path) -> set[Path]:
        """The paths of the recorded clones that were started in the same turn as this one."""
        kept = self.kept.get((path, 0))
        if kept is None or kept.node.parent is None:
            return set()
        turn = self.tree.nodes[kept.node.parent].turns[self._turn_of[kept.node.index]]
        return {self.tree.nodes[child].path for child in turn.children}

    def order(self) -> list[Place]:
        """The turns before the fork in the order in which they were sampled; a parent's before its children's."""
        turns = [self.kept[place] for place in self._causal(self.tree.root) if place in self.kept]
        return [kept.place for kept in sorted(turns, key=lambda kept: kept.turn.sampled_s) if kept.exactly]

    # What is kept.

    def _repeated(self) -> Iterator[Node]:
        """The nodes of the line and of the kept branches, in the order of the tree."""
        kept: set[int] = set()
        for node in self.tree.nodes:
            if node is self.clone:
                continue
            if node.index in self._line_place or (node.parent in kept and self._is_kept(node)):
                kept.add(node.index)
                yield node

    def _is_kept(self, node: Node) -> bool:
        """Whether a node beside the line is kept, given that its parent is."""
        parent = self.tree.nodes[node.parent or 0]
        place = self._line_place.get(parent.index)
        if place is None:
            return True
        started = self._turn_of[node.index]
        if place + 1 == len(self.line):
            return started < self.point.turn
        following = self.line[place + 1]
        then = self._turn_of[following.index]
        in_time = following.ended_s is None or node.started_s <= following.ended_s
        return started < then or (started == then and in_time)

    def _kept_turns(self, node: Node) -> Iterator[Kept]:
        number, place = len(node.turns), self._line_place.get(node.index)
        if place is not None:
            last = place + 1 == len(self.line)
            number = self.point.turn if last else self._turn_of[self.line[place + 1].index] + 1
        for i in range(number):
            exactly = place is not None or node.turns[i].sampled_s <= self.elapsed_s
            yield Kept(node=node, number=i, exactly=exactly)

    def _causal(self, node: Node) -> Iterator[Place]:
        """The turns of a subtree, each before those that depend on it."""
        for number, turn in enumerate(node.turns):
            yield node.path, number
            for child in turn.children:
                yield from self._causal(self.tree.nodes[child])

    # What cannot be repeated.

    def _missing_ids(self, *, exact: bool) -> str | None:
        for node in self._repeated():
            if any(piece.text and not piece.token_ids for piece in node.pieces):
                return (
                    f"no token ids were recorded for node {node.index}; over HTTP, run it with --tokenizer to have "
                    "them, and fork the new tree: texts alone do not say how full its windows were"
                )
        return None if exact else "the engine takes text only; give it the model's tokenizer (--tokenizer FOLDER)"

    def _interrupted(self) -> str | None:
        """A call that was interrupted was paid for, and it is not recorded when."""
        if self.node.turns[self.point.turn].closing is Stop.DEADLINE:
            return f"turn {self.point.turn} of node {self.node.index} was its last because of the deadline"
        for node in self._repeated():
            on_line = node.index in self._line_place
            ended_by_call = on_line and node.stop in CUT_SHORT  # after the turns that are kept
            whole = sum(turn.finish != "cut" for turn in node.turns)
            if node.usage.calls - whole > ended_by_call:
                return f"a call of node {node.index} was interrupted, and what it had cost by then is not recorded"
            if not on_line and node.stop in CUT_SHORT:
                return f"node {node.index} was stopped by {node.stop}, which cannot be repeated"
        return None

    def _changing_texts(self, *, show_budget: bool) -> str | None:
        if show_budget and self.tree.budget.seconds is not None:
            return "its messages say how many seconds are left, which cannot be repeated"
        return None

    def _unknown_world(self, world: World) -> str | None:
        if not world.functions or not self.kept:  # without kept turns there are no calls to repeat
            return None
        if not isinstance(world, Replayable):
            return (
                f"nothing declares that calls of {_listed_names(world.functions)} can be repeated "
                "(order_matters = True or False in their world or file; readOnlyHint of MCP tools)"
            )
        if self.tree.dialect == "python" and world.order_matters:
            return self._overlap()
        return None

    def _overlap(self) -> str | None:
        """Cells that ran at the same time called the world in an order that is not recorded."""
        spans = sorted(
            (kept.turn.sampled_s, _acted_s(kept.node, kept.number), kept.node.index, kept.node.path)
            for kept in self.kept.values()
            if kept.exactly
        )
        for (_, end, one, path), (start, _, other, beside) in _pairs(spans):
            if start < end and not _related(path, beside):
                return f"cells of nodes {one} and {other} ran at the same time and share a world; its order is unknown"
        return None


def find_node(tree: Tree, point: ForkPoint) -> Node:
    """The node of a fork, after checking that it and its turn exist."""
    if not 0 <= point.node < len(tree.nodes):
        raise ForkError(f"tree {tree.id} has {_listed('node', len(tree.nodes))}, not {point.node}")
    node = tree.nodes[point.node]
    if not node.turns:
        raise ForkError(f"node {node.index} of tree {tree.id} has no turns: it ended before its first one")
    if not 0 <= point.turn < len(node.turns):
        raise ForkError(f"node {node.index} of tree {tree.id} has {_listed('turn', len(node.turns))}, not {point.turn}")
    return node


def _find_clone(tree: Tree, node: Node, point: ForkPoint) -> Node:
    children = node.turns[point.turn].children
    if point.without_clone not in children:
        known = ", ".join(map(str, children)) or "none"
        raise ForkError(
            f"turn {point.turn} of node {node.index} did not start clone {point.without_clone}: it started {known}"
        )
    return tree.nodes[point.without_clone]


def _listed(word: str, number: int) -> str:
    return f"only {word} 0" if number == 1 else f"{word}s 0 to {number - 1}"


def _ancestors(tree: Tree, node: Node) -> list[Node]:
    """From the root down to the parent."""
    found: list[Node] = []
    while node.parent is not None:
        node = tree.nodes[node.parent]
        found.insert(0, node)
    return found


def _acted_s(node: Node, number: int) -> float:
    """When the effects of a turn were over."""
    following = node.turns[number + 1 : number + 2]
    return following[0].started_s if following else node.ended_s or node.turns[number].sampled_s


def _pairs(spans: Sequence[tuple[float, float, int, Path]]) -> Iterator[tuple[tuple[float, float, int, Path], ...]]:
    """Every span with those that begin before it ends; the spans are sorted by their begin."""
    for i, span in enumerate(spans):
        for other in spans[i + 1 :]:
            if other[0] >= span[1]:
                break
            yield span, other


def _related(one: Path, other: Path) -> bool:
    """Whether one of two nodes is an ancestor of the other, or both are the same."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def _listed_names(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    first, *more = names
    return f"{first} and {len(more)} other functions" if len(more) > 1 else " and ".join((first, *more))
