"""How a model writes actions. A new dialect is one module and one line in `DIALECTS`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ramet.agent.dialects.python import PythonDialect
from ramet.agent.dialects.terse import TerseDialect
from ramet.agent.dialects.tools import ToolsDialect
from ramet.errors import ConfigError, did_you_mean
from ramet.interfaces import Dialect

DIALECTS: dict[str, Callable[[], Dialect]] = {
    "tools": ToolsDialect,
    "python": PythonDialect,
    "terse": TerseDialect,
    "tools-returns": partial(ToolsDialect, returns=True),
}


def make_dialect(name: str) -> Dialect:
    """A new dialect by its name."""
    if name not in DIALECTS:
        raise ConfigError(f"unknown dialect {name!r}: {did_you_mean(name, DIALECTS)}")
    return DIALECTS[name]()
