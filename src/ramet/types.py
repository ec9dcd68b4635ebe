"""The records that flow through ramet: tasks in, trees out.

A tree is a flat list of nodes with a `parent` index: one table, no recursion to read, credit is a loop over it.
`None` means "never computed"; 0 means "computed, and it is zero".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from ramet.budget import PICO, Budget

Role = Literal["system", "user", "assistant", "tool"]
LONE_SURROGATES = re.compile("[\ud800-\udfff]")
# Control characters other than tab and newline, and characters that change the direction of text.
NOT_PRINTED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
ROUNDING = 1e-9  # a score this close to 1 is 1


def clean(text: str) -> str:
    """Replace lone surrogates, which models and servers may write and UTF-8 cannot encode."""
    return text if text.isascii() else LONE_SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)


def printable(text: str) -> str:
    """A text that cannot move the cursor, change colours or hide parts of itself when it is printed.

    Example:
        printable("plain text")  # "plain text"
    """
    return NOT_PRINTED.sub(lambda found: found[0].encode("unicode_escape", "backslashreplace").decode(), text)


def is_right(score: float) -> bool:
    """Whether a score in [0, 1] is full marks, up to rounding."""
    return score >= 1 - ROUNDING


def is_score(value: Any) -> bool:
    """Whether this is a number in [0, 1], up to rounding."""
    try:
        return bool(-ROUNDING <= value <= 1 + ROUNDING)
    except (TypeError, ValueError):  # no number, or an array of them
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question, its texts by key, and a reference for the verdict, which is never part of a prompt.

    Example:
        Task(question="Who is older?", context={"Ada": "Born 1815.", "Alan": "Born 1912."}, reference="Ada")
    """

    question: str
    id: str = "task"
    context: Mapping[str, str] = field(default_factory=dict[str, str])
    reference: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that a server returned in a field of its own, not as text.

    Example:
        ToolCall(id="call_0", name="delegate", arguments='{"goals": ["Name a bird"]}')
    """

    id: str
    name: str
    arguments: str  # as the model wrote them: JSON unless it made a mistake


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message. Only the dialect `native` has messages with calls, and their results with role `tool`."""

    role: Role
    content: str
    calls: tuple[ToolCall, ...] = ()  # of the model
    call_id: str = ""  # of a result: the call it belongs to


Slip = Literal["", "name", "argument", "syntax"]  # what is wrong with the form of a call in a demonstration


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request of a node to its engine.

    `ids` is None for servers that only take text. The fields from `node_id` to `keys` describe the node for scripts
    and logs; they are not sent to the model.
    """

    messages: Sequence[Message]
    ids: Sequence[int] | None
    node_id: str = ""
    goal: str = ""
    depth: int = 0
    turn: int = 0
    closing: bool = False  # the node was asked for its final answer
    tokens: int | None = None  # what the node may still spend, clones included
    keys: tuple[str, ...] = ()  # of the texts that the node has
    tools: Sequence[Mapping[str, Any]] = ()  # what the model may call, for servers with native tool calling

    @property
    def last(self) -> str:
        """The newest message: the question at first, later the results of the last turn."""
        return self.messages[-1].content

    @property
    def tree_id(self) -> str:
        """The part of `node_id` that all nodes of a tree share."""
        return self.node_id.rpartition("/")[0] or self.node_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What an engine sampled for one prompt.

    Example:
        Completion(text="ok", token_ids=(12, 9), logprobs=(-0.2, -1.1), num_tokens=2, finish="stop")
    """

    text: str
    token_ids: tuple[int, ...] = ()  # empty when the server returns none: such trees cannot be trained on
    logprobs: tuple[float, ...] = ()  # same length as token_ids, or empty
    num_tokens: int  # generated and paid for; may include an end-of-turn token the server does not return
    finish: Literal["stop", "length"]
    prompt_tokens: int | None = None  # the server's count
    cached_tokens: int = 0
    policy_version: int = 0  # of the weights that sampled this
    taught: bool = True  # False: a mistake in a demonstration
    thoughts: str = ""  # reasoning that the server sent apart from the text
    calls: tuple[ToolCall, ...] = ()  # of native tool calling
    prompt_ids: tuple[int, ...] = ()  # of the prompt, where a server that takes messages reports them


@dataclass(slots=True)
class Meter:
    """Counts the tokens of one call while they are generated, so that a cancelled call is accounted for.

    `partial` returns what has been received so far as a completion, with exact ids. An engine sets it when the call
    begins, or leaves it None if it cannot provide it.
    """

    tokens: int = 0
    partial: Callable[[], Completion] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a node's window: given to it, or sampled by it. Only sampled pieces that are taught are trained on."""

    sampled: bool
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    policy_version: int | None = None
    taught: bool = True  # False: a mistake in a demonstration, which carries no loss


class Stop(StrEnum):
    """Why a node ended."""

    ANSWERED = "answered"  # the node gave its answer by itself
    BUDGET = "budget"  # tokens or money ran out; the answer, if any, came from the reserve
    TURNS = "turns"  # it had taken all turns that its budget allows
    REPEATS = "repeats"  # it took the same turn, with the same results, too often in a row
    WINDOW = "window"  # its window was full
    DEADLINE = "deadline"  # the time of the tree was up
    CANCELLED = "cancelled"  # the whole run was cancelled from outside
    ERROR = "error"  # the engine failed


class State(StrEnum):
    """What a node is doing."""

    READY = "ready"
    SAMPLING = "sampling"
    ACTING = "acting"
    WAITING = "waiting"  # for its children
    ENDED = "ended"


@dataclass(slots=True, kw_only=True)
class Usage:
    """What was used. The budget covers both `tokens` and `lost_tokens`."""

    tokens: int = 0  # generated tokens that were received
    lost_tokens: int = 0  # the rest of what was reserved for a call that was cancelled
    prompt_tokens: int = 0
    cached_tokens: int = 0
    calls: int = 0
    cost: int = 0  # in trillionths of a dollar, of what was received: without `lost_tokens`
    critical_path_tokens: int = 0  # generated tokens on the longest chain of dependent work
    peak_window: int = 0  # the most tokens in the window

    @property
    def dollars(self) -> float:
        """`cost` in dollars."""
        return self.cost / PICO


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A child that was requested and not started.

    `kind` is one of malformed, same_goal, impossible, closing, depth, children, nodes, path, tokens, money, window;
    empty if not known.
    """

    goal: str
    reason: str  # as the model reads it
    kind: str = ""


@dataclass(slots=True, kw_only=True)
class Turn:
    """One completion and its effects."""

    tokens: int
    finish: Literal["stop", "length", "cut"]  # cut: its call was cancelled; the turn is what had been received
    started_s: float
    sampled_s: float
    closing: Stop | None = None
    children: list[int] = field(default_factory=list[int])
    refusals: list[Refusal] = field(default_factory=list[Refusal])
    repairs: int = 0  # malformed calls that were repaired
    faults: int = 0  # calls or cells that failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Where a judge's verdict comes from."""

    model: str
    prompt: str  # hash of the judge's instructions
    key: str  # hash of the model, the instructions and everything it was shown
    reply: str  # as the judge wrote it, cut if it is long


@dataclass(slots=True, kw_only=True)
class Judging:
    """What judging cost, and what became of the nodes that needed it."""

    nodes: int = 0  # that got a verdict
    failed: int = 0  # the judge could not be reached, or no reply could be parsed
    capped: int = 0  # not asked about, because of a limit
    cached: int = 0  # of `nodes` and `failed`, those that were known from an earlier call
    calls: int = 0
    tokens: int = 0  # prompts and replies
    generated: int = 0  # replies
    seconds: float = 0.0  # sum over calls, which run in parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A score and where it comes from.

    Attributes:
        score: From 0 to 1; partly right answers may have one in between.
        how: "exact" (a check by the taskset), "judge", or "root" (a copy of the root's verdict).
        reason: Why, for people who read the tree.
    """

    score: float
    how: Literal["exact", "judge", "root"]
    reason: str = ""
    judgement: Judgement | None = None  # of a judge

    @property
    def is_right(self) -> bool:
        """Whether the score is 1, up to rounding."""
        return is_right(self.score)


@dataclass(slots=True, kw_only=True)
class Node:
    """One agent with one window.

    Attributes:
        index, parent: Its place in `tree.nodes`, and that of its parent; the root has 0 and None.
        depth, path: Levels below the root; child ordinals from the root, independent of scheduling.
        goal: What it was asked to do; the root's is the question.
        grant: Tokens lent to it, for itself and its clones.
        state, stop: What it is doing, and why it ended.
        answer, value: None if it ended without one; the value a python cell finished with, `answer` is its text.
        error: Of the engine, if it failed.
        pieces: Its window in order: prompts and samples.
        turns: Its completions and their effects, such as the children that each one started.
        usage: What it used itself, without its clones; only `critical_path_tokens` counts them.
        verdict: How well it met its own goal; None until it is graded.
        started_s, ended_s: Seconds since the tree began.
        texts, messages: Texts it was handed, and its messages without markup, for judges; not stored.
    """

    index: int
    parent: int | None
    depth: int
    path: tuple[int, ...]
    goal: str
    grant: int
    size: float | None = field(default=None, compare=False)  # of its goal, as measured at admission; not stored
    state: State = State.READY
    stop: Stop | None = None
    answer: str | None = None
    value: object = None
    error: str | None = None
    pieces: list[Piece] = field(default_factory=list[Piece])
    turns: list[Turn] = field(default_factory=list[Turn])
    usage: Usage = field(default_factory=Usage)
    meter: Meter = field(default_factory=Meter)  # the call in flight
    verdict: Verdict | None = None
    started_s: float = 0.0
    ended_s: float | None = None
    texts: Mapping[str, str] = field(default_factory=dict[str, str], compare=False, repr=False)
    messages: list[Message] = field(default_factory=list[Message], compare=False, repr=False)

    @property
    def has_sampled(self) -> bool:
        """Whether it sampled anything. A node cancelled during its first call did not."""
        return any(piece.sampled and (piece.token_ids or piece.text) for piece in self.pieces)

    @property
    def token_ids(self) -> list[int]:
        """All token ids of the node, given and sampled, in order."""
        return [token for piece in self.pieces for token in piece.token_ids]

    @property
    def mask(self) -> list[bool]:
        """True for each token that the node sampled."""
        return [piece.sampled for piece in self.pieces for _ in piece.token_ids]


@dataclass(slots=True, kw_only=True)
class Tree:
    """All nodes of one root. `print(tree)` draws it.

    Attributes:
        task: What the root worked on.
        budget: The limits of the whole tree.
        nodes: The root, then all clones in the order they were granted.
        seconds: From its start to its end.
        judging: What a judge cost; not stored.
    """

    id: str
    task: Task
    budget: Budget
    dialect: str = ""
    nodes: list[Node] = field(default_factory=list[Node])
    seconds: float = 0.0
    judging: Judging | None = field(default=None, compare=False)

    @property
    def root(self) -> Node:
        """The first node, which works on the question."""
        return self.nodes[0]

    @property
    def answer(self) -> str | None:
        """The root's answer; None if it ended without one."""
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
        """Levels below the root that were used."""
        return max((node.depth for node in self.nodes), default=0)

    def children(self, index: int) -> Iterator[Node]:
        """The children of the node with this index."""
        return (node for node in self.nodes if node.parent == index)

    def __str__(self) -> str:
        from ramet.draw import draw

        return draw(self)
