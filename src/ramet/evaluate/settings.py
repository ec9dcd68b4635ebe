"""What an evaluation is asked to do: the knobs of `ramet eval`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ramet.budget import Budget
from ramet.config import EngineConfig, JudgeConfig, build
from ramet.errors import ConfigError
from ramet.evaluate.items import Trained
from ramet.evaluate.methods import methods_of, tree_budget
from ramet.tasks.registry import spec_of


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Methods, budgets and tasks: every method under every budget on every task."""

    tasks: tuple[str, ...] = ()  # NAME:SPLIT each
    taskset: dict[str, Any] = field(default_factory=dict[str, Any])  # options of the tasksets
    methods: tuple[str, ...] = ("single", "clones")
    budgets: tuple[int, ...] = ()  # generated tokens per item; none: what each task declares
    num_tasks: int = 100  # of each split
    dialect: str = "tools"
    temperature: float = 0.7
    seed: int = 0
    show_budget: bool = False  # the model is told what it has left
    trained: str = ""  # LEAST:MOST sizes the model was trained on; empty: what its run directory says
    concurrency: int = 64  # trees run at the same time
    budget: dict[str, Any] = field(default_factory=dict[str, Any])  # other limits, laid over the task's own
    engine: EngineConfig = field(default_factory=EngineConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)

    def __post_init__(self) -> None:
        for spec in self.tasks:
            spec_of(spec)
        if len(set(self.budgets)) < len(self.budgets) or any(tokens < 1 for tokens in self.budgets):
            raise ConfigError(f"budgets are numbers of tokens from 1 up, each once; got {list(self.budgets)}")
        for method in methods_of(self.methods):
            for tokens in self.budgets:
                tree_budget(method, Budget(), tokens=tokens, limits={})
        for name in ("num_tasks", "concurrency"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is a whole number from 1 up; got {getattr(self, name)}")
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"temperature is a number from 0 up; got {self.temperature!r}")
        alike = [method.name for method in methods_of(self.methods) if method.trees > 1 and not self.temperature]
        if alike:
            raise ConfigError(f"{alike[0]} needs a temperature above 0: at 0 all its trees are the same")
        limits_of(self.budget)
        range_of(self.trained)


def limits_of(budget: Mapping[str, Any]) -> dict[str, Any]:
    """Limits that are set, each one that makes sense. Tokens are not among them: methods are compared at those."""
    if "tokens" in budget:
        raise ConfigError("budget.tokens is what cells differ in: give --budgets 1000,2000")
    built = build(Budget, budget, inside="budget.")
    return {name: getattr(built, name) for name in budget}


def range_of(text: str) -> Trained | None:
    """The sizes that `3:10` means.

    Example:
        range_of("3:10")  # Trained(None, 3.0, 10.0)
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
