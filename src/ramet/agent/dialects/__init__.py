"""How a model writes actions. A new dialect is one module and one line in `DIALECTS`.

One of your own needs no line: `my_dialect.py:Mine`, `package.module:Name`, or an entry point (`plugins.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ramet import plugins
from ramet.agent.dialects.native import NativeDialect
from ramet.agent.dialects.python import PythonDialect
from ramet.agent.dialects.terse import TerseDialect
from ramet.agent.dialects.tools import ToolsDialect
from ramet.errors import ConfigError, did_you_mean
from ramet.interfaces import Dialect

DIALECTS: dict[str, Callable[[], Dialect]] = {
    "tools": ToolsDialect,
    "native": NativeDialect,
    "python": PythonDialect,
    "terse": TerseDialect,
    "tools-returns": partial(ToolsDialect, returns=True),
}


def make_dialect(name: str, *, also: Sequence[str] = ()) -> Dialect:
    """A new dialect by its name, or by the reference of a plug-in. `also`: other words that the setting accepts."""
    if name in DIALECTS:
        return DIALECTS[name]()
    if plugins.is_reference(name) or name in plugins.entry_point_names("dialect"):
        return plugins.make(name, "dialect")
    known = [*also, *DIALECTS, *plugins.entry_point_names("dialect")]
    raise ConfigError(f"unknown dialect {name!r}: {did_you_mean(name, known)}")
