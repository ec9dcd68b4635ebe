"""Methods under the same budget on the same tasks: what each costs, what it reaches, and whether one can tell.

from ramet.evaluate import evaluate
found = await evaluate(["craft:easy"], engine=engine, methods=["single", "clones"], budgets=[1000, 2000], n=50)
print(found.table())
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ramet.evaluate.journal import read_records
    from ramet.evaluate.record import Record
    from ramet.evaluate.run import Evaluation, evaluate

_HOMES = {"Evaluation": "run", "Record": "record", "evaluate": "run", "read_records": "journal"}

__all__ = ["Evaluation", "Record", "evaluate", "read_records"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ramet.evaluate' has no attribute {name!r}")
    return getattr(import_module(f"ramet.evaluate.{_HOMES[name]}"), name)
