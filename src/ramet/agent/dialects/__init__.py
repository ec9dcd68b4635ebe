"""How a model writes actions. A new dialect is one file and one line in `DIALECTS`."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from ramet.agent.dialects.python import PythonDialect
from ramet.agent.dialects.terse import TerseDialect
from ramet.agent.dialects.tools import ToolsDialect
from ramet.errors import ConfigError
from ramet.interfaces import Dialect

DIALECTS: dict[str, Callable[[], Dialect]] = {
    "tools": ToolsDialect,
    "python": PythonDialect,
    "terse": TerseDialect,
}


def make_dialect(name: str) -> Dialect:
    """The dialect of that name."""
    if name not in DIALECTS:
        near = get_close_matches(name, DIALECTS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"unknown dialect {name!r}: accepted are {', '.join(DIALECTS)}{hint}")
    return DIALECTS[name]()
