"""The seams. Everything else in ramet is a function or a record.

An engine, a dialect and a world are each one class that fits its Protocol; none of them inherits anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from ramet.budget import Budget
from ramet.tokens.render import Renderer
from ramet.types import Completion, Meter, Node, Prompt, Refusal, Stop, Task, Verdict

if TYPE_CHECKING:
    from ramet.tasks.oracle import Oracle

HostFunction = Callable[..., Any]  # plain or async; its signature and docstring are what the model reads


class Engine(Protocol):
    """One completion for one prompt. Knows neither tasks nor trees."""

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
        """At most `max_tokens` tokens; `meter` counts them while they appear."""
        ...


@runtime_checkable
class Caching(Protocol):
    """An engine that keeps what it computed for a node until it hears that the node has ended."""

    def ended(self, node_id: str) -> None: ...


@runtime_checkable
class Windowed(Protocol):
    """An engine that knows the longest text its model can hold, in tokens."""

    @property
    def window(self) -> int: ...


class World(Protocol):
    """The live state of one task. Every node of the tree holds the same object."""

    @property
    def functions(self) -> Mapping[str, HostFunction]: ...

    @property
    def context(self) -> Mapping[str, str]: ...


@runtime_checkable
class Watcher(Protocol):
    """A world that keeps track of nodes, because their verdict depends on its state when they began and ended."""

    def spawned(self, node: Node) -> None: ...
    def ended(self, node: Node) -> None: ...


class Taskset(Protocol):
    """Tasks that can be checked at every node, with an oracle that shows how they are done.

    `task(split, index)` is the same on every machine. `verdict` says how well a node did what it was asked to, or None
    where only a judge could tell; for the root it knows, unless the user chose a judge. `self_check` scores a right
    and a wrong solution.
    """

    @property
    def name(self) -> str: ...
    @property
    def about(self) -> str: ...
    @property
    def splits(self) -> Mapping[str, str]: ...

    def size(self, split: str) -> int | None:
        """How many tasks a split has; None for a generator without end."""
        ...

    def task(self, split: str, index: int) -> Task: ...
    def world(self, task: Task) -> World: ...
    def budget(self, task: Task) -> Budget: ...
    def verdict(self, task: Task, world: World, node: Node) -> Verdict | None: ...
    def oracle(self, task: Task, *, delegate: bool, seed: int) -> Oracle: ...
    def self_check(self, task: Task) -> tuple[float, float]: ...


@runtime_checkable
class Comparing(Protocol):
    """A taskset that can tell whether two answers say the same, without a look at the right one.

    Votes are counted by it. Without it answers are the same when their words are, or the numbers they consist of.
    """

    def same(self, task: Task, one: str, other: str) -> bool: ...


@runtime_checkable
class Sized(Protocol):
    """A taskset whose tasks have a size: operators, hops, lines. What was trained on is a range of sizes."""

    def size_of(self, task: Task) -> float | None: ...
    def sizes(self, split: str) -> tuple[float, float] | None:
        """The smallest and the largest there can be."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a model asks of one child.

    `context` names texts by key; `text` hands a value over directly (python dialect); `returns` is the type wanted.
    """

    goal: object
    context: Sequence[object] = ()
    text: object = None
    tokens: object = None
    returns: object = None
    call: int = 0  # which call of the turn it belongs to: the limit on children is per call


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What comes back from one request: a child's answer, why there is none, or why it was refused."""

    goal: str
    answer: str | None = None
    value: object = None
    stop: Stop | None = None  # None: refused, never started
    error: str | None = None
    missing: tuple[str, ...] = ()  # context keys that do not exist


class Child(Protocol):
    """A child with its loan in hand, not yet started."""

    async def run(self) -> Report: ...


class Host(Protocol):
    """What the runtime does for a dialect's session: one per node."""

    @property
    def node(self) -> Node: ...
    @property
    def functions(self) -> Mapping[str, HostFunction]: ...
    @property
    def context(self) -> Mapping[str, str]: ...
    @property
    def reads_texts(self) -> bool:
        """Whether its texts are put before it: a clone's are, a root's only where there is nobody to hand them to."""
        ...

    @property
    def text(self) -> object: ...
    @property
    def returns(self) -> object: ...
    @property
    def result_bytes(self) -> int: ...
    @property
    def output_bytes(self) -> int: ...

    def admit(self, requests: Sequence[Request], *, beside: int = 0) -> list[Child | Refusal]:
        """Decide about all of them at once; nothing starts here. `beside`: others still awaited."""
        ...

    async def run_all(self, requests: Sequence[Request]) -> list[Report]:
        """Admit, run in parallel, wait for all."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """Text that goes back to a node, under a label. Each is shortened on its own when space is short."""

    label: str
    text: str


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one turn led to."""

    done: bool = False
    answer: str | None = None
    value: object = None
    results: list[Result] = field(default_factory=list[Result])
    repairs: int = 0
    faults: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a node may still spend."""

    tokens: int
    turns: int
    clones: int
    levels: int
    seconds: float | None = None


class Session(Protocol):
    """One node's side of a dialect."""

    async def act(self, text: str, *, finish: Literal["stop", "length"]) -> Outcome:
        """Do what a turn asks for."""
        ...

    async def close(self, text: str) -> Outcome:
        """Read the final answer out of a last turn: nothing can be started any more."""
        ...


class Dialect(Protocol):
    """How a model writes actions."""

    @property
    def name(self) -> str: ...
    @property
    def stop(self) -> Sequence[str]: ...

    def system(self, *, functions: Mapping[str, HostFunction], may_delegate: bool, child: bool) -> str: ...
    def opening(self, host: Host, *, missing: Sequence[str]) -> str: ...
    def results(self, results: Sequence[Result]) -> str: ...
    def left(self, left: Left) -> str:
        """What a node may still spend, in words it can plan with."""
        ...

    def closing(self, why: Stop) -> str: ...
    def session(self, host: Host) -> Session: ...
