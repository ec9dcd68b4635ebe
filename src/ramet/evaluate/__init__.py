"""Compare methods under the same budgets on the same tasks: accuracy, cost, and how sure the difference is.

evaluation = await ramet.evaluate(["craft:easy"], engine=engine, methods=["single", "clones"], budgets=[1000], n=50)
print(evaluation.table())

`ramet.evaluate` is this package and can be called: that is `ramet.evaluate.evaluate`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ramet import CallablePackage

if TYPE_CHECKING:
    from ramet.evaluate.journal import read_records
    from ramet.evaluate.record import Record
    from ramet.evaluate.session import Evaluation, evaluate, resolve_eval_config, run_evaluation

_HOMES = {
    "Evaluation": "session",
    "Record": "record",
    "evaluate": "session",
    "read_records": "journal",
    "resolve_eval_config": "session",
    "run_evaluation": "session",
}

__all__ = ["Evaluation", "Record", "evaluate", "read_records", "resolve_eval_config", "run_evaluation"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ramet.evaluate' has no attribute {name!r}")
    return getattr(import_module(f"ramet.evaluate.{_HOMES[name]}"), name)


sys.modules[__name__].__class__ = CallablePackage
