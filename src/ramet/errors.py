"""Every error that ramet raises on purpose.

RametError
├── ConfigError       a flag, key or value is not accepted       -> one line, exit code 2
│   ├── BudgetTooSmall     a task does not fit the window or the money it is given
│   └── PluginError        a class of the user's own returned something that cannot be used
├── EngineError       the model server failed or broke its contract
│   ├── EngineBusy         temporary: engines retry it themselves
│   └── EngineInterrupted  the call ended early: the node pays for the tokens it saw, then retries
├── StoreError        a run directory cannot be read or written  -> one line, exit code 2
├── ForkError         a tree cannot be forked at this turn       -> one line, exit code 2
├── TrainError        trees or numbers that cannot be trained on -> one line, exit code 2
├── OutputClosed      nothing reads standard output any more     -> nothing is printed, exit code 1
└── ModelFault        a mistake of the model: becomes text on its node, never leaves the tree
    ├── BudgetExhausted
    └── MalformedAction
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ramet.types import Tree

Lasting = Literal["unreachable", "rejected", "missing"]  # no connection to the server, a wrong API key, no such model
MAX_LISTED = 12  # accepted words that are listed beside a suggestion


class RametError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(RametError):
    """A flag, configuration key or value that is not accepted."""


class BudgetTooSmall(ConfigError):
    """A budget with which a task cannot even begin. `limit` is the setting that is too small: window or money."""

    def __init__(self, message: str, *, limit: Literal["window", "money"]) -> None:
        super().__init__(message)
        self.limit: Literal["window", "money"] = limit

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), limit=self.limit), self.args  # exceptions are restored without keywords


class PluginError(ConfigError):
    """A class of the user's own returned something that cannot be used."""


class EngineError(RametError):
    """The engine could not complete a request.

    `tree` is the tree so far, if the request was the root's. `lasting`: why other requests would fail, too.
    """

    tree: Tree | None = None

    def __init__(self, message: str, *, lasting: Lasting | None = None) -> None:
        super().__init__(message)
        self.lasting: Lasting | None = lasting


class EngineBusy(EngineError):
    """A temporary failure: retry after `retry_after_s`."""

    def __init__(self, message: str, *, retry_after_s: float | None = None, lasting: Lasting | None = None) -> None:
        super().__init__(message, lasting=lasting)
        self.retry_after_s = retry_after_s


class EngineInterrupted(EngineError):
    """A call that ended early, after generating tokens. They are paid for before the retry."""


class StoreError(RametError):
    """A run directory that cannot be read or written."""


class ForkError(RametError):
    """A tree that cannot be forked at this turn, or in this way."""


class TrainError(RametError):
    """Trees, rewards or gradients that cannot be trained on. The run stops instead of learning from wrong numbers."""


class OutputClosed(RametError):
    """Nothing reads standard output any more, as after `| head`."""


class ModelFault(RametError):
    """A mistake of the model: a value on its node, text for its parent."""


class BudgetExhausted(ModelFault):
    """The ledger refused a hold or a loan and changed nothing."""


class MalformedAction(ModelFault):
    """A turn, a call or an argument that cannot be parsed."""


def tried(times: int) -> str:
    """How often a request was made, for the end of an error.

    Example:
        tried(1), tried(3)  # "tried once", "tried 3 times"
    """
    return "tried once" if times == 1 else f"tried {times} times"


def did_you_mean(word: str, known: Iterable[str], *, prefix: str = "") -> str:
    """The end of an error about an unknown word: the nearest accepted one, and which ones are accepted.

    `prefix` is shown before every accepted word.

    Example:
        did_you_mean("crft", ["craft", "math"])  # "did you mean craft? (accepted: craft, math)"
        did_you_mean("xyz", ["craft", "math"])   # "accepted: craft, math"
    """
    accepted = list(known)
    listing = f"accepted: {', '.join(prefix + name for name in accepted)}" if accepted else "none is accepted"
    nearest = get_close_matches(word, accepted, n=1)
    if not nearest:
        return listing
    return f"did you mean {prefix}{nearest[0]}?" + (f" ({listing})" if len(accepted) <= MAX_LISTED else "")
