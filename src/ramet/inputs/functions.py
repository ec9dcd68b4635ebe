"""Functions from a Python file: the public functions of `tools.py`, or a World, as functions a model may call.

They are other people's code, so every call has a time limit, and plain functions run in threads: one that blocks does
not hold up the other nodes. A thread cannot be stopped: the model reads that there was no result in time, and the
thread ends when its function does.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial, wraps
from types import ModuleType
from typing import Any, cast

import anyio

from ramet.errors import ConfigError
from ramet.inputs.threads import Threads
from ramet.inputs.world import InputWorld, ObservedWorld, repeatable
from ramet.interfaces import HostFunction, NodeObserver, World
from ramet.plugins import import_file, load, make, split_reference

WORLD = "World"  # the class of a file that is its world, if it has one of this name


def load_functions(reference: str, *, call_s: float) -> World:
    """The world in a Python file.

    `tools.py` is its class `World`, else its public functions, else its only public class. `tools.py:Name` is that
    class, function or object.
    """
    place, name = split_reference(reference)
    world = _named(reference) if place.endswith(".py") and name else _found(reference)
    threads = Threads()
    functions = {
        name: time_limited(function, call_s=call_s, threads=threads) for name, function in world.functions.items()
    }
    limited = repeatable(dict(world.context), functions, [world])
    return ObservedWorld(limited, [world]) if isinstance(world, NodeObserver) else limited


def _named(reference: str) -> World:
    found = load(reference, "function" if _is_routine(reference) else "world")
    if inspect.isroutine(found):
        return InputWorld({}, {found.__name__: found})
    return _checked(make(reference, "world"), reference)


def _is_routine(reference: str) -> bool:
    place, name = split_reference(reference)
    return inspect.isroutine(getattr(import_file(place, reference=reference), name, None))


def _found(file: str) -> World:
    """The world of a file that is named without `:Name`."""
    if not file.endswith(".py"):
        raise ConfigError(f"{file} is not a Python file: give tools.py or tools.py:Name")
    module = import_file(file)
    own = {name: value for name, value in vars(module).items() if _is_own(name, value, module)}
    functions = {name: value for name, value in own.items() if inspect.isroutine(value)}
    classes = [name for name, value in own.items() if inspect.isclass(value)]
    if WORLD in classes:
        return _checked(make(f"{file}:{WORLD}", "world"), file)
    if functions:
        return repeatable({}, functions, [module])
    if len(classes) == 1:
        return _checked(make(f"{file}:{classes[0]}", "world"), file)
    raise ConfigError(f"{file} has no public function and no class {WORLD}: there is nothing a model could call")


def _is_own(name: str, value: object, module: ModuleType) -> bool:
    return not name.startswith("_") and getattr(value, "__module__", None) == module.__name__


def _checked(world: World, reference: str) -> World:
    """The world, if its attributes are what their names say."""
    if not all(map(callable, _values(world.functions))):
        raise ConfigError(f"{reference}: functions is a dict of functions by name")
    if not all(isinstance(text, str) for text in _values(world.context)):
        raise ConfigError(f"{reference}: context is a dict of texts by key")
    return world


def _values(found: object) -> list[object]:
    return list(cast(Mapping[str, object], found).values()) if isinstance(found, Mapping) else [None]


def time_limited(function: HostFunction, *, call_s: float, threads: Threads) -> HostFunction:
    """The function as an async one that raises `TimeoutError` after `call_s` seconds. A plain one runs in a thread."""

    async def result(*args: Any, **kwargs: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(*args, **kwargs)
        value = await threads.run(partial(_without_exit, function, *args, **kwargs))
        return await value if inspect.isawaitable(value) else value

    @wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await within(call_s, partial(result, *args, **kwargs))

    return call


def _without_exit(function: HostFunction, *args: Any, **kwargs: Any) -> Any:
    """Call the function. `sys.exit()` ends the call, not the run."""
    try:
        return function(*args, **kwargs)
    except SystemExit as error:
        raise RuntimeError(f"the function called sys.exit({error.code!r})") from None


async def within(seconds: float, work: Callable[[], Awaitable[Any]]) -> Any:
    """The result of the work, or a `TimeoutError` if it takes longer."""
    with anyio.move_on_after(seconds):
        return await work()
    raise TimeoutError(f"no result within {seconds:g} seconds")
