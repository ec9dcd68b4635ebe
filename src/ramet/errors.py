"""What can go wrong, in two families.

RametError
├── ConfigError       a flag, key or value the user gave   -> one line, exit code 2
├── EngineError       the model server failed or broke its word
│   ├── EngineBusy         it may work in a moment: engines retry it themselves
│   └── EngineInterrupted  it broke off in the middle: the node pays for what it saw, and tries again
├── StoreError        a run directory that cannot be read  -> one line, exit code 2
├── TrainError        trees or numbers no one can learn from -> one line, exit code 2
└── ModelFault        what the model did wrong: becomes text on its node, never leaves the tree
    ├── BudgetExhausted
    └── MalformedAction
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ramet.types import Tree


class RametError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(RametError):
    """A flag, configuration key or value that is not accepted."""


class EngineError(RametError):
    """The engine could not complete a request.

    `tree` is the tree as far as it got, when the request was the root's own.
    """

    tree: Tree | None = None


class EngineBusy(EngineError):
    """A failure that may pass: worth another attempt after `retry_after_s`."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineInterrupted(EngineError):
    """A call that broke off after tokens had been generated. They are paid for before it is tried again."""


class StoreError(RametError):
    """A run directory that cannot be read or written."""


class TrainError(RametError):
    """Trees, rewards or gradients that training cannot go on with. Better to stop than to learn from a zero."""


class ModelFault(RametError):
    """The model's own mistake: a value on its node, text to its parent."""


class BudgetExhausted(ModelFault):
    """A purchase the ledger refused. Nothing was changed."""


class MalformedAction(ModelFault):
    """A turn, a call or an argument that cannot be understood."""
