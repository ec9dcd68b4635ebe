"""Workloads for engines: calls of fixed length, some of which wait for others.

A prompt consists of segments: given ids, and the tokens that an earlier call sampled. A node's second turn continues
from what the engine itself sampled in the first, whatever those tokens were; the work is the same for every engine.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from ramet.errors import ConfigError

if TYPE_CHECKING:
    from ramet.types import Node, Tree

ID_RANGE = range(3, 250)  # in every vocabulary
GOAL_TOKENS = (20, 120)
DELEGATION_TOKENS = (20, 80)  # the turn in which a node asks for children
FANOUT = (2, 6)
SHORTEST_ANSWER = 16
TYPICAL_ANSWER, ANSWER_SPREAD = 3.9, 0.7  # of the logarithm of its length; the median is about 50 tokens
DELEGATES = (1.0, 0.3, 0.15)  # probability that a node delegates, by depth; deeper nodes never do
BETWEEN_TOKENS = 6  # the text around a child's answer


@dataclass(frozen=True, slots=True)
class Sampled:
    """A placeholder for all tokens that a call sampled."""

    call: int


Segment = tuple[int, ...] | Sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One completion of exactly `new_tokens`, to start when the calls in `after` have ended."""

    segments: tuple[Segment, ...]
    new_tokens: int
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of a workload.

    `unique_prompt_tokens` counts every prefix once: no cache can save more.
    """

    roots: int  # calls that wait for nothing: one per tree
    calls: int
    prompt_tokens: int
    unique_prompt_tokens: int
    generated_tokens: int
    critical_path_tokens: int  # generated on the longest chain of calls that wait for each other
    longest: int  # prompt and completion of one call


@dataclass(frozen=True)
class Workload:
    """Calls in topological order: every prefix of a workload is a workload."""

    name: str
    calls: tuple[Call, ...]

    def __post_init__(self) -> None:
        for index, call in enumerate(self.calls):
            quoted = [segment.call for segment in call.segments if isinstance(segment, Sampled)]
            if not set(quoted) <= set(call.after) or not all(0 <= other < index for other in call.after):
                raise ConfigError(f"call {index} of {self.name} quotes a call it does not wait for")
            if call.new_tokens < 1 or not call.segments:
                raise ConfigError(f"call {index} of {self.name} is empty")

    def first(self, count: int) -> Workload:
        return replace(self, calls=self.calls[:count])

    def shifted(self, offset: int) -> Workload:
        """The same work with other ids, so that caches filled by an earlier pass do not help."""
        limit = 1 + max(
            id for call in self.calls for part in call.segments if not isinstance(part, Sampled) for id in part
        )

        def moved(part: Segment) -> Segment:
            return part if isinstance(part, Sampled) else tuple((id + offset) % limit for id in part)

        return replace(self, calls=tuple(replace(c, segments=tuple(map(moved, c.segments))) for c in self.calls))

    def prompt_tokens(self) -> list[int]:
        """The length of every prompt."""
        return [
            sum(self.calls[part.call].new_tokens if isinstance(part, Sampled) else len(part) for part in call.segments)
            for call in self.calls
        ]

    def room(self, page: int = 1) -> int:
        """The cache size for all calls at once without sharing, in whole pages per call."""
        sizes = zip(self.prompt_tokens(), self.calls, strict=True)
        return sum(-(-(prompt + call.new_tokens) // page) * page for prompt, call in sizes)

    def shape(self) -> Shape:
        prompts = self.prompt_tokens()
        generated = sum(call.new_tokens for call in self.calls)
        return Shape(
            roots=sum(not call.after for call in self.calls),
            calls=len(self.calls),
            prompt_tokens=sum(prompts),
            unique_prompt_tokens=_distinct_prefixes(self) - generated,
            generated_tokens=generated,
            critical_path_tokens=_critical_path(self.calls),
            longest=max(prompt + call.new_tokens for prompt, call in zip(prompts, self.calls, strict=True)),
        )


class Progress:
    """Tracks which calls have ended, what they sampled, and which can start."""

    def __init__(self, workload: Workload) -> None:
        self.calls = workload.calls
        self.sampled: dict[int, Sequence[int]] = {}
        self._missing = [len(set(call.after)) for call in self.calls]
        self._followers: list[list[int]] = [[] for _ in self.calls]
        for index, call in enumerate(self.calls):
            for other in set(call.after):
                self._followers[other].append(index)

    @property
    def done(self) -> bool:
        return len(self.sampled) == len(self.calls)

    def start(self) -> list[int]:
        """The calls that wait for nothing."""
        return [index for index, missing in enumerate(self._missing) if not missing]

    def prompt(self, index: int) -> list[int]:
        ids: list[int] = []
        for part in self.calls[index].segments:
            ids += self.sampled[part.call] if isinstance(part, Sampled) else part
        return ids

    def end(self, index: int, token_ids: Sequence[int]) -> list[int]:
        """Record what a call sampled; returns the calls that can start now."""
        self.sampled[index] = token_ids
        ready: list[int] = []
        for follower in self._followers[index]:
            self._missing[follower] -= 1
            if not self._missing[follower]:
                ready.append(follower)
        return ready


def flat(*, batch: int, prompt: int, new: int, seed: int = 0) -> Workload:
    """Independent sequences of one size without common prefixes."""
    ids = random.Random(f"flat ids {seed}")
    calls = (Call(segments=(_given(ids, prompt),), new_tokens=new) for _ in range(batch))
    return Workload("flat", tuple(calls))


def trees(*, count: int, system: int = 200, longest: int = 200, seed: int = 0) -> Workload:
    """Random trees: one system prompt for all nodes, goals and answers of varying length.

    A node that delegates takes two turns: it delegates, then reads the answers of its children and answers.
    """
    grower = _Grower(system=system, longest=max(longest, SHORTEST_ANSWER), seed=seed)
    for _ in range(count):
        grower.node(depth=0, after=())
    return Workload("tree", tuple(grower.calls))


class _Grower:
    """Draws trees. Sizes and ids have separate random generators."""

    def __init__(self, *, system: int, longest: int, seed: int) -> None:
        self.calls: list[Call] = []
        self.longest = longest
        self.ids, self.sizes = random.Random(f"tree ids {seed}"), random.Random(f"tree sizes {seed}")
        self.system = _given(self.ids, system)

    def node(self, *, depth: int, after: tuple[int, ...]) -> int:
        """Add the calls of a node and its descendants; returns the call in which the node answers."""
        opening = self.system + _given(self.ids, self.sizes.randint(*GOAL_TOKENS))
        if depth >= len(DELEGATES) or self.sizes.random() >= DELEGATES[depth]:
            return self._call((opening,), self._answer(), after)
        asking = self._call((opening,), min(self.longest, self.sizes.randint(*DELEGATION_TOKENS)), after)
        children = [self.node(depth=depth + 1, after=(asking,)) for _ in range(self.sizes.randint(*FANOUT))]
        segments: list[Segment] = [opening, Sampled(asking)]
        for child in children:
            segments += [_given(self.ids, BETWEEN_TOKENS), Sampled(child)]
        segments.append(_given(self.ids, BETWEEN_TOKENS))
        return self._call(tuple(segments), self._answer(), (asking, *children))

    def _call(self, segments: tuple[Segment, ...], new_tokens: int, after: tuple[int, ...]) -> int:
        self.calls.append(Call(segments=segments, new_tokens=new_tokens, after=after))
        return len(self.calls) - 1

    def _answer(self) -> int:
        drawn = int(self.sizes.lognormvariate(TYPICAL_ANSWER, ANSWER_SPREAD))
        return min(max(drawn, SHORTEST_ANSWER), self.longest)


def recorded(stored: Iterable[Tree]) -> Workload:
    """The calls of recorded trees, with their prompts, lengths and dependencies."""
    calls: list[Call] = []
    for tree in stored:
        _add_calls(tree, tree.root, (), calls)
    if not calls:
        raise ConfigError("the run has no token ids: run its trees with a tokenizer")
    return Workload("tree", tuple(calls))


def _add_calls(tree: Tree, node: Node, after: tuple[int, ...], calls: list[Call]) -> tuple[int, ...]:
    """Add the calls of a node, each followed by those of its children; returns the calls its parent waits for."""
    turns = iter(node.turns)
    segments: list[Segment] = []
    for piece in node.pieces:
        if not piece.sampled:
            segments.append(piece.token_ids)
        elif piece.token_ids:
            calls.append(Call(segments=tuple(segments), new_tokens=len(piece.token_ids), after=after))
            call = len(calls) - 1
            after = (*(part.call for part in segments if isinstance(part, Sampled)), call)
            segments.append(Sampled(call))
            turn = next(turns, None)
            for child in turn.children if turn is not None else ():
                after += _add_calls(tree, tree.nodes[child], (call,), calls)
    return after


def _given(ids: random.Random, count: int) -> tuple[int, ...]:
    return tuple(ids.choices(ID_RANGE, k=count))


def _critical_path(calls: Sequence[Call]) -> int:
    ends: list[int] = []
    for call in calls:
        ends.append(call.new_tokens + max((ends[other] for other in call.after), default=0))
    return max(ends)


def _distinct_prefixes(workload: Workload) -> int:
    """The number of nodes in the trie of all prompts and completions. Sampled tokens get ids that are not given."""
    starts = [0]
    for call in workload.calls:
        starts.append(starts[-1] - call.new_tokens)
    names = [range(start - 1, end - 1, -1) for start, end in pairwise(starts)]
    progress = Progress(workload)
    texts: list[list[int]] = []
    for index, sampled in enumerate(names):
        texts.append([*progress.prompt(index), *sampled])
        progress.end(index, sampled)
    texts.sort()
    return sum(len(text) - _common_prefix(before, text) for before, text in zip([[], *texts], texts, strict=False))


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """The length of the common prefix of two texts."""
    for place, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return place
    return min(len(left), len(right))
