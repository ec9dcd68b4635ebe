"""Training on trees: one loop for reward and demonstrations, over a `Backend` that holds the weights.

    import ramet
    run = ramet.train(model="smollm2", task="craft:train", steps=50, on_step=print)

`ramet.train` is this package and can be called: that is `ramet.train.train`. Names are loaded on first use. Outside
`ramet.train.local` nothing imports torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ramet import CallablePackage

if TYPE_CHECKING:
    from ramet.train.api import resume, train
    from ramet.train.settings import TrainConfig, WarmConfig

_HOMES = {"TrainConfig": "settings", "WarmConfig": "settings", "resume": "api", "train": "api"}

__all__ = ["TrainConfig", "WarmConfig", "resume", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ramet.train' has no attribute {name!r}")
    return getattr(import_module(f"ramet.train.{_HOMES[name]}"), name)


sys.modules[__name__].__class__ = CallablePackage
