"""The settings of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ramet.budget import Budget
from ramet.config import TEMPERATURE, build
from ramet.engine.settings import EngineConfig, JudgeConfig
from ramet.errors import ConfigError
from ramet.evaluate.items import Trained
from ramet.evaluate.methods import parse_methods, tree_budget
from ramet.tasks.registry import parse_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Tasks, methods and budgets: every method runs under every budget on every task."""

    tasks: tuple[str, ...] = ()  # NAME:SPLIT each, or a taskset of your own: file.py:Name
    taskset: dict[str, Any] = field(default_factory=dict[str, Any])  # options of the tasksets
    world: str = ""  # a world of your own for the tasks, file.py:Name; empty: the taskset's
    methods: tuple[str, ...] = ("single", "clones")
    budgets: tuple[int, ...] = ()  # generated tokens per item; empty: what each task declares
    num_tasks: int = 100  # of each split
    dialect: str = "tools"
    temperature: float = TEMPERATURE
    seed: int = 0
    show_budget: bool = False  # whether messages say what the node may still spend
    allow_same_goal: bool = False  # whether a clone may get the goal of its parent or of another ancestor
    allow_impossible: bool = True  # whether a clone may get a goal that the taskset knows to be impossible
    instructions: str = ""  # added to the system prompt of every node
    delegate_instructions: str = ""  # added to the system prompt of nodes that may delegate
    trained: str = ""  # LEAST:MOST sizes the model was trained on; empty: as its run directory says
    concurrency: int = 64  # trees in parallel
    budget: dict[str, Any] = field(default_factory=dict[str, Any])  # limits that override the task's own
    engine: EngineConfig = field(default_factory=EngineConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)

    def __post_init__(self) -> None:
        for spec in self.tasks:
            parse_spec(spec)
        if len(set(self.budgets)) < len(self.budgets) or any(tokens < 1 for tokens in self.budgets):
            raise ConfigError(f"budgets are numbers of tokens from 1 up, each once; got {list(self.budgets)}")
        methods = parse_methods(self.methods)
        for method in methods:
            for tokens in self.budgets:
                tree_budget(method, Budget(), tokens=tokens, limits={})
        for name in ("num_tasks", "concurrency"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is a whole number from 1 up; got {getattr(self, name)}")
        if not 0 <= self.temperature <= 2:
            raise ConfigError(f"temperature is a number from 0 to 2; got {self.temperature!r}")
        greedy = [method.name for method in methods if method.trees > 1 and not self.temperature]
        if greedy:
            raise ConfigError(f"{greedy[0]} needs a temperature above 0: at 0 all its trees are the same")
        parse_limits(self.budget)
        parse_range(self.trained)


def parse_limits(budget: Mapping[str, Any]) -> dict[str, Any]:
    """The limits that are set, checked. Tokens are not among them: they come from `budgets`."""
    if "tokens" in budget:
        raise ConfigError("budget.tokens cannot be set in an evaluation: give --budgets 1000,2000")
    built = build(Budget, budget, inside="budget.")
    return {name: getattr(built, name) for name in budget}


def parse_range(text: str) -> Trained | None:
    """A range of sizes; None for an empty text.

    Example:
        parse_range("3:10")  # Trained(None, 3.0, 10.0)
    """
    if not text:
        return None
    try:
        least, most = (float(end) for end in text.split(":"))
    except ValueError:
        raise ConfigError(f"trained is LEAST:MOST, two sizes like 3:10; got {text!r}") from None
    if not least <= most:
        raise ConfigError(f"trained is LEAST:MOST, the smaller size first; got {text!r}")
    return Trained(None, least, most)
