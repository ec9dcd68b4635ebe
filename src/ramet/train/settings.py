"""What a training run is asked to do: the knobs of `ramet train` and `ramet warmstart`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ramet.budget import Budget
from ramet.config import build
from ramet.errors import ConfigError
from ramet.tasks.registry import spec_of
from ramet.train.local.losses import Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerConfig:
    """How the model is held: the engine that samples and the learner share one module."""

    device: str | None = None  # cpu, cuda, cuda:1; a GPU if there is one
    dtype: Literal["bfloat16", "float16", "float32"] | None = None  # bfloat16 on a GPU, else float32
    max_batch: int | None = None  # requests computed together
    cache_tokens: int | None = None  # tokens whose keys and values are kept
    window: int | None = None  # longest text in tokens; what the model was made for unless said


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConfig:
    """How gradients become weights: AdamW, a rate that may rise at first and fall later."""

    learning_rate: float = 1e-5
    warmup_steps: int = 0  # steps in which the rate rises from nothing
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # after that, down to zero at the last step
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0  # longest gradient; longer ones are shortened to it
    micro_batch_tokens: int = 16_384  # packed tokens the model reads at once
    packed: bool | None = None  # None: where the model allows it
    gradient_checkpointing: bool = False  # less memory, a third more work
    lora_rank: int = 0  # rank of small matrices that are trained instead of the model's own; 0: its own
    lora_alpha: float = 32.0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_grad_norm", "micro_batch_tokens"):
            _check(f"update.{name}", getattr(self, name), least=0, included=False)
        for name in ("warmup_steps", "weight_decay", "lora_rank", "lora_alpha"):
            _check(f"update.{name}", getattr(self, name), least=0)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"update.betas are two numbers from 0 to below 1; got {self.betas!r}")

    def rate_at(self, step: int, steps: int) -> float:
        """The rate of one step of many, counted from 0. It depends on nothing else, so a resumed run finds it again.

        Example:
            UpdateConfig(learning_rate=0.1, warmup_steps=2, schedule="linear").rate_at(0, 12)  # 0.05
            UpdateConfig(learning_rate=0.1, warmup_steps=2, schedule="linear").rate_at(7, 12)  # 0.05
        """
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, steps - self.warmup_steps)
        match self.schedule:
            case "constant":
                return self.learning_rate
            case "linear":
                return self.learning_rate * (1 - done)
            case "cosine":
                return self.learning_rate * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """Tasks that are only played, now and then."""

    every: int = 0  # steps; 0: never
    task: str = ""  # NAME:SPLIT; empty: the trained taskset's split `eval`
    num_tasks: int = 64
    temperature: float = 1.0

    def __post_init__(self) -> None:
        _check("eval.every", self.every, least=0)
        _check("eval.num_tasks", self.num_tasks, least=1)
        _check("eval.temperature", self.temperature, least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One run: collect groups of trees, credit every node, update, again."""

    name: str = "train"  # of the run directory
    model: str = "smollm2"  # or a Hugging Face folder
    task: str = "arithmetic:train"  # NAME:SPLIT
    taskset: dict[str, Any] = field(default_factory=dict[str, Any])  # options of the taskset
    dialect: str = "tools"
    steps: int = 100
    tasks_per_step: int = 8
    group_size: int = 8  # trees per task
    overlap: int = 0  # steps collected while an earlier one is learnt: their weights may be so much older
    seed: int = 0
    temperature: float = 1.0
    budget: dict[str, Any] = field(default_factory=dict[str, Any])  # laid over the task's own; [least, most]: drawn
    budget_per: Literal["tree", "task"] = "tree"  # whether trees of one task draw apart or alike
    show_budget: bool = False  # the model is told what it has left
    rule: str = "rao"  # of credit
    credit: dict[str, Any] = field(default_factory=dict[str, Any])  # knobs of the rule
    loss: Loss = field(default_factory=Loss)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    warm: dict[str, Any] = field(default_factory=dict[str, Any])  # a supervised start before it; see `warm_of`
    track: tuple[str, ...] = ()  # who else gets the numbers: tensorboard, wandb, trackio
    max_logprob_gap: float = 0.1  # stop when sampler and learner differ by more than this in log-prob, on average
    save_every: int = 10  # steps
    keep_checkpoints: int = 2  # checkpoints
    minutes: float | None = None  # stop after so long, saved; None: when all steps are done

    def __post_init__(self) -> None:
        for name in ("steps", "tasks_per_step", "group_size", "save_every", "keep_checkpoints"):
            _check(name, getattr(self, name), least=1)
        _check("temperature", self.temperature, least=0, included=False)
        if self.minutes is not None:
            _check("minutes", self.minutes, least=0, included=False)
        _check("max_logprob_gap", self.max_logprob_gap, least=0, included=False)
        _check("overlap", self.overlap, least=0)
        if self.overlap and self.loss.kind == "plain" and self.loss.ceiling is None:
            raise ConfigError("overlap: trees of older weights need importance weights: cispo, ppo, or a loss.ceiling")
        spec_of(self.task)
        if self.eval.task:
            spec_of(self.eval.task)
        bounds_of(self.budget)
        warm_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmConfig:
    """A supervised start: show the model how an oracle, or another model, does it."""

    name: str = "warmstart"
    model: str = "smollm2"
    task: str = "arithmetic:train"  # NAME:SPLIT, demonstrated by its oracle
    taskset: dict[str, Any] = field(default_factory=dict[str, Any])
    run: str = ""  # a run directory whose trees are shown instead
    least: float = 1.0  # score of a root from which its tree is worth showing
    dialect: str = "tools"
    delegate: float = 0.5  # share of demonstrations that delegate
    steps: int = 100
    trees_per_step: int = 64
    seed: int = 0
    budget: dict[str, Any] = field(default_factory=dict[str, Any])
    show_budget: bool = False
    loss: Loss = field(default_factory=lambda: Loss(kind="plain", aggregation="token"))
    update: UpdateConfig = field(default_factory=lambda: UpdateConfig(learning_rate=1e-4))
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    track: tuple[str, ...] = ()
    save_every: int = 100
    keep_checkpoints: int = 1

    def __post_init__(self) -> None:
        for name in ("steps", "trees_per_step", "save_every", "keep_checkpoints"):
            _check(name, getattr(self, name), least=1)
        if not 0 <= self.delegate <= 1:
            raise ConfigError(f"delegate is a share from 0 to 1; got {self.delegate!r}")
        if self.loss.kind != "plain" or self.loss.ceiling is not None:
            raise ConfigError("a warm start has no ratios: loss.kind is plain, and loss.ceiling is not for it")
        spec_of(self.task)
        bounds_of(self.budget)


SHARED = ("task", "taskset", "dialect", "budget", "show_budget")  # what a supervised start may say otherwise
SAME = ("name", "model", "seed", "sampler", "track")  # what it may not


def warm_of(config: TrainConfig) -> WarmConfig | None:
    """The supervised start of a run: its table `warm`, laid over what the run itself says; None without steps."""
    steps, taken = config.warm.get("steps"), [name for name in SAME if name in config.warm]
    if config.warm and steps is None:
        raise ConfigError("warm.steps is missing: how many steps the supervised start has; 0 leaves it out")
    if taken:
        raise ConfigError(f"warm.{taken[0]} cannot be set: a run has one {taken[0]} for both parts")
    if not steps:
        return None
    shared = {name: getattr(config, name) for name in SHARED}
    warm = build(WarmConfig, shared | config.warm, inside="warm.")
    return replace(warm, name="warm", model=config.model, seed=config.seed, sampler=config.sampler)


Bounds = Mapping[str, tuple[Any, Any]]  # of limits, least and most


def bounds_of(budget: Mapping[str, Any]) -> Bounds:
    """Least and most of every limit that is set, each a limit that makes sense.

    Example:
        bounds_of({"tokens": [200, 900], "depth": 1})  # {"tokens": (200, 900), "depth": (1, 1)}
    """
    bounds: dict[str, tuple[Any, Any]] = {}
    for name, value in budget.items():
        ends: list[Any] = list(value) if isinstance(value, (list, tuple)) else [value, value]  # pyright: ignore[reportUnknownArgumentType]
        if len(ends) != 2 or (ends[0] != ends[1] and not all(type(end) is int for end in ends)):
            raise ConfigError(f"budget.{name} is a limit, or two whole numbers to draw it between; got {value!r}")
        if ends[0] != ends[1] and ends[0] > ends[1]:
            raise ConfigError(f"budget.{name}: the lower bound comes first; got {value!r}")
        for end in ends:
            build(Budget, {name: end}, inside="budget.")
        bounds[name] = (ends[0], ends[1])
    return bounds


def _check(name: str, value: float, *, least: float, included: bool = True) -> None:
    if not (least <= value if included else least < value) or value == math.inf:
        raise ConfigError(f"{name} is a number {f'from {least} up' if included else f'above {least}'}; got {value!r}")
