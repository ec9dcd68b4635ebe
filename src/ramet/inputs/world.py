"""The world of a question: its texts, and functions from several places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ramet.agent.functions import notify
from ramet.agent.recording import Replayable
from ramet.errors import ConfigError
from ramet.interfaces import HostFunction, NodeObserver, World
from ramet.types import Node

RESERVED = ("delegate", "finish", "context", "asyncio")  # names that dialects give to something else


@dataclass(frozen=True, slots=True)
class InputWorld:
    """Texts by key and functions by name."""

    context: Mapping[str, str]
    functions: Mapping[str, HostFunction]


@dataclass(frozen=True, slots=True)
class RepeatableWorld(InputWorld):
    """The same, for functions that can be called again: its trees can be forked (`Replayable`)."""

    order_matters: bool


class ObservedWorld:
    """The same, for parts that are notified when nodes start and end."""

    def __init__(self, world: World, observers: Sequence[NodeObserver]) -> None:
        self.context, self.functions = world.context, world.functions
        if isinstance(world, Replayable):
            self.order_matters = world.order_matters
        self._observers = observers

    def spawned(self, node: Node) -> None:
        for observer in self._observers:
            notify(observer, "spawned", node)

    def ended(self, node: Node) -> None:
        for observer in self._observers:
            notify(observer, "ended", node)


def join_worlds(named: Mapping[str, World]) -> World:
    """One world with the texts and functions of all. A name that two of them have is refused."""
    context: dict[str, str] = {}
    functions: dict[str, HostFunction] = {}
    home: dict[str, str] = {}
    for source, world in named.items():
        for key in world.context:
            if key in context:
                raise ConfigError(f"two texts have the key {key!r}: {home[f'text {key}']} and {source}; rename one")
            home[f"text {key}"] = source
        for name in world.functions:
            check_name(name, source)
            if name in functions:
                raise ConfigError(f"two functions are named {name}: in {home[name]} and in {source}; rename one")
            home[name] = source
        context |= world.context
        functions |= world.functions
    joined = repeatable(context, functions, [world for world in named.values() if world.functions])
    observers = [world for world in named.values() if isinstance(world, NodeObserver)]
    return ObservedWorld(joined, observers) if observers else joined


def repeatable(
    context: Mapping[str, str], functions: Mapping[str, HostFunction], sources: Sequence[object]
) -> InputWorld:
    """A world with these functions, which can be called again if all their sources declare `order_matters`."""
    declared = [source.order_matters for source in sources if isinstance(source, Replayable)]
    if not sources or len(declared) < len(sources):
        return InputWorld(context, functions)
    return RepeatableWorld(context, functions, any(declared))


def check_name(name: str, source: str) -> None:
    """Refuse a function name that no dialect could call, or that means something else."""
    if not name.isidentifier():
        raise ConfigError(f"{source}: a function cannot be named {name!r}: use letters, digits and underscores")
    if name in RESERVED:
        raise ConfigError(f"{source}: a function cannot be named {name}, which models use for something else")
