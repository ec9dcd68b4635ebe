"""The settings of `ramet train` and `ramet warmstart`. Reading them loads no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast

from ramet.config import build
from ramet.credit.counterfactual import Counterfactual
from ramet.engine.settings import JudgeConfig
from ramet.errors import ConfigError
from ramet.models.folders import BUILTIN_MODELS, check_device_name
from ramet.store.checkpoints import WARM, newest_model
from ramet.tasks.registry import parse_spec
from ramet.train.backend_settings import BackendConfig
from ramet.train.bounds import inside_table, parse_bounds
from ramet.train.loss import Loss
from ramet.train.players.settings import CollectConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerConfig:
    """How the model is loaded; engine and learner share it."""

    device: str | None = None  # cpu, cuda, cuda:1; default: a GPU if there is one
    dtype: Literal["bfloat16", "float16", "float32"] | None = None  # bfloat16 on a GPU, else float32
    max_batch: int | None = None  # requests per engine step
    cache_tokens: int | None = None  # size of the key-value cache, in tokens
    keep_cache: bool = False  # nodes under way keep what older weights have read: faster, with `overlap`
    window: int | None = None  # longest text in tokens; default: what the model supports

    def __post_init__(self) -> None:
        for name in ("max_batch", "cache_tokens", "window"):
            if getattr(self, name) is not None:
                _check(f"sampler.{name}", getattr(self, name), least=1)
        if self.device is not None:
            check_device_name(self.device, "sampler.device")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConfig:
    """The optimiser: AdamW, with a learning rate that may warm up and decay."""

    learning_rate: float = 1e-5
    warmup_steps: int = 0  # steps over which the learning rate rises from 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # after warm-up; decays to 0 at the last step
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    epochs: int = 1  # how often a step learns from its trees
    mini_batches: int = 1  # updates per epoch, each on a part of the step's groups
    mini_batch_nodes: int = 0  # instead: as many updates as give each about this many nodes; 0: mini_batches counts
    max_grad_norm: float = 1.0  # gradients are clipped to this norm
    micro_batch_tokens: int = 16_384  # packed tokens per micro-batch; a longer row has one of its own
    packed: bool | None = None  # None: if the model supports it
    skip_zero_credit: bool = True  # do not compute rows that cannot change the gradient; the result is the same
    compile: bool = False  # compile the layers: fewer kernels and calls; rounds differently
    add_gradients: Literal["during", "after"] = "during"  # to float32 sums: one by one in the backward pass, or after
    gradient_checkpointing: bool = False  # recompute layers in the backward pass: less memory, a third more compute
    lora_rank: int = 0  # rank of LoRA adapters; 0: train all weights
    lora_alpha: float = 32.0
    process: bool = False  # learn in a process of its own: Python is not shared with engine and trees
    device: str | None = None  # of that process: cuda:1; None: that of the sampler
    device_share: float = 1.0  # with MPS: share of the GPU's multiprocessors that this process may use

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_grad_norm", "micro_batch_tokens"):
            _check(f"update.{name}", getattr(self, name), least=0, included=False)
        for name in ("warmup_steps", "weight_decay", "lora_rank", "lora_alpha"):
            _check(f"update.{name}", getattr(self, name), least=0)
        for name, least in (("epochs", 1), ("mini_batches", 1), ("mini_batch_nodes", 0)):
            _check(f"update.{name}", getattr(self, name), least=least)
        if self.mini_batches > 1 and self.mini_batch_nodes:
            raise ConfigError("update.mini_batches and update.mini_batch_nodes exclude each other: set one of them")
        _check("update.device_share", self.device_share, least=0, included=False, most=1)
        for name in ("device", "device_share"):
            if getattr(self, name) not in (None, 1) and not self.process:
                raise ConfigError(f"update.{name} is for a learner in its own process: add update.process=true")
        if self.device is not None:
            check_device_name(self.device, "update.device")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"update.betas are two numbers from 0 to below 1; got {self.betas!r}")

    @property
    def several(self) -> bool:
        """Whether a step may have more than one update."""
        return self.epochs > 1 or self.mini_batches > 1 or self.mini_batch_nodes > 0

    def rate_at(self, step: int, steps: int) -> float:
        """The learning rate of all updates of a step, counted from 0. A resumed run has the same.

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
    """Evaluation during training: tasks that are played but not learnt from."""

    every: int = 0  # steps; 0: never
    task: str = ""  # NAME:SPLIT; default: split `eval` of the trained taskset
    num_tasks: int = 64
    temperature: float = 1.0
    budget: dict[str, Any] = field(default_factory=dict[str, Any])  # limits that override those of training

    def __post_init__(self) -> None:
        parse_bounds(self.budget, inside="eval.budget.")
        _check("eval.every", self.every, least=0)
        _check("eval.num_tasks", self.num_tasks, least=1)
        _check("eval.temperature", self.temperature, least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopConfig:
    """When a run has failed and stops, saved. The defaults stop no run that still learns.

    Success must have reached `least` once, and then have lost all but `fraction` of it, both as means over `window`
    steps: more than luck does. In a step without signal no weight changes, unless by `loss.kl` or demonstrations.
    """

    fraction: float = 0.1  # stop when success falls below this fraction of its best; 0: never
    least: float = 0.1  # a best below this counts as luck
    window: int = 10  # steps over which success is averaged
    no_signal_steps: int = 50  # stop after so many steps in a row without signal; 0: never
    when: str = ""  # `file.py:name`: a function that gets the metrics of all steps; returns a reason to stop, or None

    def __post_init__(self) -> None:
        for name in ("fraction", "least"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"stop.{name} is a share from 0 to 1; got {getattr(self, name)!r}")
        _check("stop.window", self.window, least=1)
        _check("stop.no_signal_steps", self.no_signal_steps, least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumConfig:
    """Mixed difficulty with a target success rate. Without `sizes` and `splits` there is no curriculum."""

    sizes: tuple[float, ...] = ()  # levels by size of the task: up to the first, up to the second, ...; no larger tasks
    splits: tuple[str, ...] = ()  # or levels that are splits of the taskset; that of `task` is then not used
    target: float = 0.5  # success of roots that the mixture of levels aims at
    floor: float = 0.05  # least share of every level
    width: float = 0.1  # a level this much further from the target is drawn e times less often
    decay: float = 0.9  # how much a step counts in the estimates, compared with the step after it

    def __post_init__(self) -> None:
        self._check_levels()
        if not 0 < self.target < 1:
            raise ConfigError(f"curriculum.target is a share above 0 and below 1; got {self.target!r}")
        if not 0 < self.decay <= 1:
            raise ConfigError(f"curriculum.decay is a number above 0 and at most 1; got {self.decay!r}")
        _check("curriculum.width", self.width, least=0, included=False)
        most = 1 / max(1, len(self.sizes) + len(self.splits))
        if not 0 <= self.floor <= most:
            raise ConfigError(f"curriculum.floor is a share from 0 to {most:.3g}, an equal one; got {self.floor!r}")

    def _check_levels(self) -> None:
        if self.sizes and self.splits:
            raise ConfigError("curriculum.sizes and curriculum.splits are two ways to name levels: give one of them")
        if len(self.sizes) + len(self.splits) == 1:
            raise ConfigError("a curriculum has two levels or more: add to curriculum.sizes or curriculum.splits")
        if any(low >= high for low, high in pairwise(self.sizes)) or not all(map(math.isfinite, self.sizes)):
            raise ConfigError(f"curriculum.sizes are numbers in rising order; got {list(self.sizes)!r}")
        if len(set(self.splits)) < len(self.splits):
            raise ConfigError(f"curriculum.splits are different splits; got {list(self.splits)!r}")
        if not self.sizes and not self.splits:
            for setting in fields(self):
                if getattr(self, setting.name) != setting.default:
                    raise ConfigError(
                        f"curriculum.{setting.name} needs levels: give curriculum.sizes or curriculum.splits"
                    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One training run: collect groups of trees, credit every node, update, repeat."""

    name: str = "train"  # name of the run directory
    model: str = "smollm2"  # or a Hugging Face folder
    task: str = "arithmetic:train"  # NAME:SPLIT, or a taskset of your own: file.py:Name
    taskset: dict[str, Any] = field(default_factory=dict[str, Any])  # options of the taskset
    world: str = ""  # a world of your own for its tasks, file.py:Name; empty: the taskset's
    dialect: str = "tools"  # or one of your own, file.py:Name
    steps: int = 100  # 0: only the supervised start
    tasks_per_step: int = 8
    group_size: int = 8  # trees per task
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    refill: int = 0  # rounds in which groups that teach nothing are replaced by fresh ones
    overlap: int = (
        0  # steps collected ahead while an earlier one is learnt from: how many versions old their weights may be
    )
    overlap_by: Literal["steps", "groups"] = "steps"  # a step waits for all its own groups, or for enough of any step
    max_age: int | None = None  # of `overlap_by=groups`: most steps from a group's start to learning; None: 2 * overlap
    max_trees: int | None = (
        None  # of `overlap_by=groups`: a group starts when fewer trees are unfinished; None: at once
    )
    collect: CollectConfig = field(default_factory=CollectConfig)  # where trees are played
    seed: int = 0
    temperature: float = 1.0
    budget: dict[str, Any] = field(
        default_factory=dict[str, Any]
    )  # limits laid over the task's own; [least, most]: drawn at random
    budget_per: Literal["tree", "task"] = "tree"  # whether limits are drawn per tree or per task
    show_budget: bool = False  # messages say what the node may still spend
    allow_same_goal: bool = False  # whether a node may give a clone its own goal
    allow_impossible: bool = True  # whether a node may give a clone a goal that the taskset knows to be impossible
    instructions: str = ""  # added to the system prompt of every node
    delegate_instructions: str = ""  # added to the system prompt of nodes that may delegate
    judge: JudgeConfig = field(default_factory=JudgeConfig)  # grades nodes that the taskset cannot grade
    rule: str = "rao"  # credit rule, or one of your own: file.py:Name
    credit: dict[str, Any] = field(default_factory=dict[str, Any])  # settings of the credit rule
    counterfactual: Counterfactual = field(default_factory=Counterfactual)  # decisions that are taken the other way
    loss: Loss = field(default_factory=Loss)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    backend: BackendConfig = field(default_factory=BackendConfig)  # where the weights are
    eval: EvalConfig = field(default_factory=EvalConfig)
    warm: dict[str, Any] = field(
        default_factory=dict[str, Any]
    )  # supervised start: a table of `WarmConfig` settings; needs `steps`
    demos: dict[str, Any] = field(
        default_factory=dict[str, Any]
    )  # demonstrations in every update: a table of `DemosConfig` settings; needs `weight`
    track: tuple[str, ...] = ()  # also report metrics to: tensorboard, wandb, trackio
    max_logprob_gap: float = 0.1  # stop if log-probs of sampler and learner differ by more on average
    save_every: int = 10  # steps between checkpoints
    keep_checkpoints: int = 2
    keep_best: bool = True  # keep the best model by evaluation beside the newest checkpoints
    stop: StopConfig = field(default_factory=StopConfig)
    minutes: float | None = None  # stop after this time, saved

    def __post_init__(self) -> None:
        _check("steps", self.steps, least=0)
        for name in ("tasks_per_step", "group_size", "save_every", "keep_checkpoints"):
            _check(name, getattr(self, name), least=1)
        _check("temperature", self.temperature, least=0, included=False)
        if self.minutes is not None:
            _check("minutes", self.minutes, least=0, included=False)
        _check("max_logprob_gap", self.max_logprob_gap, least=0, included=False)
        _check("overlap", self.overlap, least=0)
        _check("refill", self.refill, least=0)
        if self.overlap and self.loss.kind == "plain" and self.loss.ceiling is None:
            raise ConfigError(
                "overlap needs importance weights for trees of older weights: loss.kind cispo or ppo, or a loss.ceiling"
            )
        if self.backend.kind == "tinker" and self.temperature != 1:
            raise ConfigError(
                f"temperature={self.temperature:g} does not work with backend.kind=tinker: its servers compute "
                "log-probs at temperature 1; add temperature=1"
            )
        _check_groups(self)
        _check_several(self)
        parse_spec(self.task)
        if self.eval.task:
            parse_spec(self.eval.task)
        parse_bounds(self.budget)
        if warm_config(self) is None and not self.steps:
            raise ConfigError("steps=0 leaves nothing to do: this run has no supervised start (warm.steps)")


def _check_groups(config: TrainConfig) -> None:
    """Steps made of complete groups."""
    if config.overlap_by == "steps":
        if config.max_age is not None:
            raise ConfigError("max_age needs overlap_by=groups: otherwise no tree is older than overlap")
        if config.max_trees is not None:
            raise ConfigError("max_trees needs overlap_by=groups: otherwise all trees of a step start at once")
        return
    if not config.overlap:
        raise ConfigError("overlap_by=groups needs overlap=1 or more: steps whose groups are under way at once")
    if config.max_age is not None and config.max_age < config.overlap:
        raise ConfigError(f"max_age is a number from overlap={config.overlap} up; got {config.max_age}")
    if config.max_trees is not None and config.max_trees < 1:
        raise ConfigError(f"max_trees is a number from 1 up; got {config.max_trees}")


def _check_several(config: TrainConfig) -> None:
    """Several updates on the same trees: what each of them needs."""
    update, loss = config.update, config.loss
    if update.several and loss.kind == "plain":
        raise ConfigError("several updates per step need a ratio that can be clipped: loss.kind cispo or ppo")
    if update.several and config.overlap and loss.ceiling is None:
        raise ConfigError(
            "overlap with several updates per step needs loss.ceiling, the largest importance weight of a token of "
            "older weights, like loss.ceiling=2.0"
        )


WHEN_NEEDED = "when_needed"  # demonstrations delegate where the oracle fails without clones


def check_delegate(delegate: float | str, name: str = "delegate") -> None:
    """`delegate` says which demonstrations delegate: a share of them, or those that need it."""
    if not 0 <= delegate <= 1 if isinstance(delegate, float | int) else delegate != WHEN_NEEDED:
        raise ConfigError(f'{name} is a share from 0 to 1 or "when_needed"; got {delegate!r}')


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmConfig:
    """A supervised start: learn from demonstrations of an oracle or another model."""

    name: str = "warmstart"
    model: str = "smollm2"
    task: str = "arithmetic:train"  # NAME:SPLIT, demonstrated by its oracle
    taskset: dict[str, Any] = field(default_factory=dict[str, Any])
    world: str = ""  # a world of your own for its tasks, file.py:Name; empty: the taskset's
    run: str = ""  # learn from the trees of this run directory instead
    least: float = 1.0  # lowest root score of a tree to learn from
    honest_failures: bool = False  # also learn from demonstrations whose root fails and reports it
    dialect: str = "tools"
    delegate: float | str = 0.5  # share of demonstrations that delegate; "when_needed": where the oracle fails alone
    steps: int = 100
    trees_per_step: int = 64
    workers: int = 0  # processes that make demonstrations ahead; 0: this process makes them
    seed: int = 0
    budget: dict[str, Any] = field(default_factory=dict[str, Any])
    show_budget: bool = False
    allow_impossible: bool = True
    instructions: str = ""
    delegate_instructions: str = ""
    loss: Loss = field(default_factory=lambda: Loss(kind="plain", aggregation="token"))
    update: UpdateConfig = field(default_factory=lambda: UpdateConfig(learning_rate=1e-4))
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    backend: BackendConfig = field(default_factory=BackendConfig)
    track: tuple[str, ...] = ()
    save_every: int = 100
    keep_checkpoints: int = 1

    def __post_init__(self) -> None:
        for name in ("steps", "trees_per_step", "save_every", "keep_checkpoints"):
            _check(name, getattr(self, name), least=1)
        _check("workers", self.workers, least=0)
        check_delegate(self.delegate)
        if self.loss.kind != "plain" or self.loss.ceiling is not None:
            raise ConfigError("a supervised start has no ratios: loss.kind is plain and loss.ceiling cannot be set")
        parse_spec(self.task)
        parse_bounds(self.budget)


SHARED = (
    "task",
    "taskset",
    "world",
    "dialect",
    "budget",
    "show_budget",
    "allow_impossible",
    "instructions",
    "delegate_instructions",
)  # settings of the run that its supervised start may override
SAME = ("name", "model", "seed", "sampler", "backend", "track")  # settings that both share


def warm_config(config: TrainConfig) -> WarmConfig | None:
    """The supervised start of a run: its table `warm` laid over the run's own settings; None without steps."""
    steps, taken = config.warm.get("steps"), [name for name in SAME if name in config.warm]
    if config.warm and steps is None:
        raise ConfigError("warm.steps is missing: the number of steps of the supervised start, or 0 for none")
    if taken:
        raise ConfigError(f"warm.{taken[0]} cannot be set: a run has one {taken[0]} for its supervised start and RL")
    if isinstance(steps, int | float):
        _check("warm.steps", steps, least=0)
    if not steps:
        return None
    shared = {name: getattr(config, name) for name in SHARED}
    if isinstance(budget := config.warm.get("budget"), dict):
        parse_bounds(cast(dict[str, Any], budget), inside="warm.budget.")
    try:
        warm = build(WarmConfig, shared | config.warm, inside="warm.")
    except ConfigError as error:
        raise ConfigError(inside_table(str(error), "warm", WarmConfig.__dataclass_fields__)) from None
    same = {name: getattr(config, name) for name in ("model", "seed", "sampler", "backend")}
    return replace(warm, name=WARM, **same)


def resolve_model_path(model: str) -> str:
    """A model folder as an absolute path, so that a run can be resumed elsewhere; of a run, its newest checkpoint."""
    folder = Path(model)
    return str((newest_model(folder) or folder).resolve()) if folder.is_dir() and model not in BUILTIN_MODELS else model


def _check(name: str, value: float, *, least: float, included: bool = True, most: float = math.inf) -> None:
    if not (least <= value if included else least < value) or value == math.inf or value > most:
        low = f"from {least} up" if included else f"above {least}"
        raise ConfigError(f"{name} is a number {low}{'' if most == math.inf else f', at most {most}'}; got {value!r}")
