"""ramet: train and run language models that split their work among clones of themselves, under hard budgets.

    import ramet
    tree = await ramet.run("...", engine=engine, budget=ramet.Budget(tokens=4000, nodes=16, depth=3, seconds=60))

This module has everything for running trees and for writing a taskset, a world, a credit rule or an engine of your
own. `ramet.train(...)` and `await ramet.evaluate(...)` train and evaluate; both are packages that can be called.

Names are loaded on first use, so that `import ramet` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ramet.agent.dialects.python import PythonDialect
    from ramet.agent.dialects.terse import TerseDialect
    from ramet.agent.dialects.tools import ToolsDialect
    from ramet.agent.fork import fork
    from ramet.agent.goals import SizesGoals
    from ramet.agent.options import TreeOptions
    from ramet.agent.recording import Replayable
    from ramet.agent.sandbox import Sandbox
    from ramet.agent.sync import run_sync
    from ramet.agent.tree import TreeRun, run
    from ramet.budget import Budget, Prices
    from ramet.credit import load_rule
    from ramet.credit.records import Credit, Credits, Group, Summary, group_trees, make_credits
    from ramet.engine.http import HttpEngine
    from ramet.engine.local import LocalEngine as LocalEngine
    from ramet.engine.scripted import Reply, ScriptedEngine
    from ramet.errors import ConfigError, EngineError, ForkError, RametError, StoreError, TrainError
    from ramet.evaluate.session import evaluate as evaluate
    from ramet.inputs.mcp import McpServer, mcp
    from ramet.interfaces import (
        Ask,
        ComparesGoals,
        Comparing,
        Dialect,
        Do,
        Engine,
        ExplainsImpossible,
        HasSizes,
        HostFunction,
        KnowsImpossible,
        Move,
        NodeJudge,
        NodeObserver,
        Oracle,
        Rule,
        Taskset,
        TaskWorld,
        View,
        World,
    )
    from ramet.store import RunDir, read_trees
    from ramet.tasks.check import exact_match
    from ramet.tasks.dice import Dice, in_eval
    from ramet.tasks.judge import Judge
    from ramet.tasks.oracle import Direct
    from ramet.tasks.peers.inspect_solver import inspect_solver as inspect_solver
    from ramet.tasks.play import demonstrate, grade, play
    from ramet.tasks.registry import load_taskset
    from ramet.tasks.validate import validate
    from ramet.tokens.render import TextRenderer, TokenRenderer
    from ramet.train.api import train as train
    from ramet.train.backend import Backend
    from ramet.types import Completion, Message, Meter, Node, Prompt, Stop, Task, Tree, Usage, Verdict

__version__ = "0.1.0"

_HOMES = {
    "agent.dialects.python": ["PythonDialect"],
    "agent.dialects.terse": ["TerseDialect"],
    "agent.dialects.tools": ["ToolsDialect"],
    "agent.fork": ["fork"],
    "agent.goals": ["SizesGoals"],
    "agent.options": ["TreeOptions"],
    "agent.recording": ["Replayable"],
    "agent.sandbox": ["Sandbox"],
    "agent.sync": ["run_sync"],
    "agent.tree": ["TreeRun", "run"],
    "budget": ["Budget", "Prices"],
    "credit": ["load_rule"],
    "credit.records": ["Credit", "Credits", "Group", "Summary", "group_trees", "make_credits"],
    "engine.http": ["HttpEngine"],
    "engine.local": ["LocalEngine"],  # not in __all__: `from ramet import *` must not need torch
    "engine.scripted": ["Reply", "ScriptedEngine"],
    "errors": ["ConfigError", "EngineError", "ForkError", "RametError", "StoreError", "TrainError"],
    "inputs.mcp": ["McpServer", "mcp"],
    "interfaces": [
        "Ask",
        "ComparesGoals",
        "Comparing",
        "Dialect",
        "Do",
        "Engine",
        "ExplainsImpossible",
        "HasSizes",
        "HostFunction",
        "KnowsImpossible",
        "Move",
        "NodeJudge",
        "NodeObserver",
        "Oracle",
        "Rule",
        "TaskWorld",
        "Taskset",
        "View",
        "World",
    ],
    "store": ["RunDir", "read_trees"],
    "tasks.check": ["exact_match"],
    "tasks.dice": ["Dice", "in_eval"],
    "tasks.judge": ["Judge"],
    "tasks.oracle": ["Direct"],
    "tasks.peers.inspect_solver": ["inspect_solver"],  # not in __all__: it needs inspect_ai
    "tasks.play": ["demonstrate", "grade", "play"],
    "tasks.registry": ["load_taskset"],
    "tasks.validate": ["validate"],
    "tokens.render": ["TextRenderer", "TokenRenderer"],
    "train.backend": ["Backend"],
    "types": ["Completion", "Message", "Meter", "Node", "Prompt", "Stop", "Task", "Tree", "Usage", "Verdict"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_PACKAGES = ("evaluate", "train")

__all__ = [
    "Ask",
    "Backend",
    "Budget",
    "ComparesGoals",
    "Comparing",
    "Completion",
    "ConfigError",
    "Credit",
    "Credits",
    "Dialect",
    "Dice",
    "Direct",
    "Do",
    "Engine",
    "EngineError",
    "ExplainsImpossible",
    "ForkError",
    "Group",
    "HasSizes",
    "HostFunction",
    "HttpEngine",
    "Judge",
    "KnowsImpossible",
    "McpServer",
    "Message",
    "Meter",
    "Move",
    "Node",
    "NodeJudge",
    "NodeObserver",
    "Oracle",
    "Prices",
    "Prompt",
    "PythonDialect",
    "RametError",
    "Replayable",
    "Reply",
    "Rule",
    "RunDir",
    "Sandbox",
    "ScriptedEngine",
    "SizesGoals",
    "Stop",
    "StoreError",
    "Summary",
    "Task",
    "TaskWorld",
    "Taskset",
    "TerseDialect",
    "TextRenderer",
    "TokenRenderer",
    "ToolsDialect",
    "TrainError",
    "Tree",
    "TreeOptions",
    "TreeRun",
    "Usage",
    "Verdict",
    "View",
    "World",
    "__version__",
    "demonstrate",
    "exact_match",
    "fork",
    "grade",
    "group_trees",
    "in_eval",
    "load_rule",
    "load_taskset",
    "make_credits",
    "mcp",
    "play",
    "read_trees",
    "run",
    "run_sync",
    "validate",
]


class CallablePackage(ModuleType):
    @property
    def __doc__(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The signature and the text of the function, which `help` then shows first, and the text of the package."""
        from inspect import getdoc

        name = self.__name__.rpartition(".")[2]
        return f"{self.__dict__['__doc__']}\n{name}{self.__signature__}\n\n{getdoc(self._function())}"

    @property
    def __signature__(self) -> Any:
        from inspect import signature

        return signature(self._function())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function()(*args, **kwargs)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__dict__["__all__"]})

    def _function(self) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"ramet.{name}")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'ramet' has no attribute {name!r}")
    value = getattr(import_module(f"ramet.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOME_OF, *_PACKAGES})
