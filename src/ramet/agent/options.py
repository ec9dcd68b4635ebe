"""How a tree is run: one record, passed on unchanged from commands and loops down to `TreeRun`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, SupportsIndex, cast

from ramet.budget import Budget
from ramet.config import TEMPERATURE
from ramet.errors import ConfigError
from ramet.interfaces import Dialect, Engine, NodeJudge, World

if TYPE_CHECKING:
    from ramet.agent.tree import TreeRun


class TreeSettings(Protocol):
    """What the settings of `ramet run`, `eval` and `train` have in common: see `TreeOptions`."""

    @property
    def dialect(self) -> str: ...
    @property
    def temperature(self) -> float: ...
    @property
    def show_budget(self) -> bool: ...
    @property
    def allow_same_goal(self) -> bool: ...
    @property
    def allow_impossible(self) -> bool: ...
    @property
    def instructions(self) -> str: ...
    @property
    def delegate_instructions(self) -> str: ...


class TreeWatcher(Protocol):
    """Is given every tree when it starts and when it ends. It reads the tree in between and changes nothing."""

    def started(self, run: TreeRun) -> None: ...
    def ended(self, run: TreeRun) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """What one node of a forked tree may not do: delegate from a turn on, or start one clone of a turn."""

    path: tuple[int, ...]  # of the node
    turn: int
    clone: int | None = None  # the last number of the clone's path; None: no clone from this turn on

    def forbids_delegation(self, path: tuple[int, ...], turn: int) -> bool:
        return self.clone is None and path == self.path and turn >= self.turn

    def forbids_clone(self, path: tuple[int, ...]) -> bool:
        return self.clone is not None and path == (*self.path, self.clone)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOverride:
    """The message that one node of a forked tree reads before one of its turns, instead of the recorded one."""

    path: tuple[int, ...]  # of the node
    turn: int
    text: str

    def at(self, path: tuple[int, ...], turn: int) -> bool:
        return (path, turn) == (self.path, self.turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOptions:
    """The engine, the limits and the sampling of one tree. Use `dataclasses.replace` for another seed or budget.

    Example:
        TreeOptions(engine=engine, budget=Budget(tokens=4000), dialect="python", seed=7)
    """

    engine: Engine
    clone_engine: Engine | None = None  # of all nodes but the root; None: the same
    budget: Budget | None = None  # None: the taskset's, or the default budget
    dialect: Dialect | str = "tools"
    world: World | None = None  # None: the taskset's, or the task's texts without functions
    temperature: float = TEMPERATURE
    seed: int | None = None  # None: the engine draws its own
    show_budget: bool = False  # whether messages state what the node may still spend
    judge: NodeJudge | None = None  # grades nodes that the taskset cannot grade
    same_goal: Callable[[str, str], bool] | None = None  # whether the first goal is the second; None: by its words
    goal_size: Callable[[str], float | None] | None = None  # of a goal; None: by its length and that of its texts
    impossible: Callable[[str], str | None] | None = None  # why a goal cannot be met, or None if it can
    allow_same_goal: bool = False  # whether a clone may get the goal of its parent or of another ancestor
    allow_impossible: bool = True  # whether a clone may get a goal that cannot be met
    instructions: str = ""  # added to the system prompt of every node
    delegate_instructions: str = ""  # added to the system prompt of nodes that may delegate
    restriction: Restriction | None = None  # of a forked tree
    message_override: MessageOverride | None = None  # of a forked tree
    watcher: TreeWatcher | None = None  # is given every tree when it starts and ends
    name: str = ""  # the id that the tree will be stored under, for the watcher; empty: its own id
    elapsed_s: float = 0.0  # of the tree's time; a forked tree begins with what was used before the fork

    @classmethod
    def from_settings(cls, settings: TreeSettings, *, engine: Engine, **others: Any) -> Self:
        """The options that these settings name, with an engine. `others` are fields too, and override settings."""
        named: dict[str, Any] = {
            "dialect": settings.dialect,
            "temperature": settings.temperature,
            "show_budget": settings.show_budget,
            "allow_same_goal": settings.allow_same_goal,
            "allow_impossible": settings.allow_impossible,
            "instructions": settings.instructions,
            "delegate_instructions": settings.delegate_instructions,
        }
        return cls(engine=engine, **named | others)

    def __post_init__(self) -> None:
        number = cast(object, self.temperature)
        if not isinstance(number, int | float) or not 0 <= number < math.inf:
            raise ConfigError(f"temperature is a number from 0 up; got {number!r}")
        given = cast(object, self.engine)
        if given is None:
            raise ConfigError(f"engine is missing: give an object like {AN_ENGINE}")
        _check_kind("engine", given, "sample", AN_ENGINE)
        _check_kind("clone_engine", self.clone_engine, "sample", AN_ENGINE)
        _check_kind("budget", self.budget, "ledger", "ramet.Budget(tokens=4000)")
        _check_kind("world", self.world, "functions", A_WORLD)
        _check_kind("world", self.world, "context", A_WORLD)
        _check_kind("judge", self.judge, "verdict", "ramet.Judge(engine)")
        if not isinstance(self.dialect, str) and not hasattr(self.dialect, "session"):
            raise ConfigError(f'dialect is a name like "tools" or an object like {A_DIALECT}; got {self.dialect!r}')
        if self.seed is not None and not isinstance(cast(object, self.seed), SupportsIndex):
            raise ConfigError(f"seed is a whole number; got {self.seed!r}")
        for name in ("instructions", "delegate_instructions"):
            if not isinstance(text := getattr(self, name), str):
                raise ConfigError(f"{name} is a text; got {text!r}")


A_DIALECT = "ramet.PythonDialect()"
A_WORLD = 'types.SimpleNamespace(functions={"search": search}, context={})'
AN_ENGINE = 'ramet.HttpEngine("http://127.0.0.1:8000/v1", model="my-model")'


def _check_kind(name: str, value: object, needed: str, example: str) -> None:
    """Refuse an address where an engine is needed, or a dictionary where a budget or a world is."""
    if isinstance(value, type):
        raise ConfigError(f"{name} must be an object like {example}; got the class {value.__name__}")
    if value is not None and not (hasattr(type(value), needed) or hasattr(value, needed)):  # a property is not read
        kind = type(value).__name__
        raise ConfigError(f"{name} must be an object like {example}; got {'an' if kind[0] in 'aeiou' else 'a'} {kind}")
