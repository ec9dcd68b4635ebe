"""ramet: language models that split their work among clones of themselves, under budgets that hold.

    import ramet
    tree = await ramet.run("...", engine=engine, budget=ramet.Budget(tokens=4000, nodes=16, depth=3, seconds=60))

Names are loaded when first used: importing ramet costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ramet.agent.dialects.python import PythonDialect
    from ramet.agent.dialects.terse import TerseDialect
    from ramet.agent.dialects.tools import ToolsDialect
    from ramet.agent.sandbox import Sandbox
    from ramet.agent.tree import TreeRun, run
    from ramet.budget import Budget, Prices
    from ramet.engine.http import HttpEngine
    from ramet.engine.local import LocalEngine as LocalEngine
    from ramet.engine.scripted import Reply, ScriptedEngine
    from ramet.errors import ConfigError, EngineError, RametError, StoreError
    from ramet.store import RunDir, read_trees
    from ramet.types import Completion, Message, Node, Prompt, Stop, Task, Tree, Usage, Verdict

__version__ = "0.1.0"

_HOMES = {
    "agent.dialects.python": ["PythonDialect"],
    "agent.dialects.terse": ["TerseDialect"],
    "agent.dialects.tools": ["ToolsDialect"],
    "agent.sandbox": ["Sandbox"],
    "agent.tree": ["TreeRun", "run"],
    "budget": ["Budget", "Prices"],
    "engine.http": ["HttpEngine"],
    "engine.local": ["LocalEngine"],  # not in __all__: taking all names at once must not need torch
    "engine.scripted": ["Reply", "ScriptedEngine"],
    "errors": ["ConfigError", "EngineError", "RametError", "StoreError"],
    "store": ["RunDir", "read_trees"],
    "types": ["Completion", "Message", "Node", "Prompt", "Stop", "Task", "Tree", "Usage", "Verdict"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Budget",
    "Completion",
    "ConfigError",
    "EngineError",
    "HttpEngine",
    "Message",
    "Node",
    "Prices",
    "Prompt",
    "PythonDialect",
    "RametError",
    "Reply",
    "RunDir",
    "Sandbox",
    "ScriptedEngine",
    "Stop",
    "StoreError",
    "Task",
    "TerseDialect",
    "ToolsDialect",
    "Tree",
    "TreeRun",
    "Usage",
    "Verdict",
    "__version__",
    "read_trees",
    "run",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'ramet' has no attribute {name!r}")
    value = getattr(import_module(f"ramet.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOME_OF})
