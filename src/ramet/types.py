"""The records that flow through ramet: tasks in, trees out.

A tree is a flat list of nodes with a `parent` index: one table, no recursion to read, credit is a loop over it.
`None` means "never computed"; 0 means "computed, and it is zero".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from ramet.budget import PICO, Budget

Role = Literal["system", "user", "assistant"]
HALVES = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """The text with half characters replaced, as decoders do: models and servers write some, no encoding takes them."""
    return HALVES.sub("\N{REPLACEMENT CHARACTER}", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question, the texts it comes with, and a reference no prompt ever shows.

    Example:
        Task(question="Who is older?", context={"Ada": "Born 1815.", "Alan": "Born 1912."}, reference="Ada")
    """

    question: str
    id: str = "task"
    context: Mapping[str, str] = field(default_factory=dict[str, str])
    reference: object = None


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a node says to its engine.

    `ids` is None for servers that only take text. The last five fields say who asks: scripts and logs read them, a
    model never sees them.
    """

    messages: Sequence[Message]
    ids: Sequence[int] | None
    node_id: str = ""
    goal: str = ""
    depth: int = 0
    turn: int = 0
    closing: bool = False  # the node has been told to answer now

    @property
    def last(self) -> str:
        """The newest message: the question at first, later what came back from the last turn."""
        return self.messages[-1].content


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Tokens as sampled.

    Example:
        Completion(text="ok", token_ids=(12, 9), logprobs=(-0.2, -1.1), num_tokens=2, finish="stop")
    """

    text: str
    token_ids: tuple[int, ...] = ()  # empty when the server returns none: such a tree can run but not train
    logprobs: tuple[float, ...] = ()  # same length as token_ids, or empty
    num_tokens: int  # what was generated and is paid for; some servers keep the end-of-turn token to themselves
    finish: Literal["stop", "length"]
    prompt_tokens: int | None = None  # as counted by the server
    cached_tokens: int = 0
    policy_version: int = 0  # weights that sampled this


@dataclass(slots=True)
class Meter:
    """Counts tokens while they are generated, so that a cancelled call can still be accounted for."""

    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of a node's context: given to it, or sampled by it. Sampled pieces are what is trained."""

    sampled: bool
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    policy_version: int | None = None


class Stop(StrEnum):
    """Why a node ended."""

    ANSWERED = "answered"  # it said it was done
    BUDGET = "budget"  # tokens or money ran out; the answer, if any, came from the reserve
    TURNS = "turns"
    WINDOW = "window"  # its window was full
    DEADLINE = "deadline"
    CANCELLED = "cancelled"  # the whole run was cancelled from outside
    ERROR = "error"  # the engine failed


class State(StrEnum):
    """What a node is doing right now."""

    READY = "ready"
    SAMPLING = "sampling"
    ACTING = "acting"
    WAITING = "waiting"  # for its children
    ENDED = "ended"


@dataclass(slots=True, kw_only=True)
class Usage:
    """What was really used. `tokens` counts generated tokens that are known to exist.

    `lost_tokens` were paid for but never seen: the unused part of the cap of a cancelled call. The budget covers both.
    """

    tokens: int = 0
    lost_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    calls: int = 0
    cost: int = 0  # trillionths of a dollar, `Prices` applied
    critical_path_tokens: int = 0  # generated tokens on the longest chain of dependent work
    peak_window: int = 0  # most tokens in one window

    @property
    def dollars(self) -> float:
        return self.cost / PICO


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A child that was asked for and not started."""

    goal: str
    reason: str


@dataclass(slots=True, kw_only=True)
class Turn:
    """One completion and what came of it."""

    tokens: int
    finish: Literal["stop", "length"]
    started_s: float
    sampled_s: float
    closing: Stop | None = None
    children: list[int] = field(default_factory=list[int])
    refusals: list[Refusal] = field(default_factory=list[Refusal])
    repairs: int = 0  # malformed calls mended before they ran
    faults: int = 0  # calls or cells that failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A score in [0, 1] and how it was decided."""

    score: float
    how: Literal["exact", "judge", "root"]
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class Node:
    """One agent with one context window."""

    index: int
    parent: int | None
    depth: int
    path: tuple[int, ...]  # ordinals from the root: does not depend on how siblings interleave
    goal: str
    grant: int  # tokens lent to it
    state: State = State.READY
    stop: Stop | None = None
    answer: str | None = None
    value: object = None  # what a python cell finished with, before it became text
    error: str | None = None
    pieces: list[Piece] = field(default_factory=list[Piece])
    turns: list[Turn] = field(default_factory=list[Turn])
    usage: Usage = field(default_factory=Usage)
    meter: Meter = field(default_factory=Meter)  # the call in flight
    verdict: Verdict | None = None
    started_s: float = 0.0
    ended_s: float | None = None

    @property
    def token_ids(self) -> list[int]:
        """Everything the engine saw and said, in order."""
        return [token for piece in self.pieces for token in piece.token_ids]

    @property
    def mask(self) -> list[bool]:
        """True exactly where this node sampled the token."""
        return [piece.sampled for piece in self.pieces for _ in piece.token_ids]


@dataclass(slots=True, kw_only=True)
class Tree:
    """All nodes of one root. `print(tree)` draws it."""

    id: str
    task: Task
    budget: Budget
    dialect: str = ""
    nodes: list[Node] = field(default_factory=list[Node])
    seconds: float = 0.0

    @property
    def root(self) -> Node:
        return self.nodes[0]

    @property
    def answer(self) -> str | None:
        return self.root.answer

    @property
    def usage(self) -> Usage:
        """Totals over all nodes; the critical path is the root's."""
        total = Usage()
        for node in self.nodes:
            used = node.usage
            total.tokens += used.tokens
            total.lost_tokens += used.lost_tokens
            total.prompt_tokens += used.prompt_tokens
            total.cached_tokens += used.cached_tokens
            total.calls += used.calls
            total.cost += used.cost
            total.peak_window = max(total.peak_window, used.peak_window)
        total.critical_path_tokens = self.root.usage.critical_path_tokens if self.nodes else 0
        return total

    @property
    def depth(self) -> int:
        return max((node.depth for node in self.nodes), default=0)

    def children(self, index: int) -> Iterator[Node]:
        return (node for node in self.nodes if node.parent == index)

    def __str__(self) -> str:
        from ramet.draw import draw

        return draw(self)
