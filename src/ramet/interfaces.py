"""The seams: everything that can be replaced by a class of your own.

Each seam is a Protocol: a class fits it by its methods, without inheriting anything.

    Engine, Caching, Windowed                    sample completions
    World, TaskWorld, NodeObserver               the live state of one task
    Taskset, NodeJudge, Comparing, HasSizes      tasks and verdicts
    ComparesGoals, KnowsImpossible               goals that are the same, or that cannot be met
    Oracle (View, Move, Ask, Do)                 a program that demonstrates tasks
    Dialect, Session, ReadsCutTurns, Host        how a model writes actions
    Rule                                         credit for every node
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from ramet.budget import Budget
from ramet.types import Completion, Meter, Node, Prompt, Refusal, Slip, Stop, Task, Tree, Verdict

if TYPE_CHECKING:
    from ramet.credit.records import Credits, Group
    from ramet.tokens.render import Renderer

HostFunction = Callable[..., Any]  # plain or async; its signature and docstring are what the model reads


class Engine(Protocol):
    """Samples one completion for one prompt, without any notion of tasks or trees.

    `renderer` turns messages into prompts for its model: token ids, or text.
    """

    @property
    def renderer(self) -> Renderer: ...

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
        """Sample at most `max_tokens` tokens; `meter` counts them as they are generated."""
        ...


@runtime_checkable
class Caching(Protocol):
    """An engine that caches the computation of a node until the node has ended."""

    def ended(self, node_id: str) -> None: ...


@runtime_checkable
class Windowed(Protocol):
    """An engine that reports the window of its model, in tokens."""

    @property
    def window(self) -> int: ...


class World(Protocol):
    """The live state of one task, shared by all nodes of the tree.

    `functions` are what the model may call, by name; `context` has the texts that nodes can read or hand to clones, by
    key.
    """

    @property
    def functions(self) -> Mapping[str, HostFunction]: ...

    @property
    def context(self) -> Mapping[str, str]: ...


class TaskWorld:
    """The default world: the texts of the task and no functions."""

    def __init__(self, task: Task) -> None:
        self.context: Mapping[str, str] = task.context
        self.functions: Mapping[str, HostFunction] = {}


@runtime_checkable
class NodeObserver(Protocol):
    """A world that is notified when a node is spawned and when it ends.

    Verdicts can then depend on what changed in between.
    """

    def spawned(self, node: Node) -> None: ...
    def ended(self, node: Node) -> None: ...


class Taskset(Protocol):
    """Tasks whose nodes can be graded, and an oracle that solves them.

    `about` describes the taskset in one line, `splits` each of its splits. `task(split, index)` is the same on every
    machine. `world` makes the state that a tree on the task works in, `budget` limits that are enough for the oracle.
    `verdict` grades a node against its own goal; None means that only a judge can grade it, which for the root happens
    only if the user chose a judge. `oracle` demonstrates the task, alone or delegating. `self_check` returns the scores
    of a right and of a wrong solution.
    """

    @property
    def name(self) -> str: ...
    @property
    def about(self) -> str: ...
    @property
    def splits(self) -> Mapping[str, str]: ...

    def size(self, split: str) -> int | None:
        """Number of tasks in a split; None for an endless generator."""
        ...

    def task(self, split: str, index: int) -> Task: ...
    def world(self, task: Task) -> World: ...
    def budget(self, task: Task) -> Budget: ...
    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None: ...
    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Oracle: ...
    def self_check(self, task: Task) -> tuple[float, float]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What an oracle sees of its node: the goal, and the results of each of its moves so far."""

    goal: str
    depth: int  # 0: the root
    history: tuple[tuple[str, ...], ...] = ()  # per move: a text per call, then per clone; none if it was cut off
    keys: tuple[str, ...] | None = None  # of the texts that the node has, if known
    tokens: int | None = None  # what the node may still spend, clones included, if known
    opening: str = ""  # the message with the goal and the texts that the node was given, if known

    @property
    def turn(self) -> int:
        return len(self.history)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Part of a move: give a clone this goal, with the texts of these keys."""

    goal: str
    context: tuple[str, ...] = ()
    tokens: int | None = None  # to ask for; None: a share of what the node has


@dataclass(frozen=True, slots=True, kw_only=True)
class Do:
    """Part of a move: call a function of the world."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One turn of an oracle: functions to call and clones to ask, in parallel; or an answer."""

    thought: str = ""  # text before the actions
    does: tuple[Do, ...] = ()
    asks: tuple[Ask, ...] = ()
    answer: str | None = None
    mistake: bool = False  # shown so that recovering from it can be learnt; it carries no loss itself
    slip: Slip = ""  # the mistake, if it is a call written in a wrong form


class Oracle(Protocol):
    """A program that demonstrates tasks, in any dialect. Nodes run in parallel: a move follows from the view alone."""

    def move(self, view: View) -> Move: ...


class NodeJudge(Protocol):
    """Grades the nodes that a taskset cannot grade."""

    async def verdict(self, node: Node, tree: Tree) -> Verdict | None:
        """None when no verdict could be reached."""
        ...


@runtime_checkable
class Comparing(Protocol):
    """A taskset that can compare two answers without the reference. Majority votes use it.

    Without it, two answers are the same if their words are equal, or if both are the same numbers.
    """

    def same(self, task: Task, one: str, other: str) -> bool: ...


@runtime_checkable
class ComparesGoals(Protocol):
    """A taskset that can tell whether two goals are the same. Without it, their words are compared."""

    def same_goal(self, task: Task, goal: str, other: str) -> bool:
        """Whether `goal` asks for all that `other` asks for, or for more."""
        ...


@runtime_checkable
class HasSizes(Protocol):
    """A taskset whose tasks have a size: operators, hops, lines. Training covers a range of sizes."""

    def size_of(self, task: Task) -> float | None: ...
    def sizes(self, split: str) -> tuple[float, float] | None:
        """The smallest and the largest possible size."""
        ...


@runtime_checkable
class NamesSizes(Protocol):
    """A taskset with a word for what its sizes count, for tables and plots: `codes`, `operators`, `hops`."""

    @property
    def size_unit(self) -> str: ...


@runtime_checkable
class KnowsImpossible(Protocol):
    """A taskset that can recognise some goals that no node can meet."""

    def impossible(self, task: Task, goal: str) -> bool: ...


@runtime_checkable
class ExplainsImpossible(Protocol):
    """A taskset that also gives the reason why a goal cannot be met, for the model that asked for it."""

    def why_impossible(self, task: Task, goal: str) -> str | None:
        """The reason; None unless the goal is known to be impossible."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One child, as the model asked for it.

    `context` names texts by key; `text` is a value passed directly (python dialect); `returns` is the type wanted.
    """

    goal: object
    context: Sequence[object] = ()
    text: object = None
    tokens: object = None
    returns: object = None
    call: int = 0  # index of its call in the turn: the limit on children is per call


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one request: the child's answer, why there is none, or why it was refused."""

    goal: str
    answer: str | None = None
    value: object = None
    stop: Stop | None = None  # None: refused, never started
    error: str | None = None
    refused: str = ""  # kind of the refusal
    missing: tuple[str, ...] = ()  # context keys that do not exist


class Child(Protocol):
    """A child that has its loan and has not started yet."""

    async def run(self) -> Report: ...


class Host(Protocol):
    """The runtime, as a dialect's session sees it: one per node."""

    @property
    def node(self) -> Node: ...
    @property
    def functions(self) -> Mapping[str, HostFunction]: ...
    @property
    def context(self) -> Mapping[str, str]: ...
    @property
    def reads_texts(self) -> bool:
        """Whether its texts are in its prompt: true for clones, and for a root that cannot delegate."""
        ...

    @property
    def text(self) -> object: ...
    @property
    def returns(self) -> object: ...
    @property
    def result_bytes(self) -> int: ...
    @property
    def output_bytes(self) -> int: ...
    @property
    def budget(self) -> Budget: ...

    def admit(self, requests: Sequence[Request], *, awaited: int = 0) -> list[Child | Refusal]:
        """Grant or refuse all requests together; start none. `awaited` counts children still running."""
        ...

    async def run_all(self, requests: Sequence[Request]) -> list[Report]:
        """Admit the children, run them in parallel and wait for all."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """Labelled text for a node's next message. Each result is shortened separately when the window is short."""

    label: str
    text: str
    call: int | None = None  # index of its call in the turn, if it belongs to one


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The effect of one turn."""

    done: bool = False
    answer: str | None = None
    value: object = None
    results: list[Result] = field(default_factory=list[Result])
    action: object = None  # what the turn did, without the thinking before it; None: its whole text
    repairs: int = 0
    faults: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """What a node may still spend."""

    tokens: int
    turns: int
    clones: int
    levels: int
    seconds: float | None = None


class Session(Protocol):
    """One node's side of a dialect."""

    async def act(self, text: str, *, finish: Literal["stop", "length"]) -> Outcome:
        """Carry out the actions of a turn."""
        ...

    async def close(self, text: str) -> Outcome:
        """Read the final answer from the last turn; nothing can be started."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CutAnswer:
    """The answer in a turn that was cut off. `marked`: it was written as the answer, as in `Answer: 42`."""

    text: str
    marked: bool = False


@runtime_checkable
class ReadsCutTurns(Protocol):
    """A session that finds the answer in a turn that was cut off. There is no time to await anything."""

    def answer_in_cut(self, text: str) -> CutAnswer | None: ...


class Dialect(Protocol):
    """How a model writes actions.

    `stop` are texts that end a completion. `system` is the system prompt, `opening` the first message of a node,
    `results` the message after a turn, `closing` the request for a final answer. `session` makes the part that reads
    and carries out the turns of one node.
    """

    @property
    def name(self) -> str: ...
    @property
    def stop(self) -> Sequence[str]: ...

    def system(self, *, functions: Mapping[str, HostFunction], may_delegate: bool, child: bool) -> str: ...
    def opening(self, host: Host, *, missing: Sequence[str]) -> str: ...
    def results(self, results: Sequence[Result]) -> str: ...
    def remaining(self, remaining: Remaining) -> str:
        """What a node may still spend, as text for the model."""
        ...

    def closing(self, why: Stop) -> str: ...
    def session(self, host: Host) -> Session: ...


class Rule(Protocol):
    """Assigns credit to every node of a batch.

    One call gets all groups of a training step, because some rules weight a node by the number of nodes at its depth.
    """

    def credit(self, groups: Sequence[Group]) -> Credits: ...
