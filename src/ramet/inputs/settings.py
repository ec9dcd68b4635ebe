"""Settings of one tree: its question and what comes with it, how it is run, and by which model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ramet.budget import Budget
from ramet.config import AUTO, TEMPERATURE
from ramet.engine.settings import EngineConfig, JudgeConfig
from ramet.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One tree on one question, or on one task of a taskset."""

    question: str = ""  # or NAME:SPLIT/INDEX, like craft:hard/17
    context: tuple[str, ...] = ()  # files with texts that the nodes may read and hand over; - is standard input
    context_bytes: int = 16 * 2**20  # most bytes of all these texts together
    functions: tuple[str, ...] = ()  # Python files with functions that the model may call: FILE or FILE:NAME
    mcp: tuple[str, ...] = ()  # MCP servers whose tools the model may call: commands or URLs
    mcp_env: tuple[str, ...] = ()  # names of environment variables that commands in `mcp` get
    call_s: float = 30.0  # seconds that a call of such a function or tool may take
    concurrency: int = 8  # questions of --questions that run at the same time
    taskset: dict[str, Any] = field(default_factory=dict[str, Any])  # options of the taskset
    world: str = ""  # a world of your own, file.py:Name; empty: the task's texts, or the taskset's world
    dialect: str = AUTO  # native where the server calls tools, else tools; or one of your own, file.py:Name
    temperature: float = TEMPERATURE
    seed: int | None = None
    show_budget: bool = False  # tell the model what it may still spend
    allow_same_goal: bool = False  # a node may give its own goal, or an ancestor's, to a clone
    allow_impossible: bool = True  # a node may give a clone a goal that the taskset knows to be impossible
    instructions: str = ""  # added to the system prompt of every node
    delegate_instructions: str = ""  # added to that of nodes that may delegate
    engine: EngineConfig = field(default_factory=EngineConfig)
    clone: EngineConfig = field(default_factory=EngineConfig)  # of all nodes but the root; without a model: the same
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 2:
            raise ConfigError(f"temperature is a number from 0 to 2; got {self.temperature!r}")
        for name in ("context_bytes", "call_s", "concurrency"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is a number above 0; got {getattr(self, name)!r}")
