"""Calls of a world's functions. They are the user's code: whatever one raises is text for the model.

Only a `ConfigError` ends the run: something is missing that no node can do without. So does whatever a world raises
that is notified of nodes.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from ramet.agent.wording import cut
from ramet.errors import ConfigError, ModelFault, RametError
from ramet.interfaces import HostFunction, NodeObserver
from ramet.plugins import describe
from ramet.types import Node

MAX_MESSAGE = 2000  # bytes of the message of an exception
KEPT = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)  # raised in a cell as they are


@dataclass(frozen=True, slots=True)
class Failed:
    """A call that raised."""

    error: Exception

    @property
    def text(self) -> str:
        """The message; with the name of the exception if it is not one that reports a mistake of the caller.

        The message of a `KeyError` is the bare key, which would be unclear without the name.
        """
        name, message = describe_error(self.error)
        if isinstance(self.error, ModelFault | ValueError | LookupError) and not isinstance(self.error, KeyError):
            return f"error: {message}"
        return f"error: {' '.join(f'{name}: {message}'.split())}"

    @property
    def for_cell(self) -> Exception:
        """The exception to raise in a cell."""
        name, message = describe_error(self.error)
        if isinstance(self.error, ModelFault):
            return ValueError(message)
        if isinstance(self.error, KEPT) and len(message.encode()) < MAX_MESSAGE // 2:
            return self.error
        return RuntimeError(f"{name}: {message}")


def describe_error(error: Exception) -> tuple[str, str]:
    """The name of an exception, and its message cut to a bounded size. A message that cannot be made is replaced."""
    written = "".join(traceback.format_exception_only(error)).rstrip("\n")
    return type(error).__name__, cut(written.partition(": ")[2], MAX_MESSAGE)


def check_arguments(function: HostFunction, arguments: Mapping[str, Any]) -> None:
    """Raise the `TypeError` of a call with these arguments, without making it."""
    own = getattr(function, "__func__", None)
    if own is not None and _fits(own, function, arguments):
        return
    inspect.signature(function).bind(**arguments)


def _fits(own: Callable[..., Any], method: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether a method takes these arguments. Its signature is read once for all objects of its class."""
    try:
        _signature(own).bind(method.__self__, **arguments)
    except (TypeError, ValueError):
        return False
    return True


_signature = lru_cache(maxsize=256)(inspect.signature)


def call(function: HostFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The function's value, or `Failed`."""
    try:
        return function(*args, **kwargs)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  the user's code may raise anything
        return Failed(error)


async def call_async(
    function: HostFunction, args: Sequence[Any], kwargs: Mapping[str, Any], *, then: Callable[[Any], Any] | None = None
) -> Any:
    """The value of a plain or an async function, passed through `then`; or `Failed`."""
    try:
        value = function(*args, **kwargs)
        value = await value if inspect.isawaitable(value) else value
        return value if then is None else then(value)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  as above
        return Failed(error)


def notify(observer: NodeObserver, event: Literal["spawned", "ended"], node: Node) -> None:
    """Notify a world that observes its nodes. What it raises is one error that names it."""
    try:
        getattr(observer, event)(node)
    except RametError:
        raise
    except Exception as error:
        raise ConfigError(f"{type(observer).__name__}.{event} raised {describe(error)}") from error
