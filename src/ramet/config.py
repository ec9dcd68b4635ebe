"""Settings: frozen dataclasses, filled from a TOML file and `key=value` words. An unknown key suggests the nearest.

Example:
    load(RunConfig, file="run.toml", words=["budget.tokens=2000", "dialect=python"])
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from datetime import date, time
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_type_hints

from ramet.budget import Budget
from ramet.errors import ConfigError, did_you_mean

T = TypeVar("T")
POLICY = "policy"  # as judge.model: the model that is run or trained, at its current weights
EXTENDS = "extends"  # in a file: the name of another one beside it, whose settings it overrides

# Earlier names of settings, and what they are called now. Only errors use them: an earlier name is not accepted.
RENAMED = {
    "at_once": "concurrency",
    "budget.context": "budget.window",
    "budget.keep": "budget.parent_share",
    "data": "taskset.data",
    "gap": "max_logprob_gap",
    "group": "group_size",
    "keep": "keep_checkpoints",
    "lone": "group_of_one",
    "number": "num_tasks",
    "options": "taskset",
    "task": "taskset",  # of a question; elsewhere `task` is NAME:SPLIT, and no table
    "tasks": "tasks_per_step",
    "trees": "trees_per_step",
    "update.checkpointing": "update.gradient_checkpointing",
    "update.clip": "update.max_grad_norm",
    "update.decay": "update.weight_decay",
    "update.lora": "update.lora_rank",
    "update.rate": "update.learning_rate",
    "update.tokens": "update.micro_batch_tokens",
    "update.warmup": "update.warmup_steps",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Which model answers: one behind a server (http), or one in this process (local)."""

    kind: Literal["http", "local"] = "http"  # `load` sets local for a model on this machine, unless a server is given
    base_url: str = "http://127.0.0.1:8000/v1"
    model: str = ""  # its name on the server; local: a Hugging Face folder, or smollm2
    tokenizer: str | None = None  # a folder with tokenizer.json, a .gguf file, or smollm2: exact token ids
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    concurrency: int = 64
    tries: int = 5
    stall_s: float = 120.0
    device: str | None = None  # cpu, cuda, cuda:1, mps; None: a GPU if there is one
    dtype: Literal["bfloat16", "float16", "float32"] | None = None  # None: bfloat16 on a GPU, else float32
    max_batch: int | None = None  # requests per batch
    cache_tokens: int | None = None  # size of the key-value cache
    window: int | None = None  # longest sequence in tokens; None: the model's own limit

    def __post_init__(self) -> None:
        for name in ("concurrency", "tries", "stall_s", "max_batch", "cache_tokens", "window"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"engine.{name} is a number above 0; got {value!r}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"engine.top_p is above 0 and at most 1; got {self.top_p!r}")
        if self.top_k < 0:
            raise ConfigError(f"engine.top_k is a whole number from 0 up; got {self.top_k!r}")
        self._refuse_other_kind()

    def _refuse_other_kind(self) -> None:
        """Refuse settings of the other kind of engine, which would have no effect."""
        only = {
            "http": ("base_url", "concurrency", "tries", "stall_s"),
            "local": ("device", "dtype", "max_batch", "cache_tokens", "window"),
        }
        for kind, names in only.items():
            for setting in fields(self):
                if kind != self.kind and setting.name in names and getattr(self, setting.name) != setting.default:
                    raise ConfigError(f"engine.{setting.name} is for engine.kind={kind}, and this is {self.kind}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig:
    """The model that grades nodes where the taskset cannot, and what it may see and cost."""

    model: str = ""  # a name on a server, a folder, smollm2, or policy: the model itself; empty: no judge
    base_url: str = ""  # its server; empty: the engine's own server or process
    criteria: str = ""  # added to the judge's instructions
    max_tokens: int = 512  # generated per reply
    tries: int = 2  # replies asked for until one can be parsed
    goal_bytes: int = 2000  # most bytes shown of the goal, and of the right answer
    text_bytes: int = 8000  # of all texts that the node was handed
    work_bytes: int = 8000  # of its turns and their results
    answer_bytes: int = 2000  # of its answer, and of its error
    tree_calls: int | None = None  # most calls for one tree, all tries included; None: no limit
    tree_tokens: int | None = None  # most tokens for one tree, prompts and replies together
    calls: int | None = None  # most calls of the whole run
    tokens: int | None = None  # most tokens of the whole run
    cache: int = 100_000  # verdicts kept by content; 0: none

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            least = 0 if setting.name == "cache" else 1
            if isinstance(value, int) and (isinstance(value, bool) or value < least):
                raise ConfigError(f"judge.{setting.name} is a whole number from {least} up; got {value!r}")
        if self.base_url and not self.model:
            raise ConfigError("judge.base_url needs judge.model: the name of the judge on that server")
        if self.base_url and self.model == POLICY:
            raise ConfigError("judge.model=policy is the model itself and has no server: leave out judge.base_url")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One tree on one question, or on one task of a taskset."""

    question: str = ""  # or NAME:SPLIT/INDEX, like craft:hard/17
    taskset: dict[str, Any] = field(default_factory=dict[str, Any])  # options of the taskset
    dialect: str = "tools"
    temperature: float = 0.7
    seed: int | None = None
    show_budget: bool = False  # tell the model what it may still spend
    allow_same_goal: bool = False  # a node may give its own goal, or an ancestor's, to a clone
    allow_impossible: bool = True  # a node may give a clone a goal that the taskset knows to be impossible
    instructions: str = ""  # added to the system prompt of every node
    delegate_instructions: str = ""  # added to that of nodes that may delegate
    engine: EngineConfig = field(default_factory=EngineConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature is a number from 0 up; got {self.temperature!r}")


def load(
    kind: type[T],
    *,
    file: Path | str | None = None,
    words: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    base: Mapping[str, Any] | None = None,
) -> T:
    """Settings from, in rising priority, defaults, base, file, words and flags (`{"budget.tokens": 2000}`).

    An engine without a kind or a server is local if its model is on this machine.
    """
    settings: dict[str, Any] = {}
    _merge(settings, base or {})
    _merge(settings, {} if file is None else _read_extended(Path(file)))
    _merge(settings, settings_of(words))
    for key, value in (flags or {}).items():
        _set(settings, key, value)
    _choose_engine(settings.get("engine"))
    return build(kind, settings)


def _choose_engine(engine: Any) -> None:
    if isinstance(engine, dict):
        settings = cast(dict[str, Any], engine)
        if "kind" not in settings and "base_url" not in settings and on_this_machine(settings.get("model")):
            settings["kind"] = "local"


def on_this_machine(model: object) -> bool:
    """Whether a model's name is `smollm2`, `nano` or a folder with config.json."""
    if not isinstance(model, str) or not model:
        return False
    return model in ("smollm2", "nano") or os.path.isfile(os.path.join(model, "config.json"))


def settings_of(words: Sequence[str]) -> dict[str, Any]:
    """`key=value` words as nested tables.

    Example:
        settings_of(["budget.tokens=2000", "dialect=python"])  # {"budget": {"tokens": 2000}, "dialect": "python"}
    """
    settings: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"{word!r} is not a setting: write key=value, like budget.tokens=2000")
        _set(settings, key.strip(), _value(text.strip()))
    return settings


def taskset_options(words: Sequence[str], *, data: str | None = None) -> dict[str, Any]:
    """The options in `taskset.KEY=VALUE` words; `data` is the folder with task files.

    Example:
        taskset_options(["taskset.digits=3"], data="files")  # {"digits": 3, "data": "files"}
    """
    settings = settings_of(words)
    for key, value in settings.items():
        if key != "taskset":
            old, new = _inner(key, value), _inner(RENAMED.get(key, f"taskset.{key}"), value)
            raise ConfigError(f"unknown setting {old!r}: did you mean {new}?")
    return settings.get("taskset", {}) | ({} if data is None else {"data": data})


def build(kind: type[T], settings: Mapping[str, Any], *, inside: str = "") -> T:
    """A dataclass from plain settings; nested tables become nested dataclasses."""
    return kind(**_values(kind, settings, inside=inside))


def _values(kind: Any, settings: Mapping[str, Any], *, inside: str) -> dict[str, Any]:
    known = {setting.name: setting for setting in fields(kind)}
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in known or (hints[key] is str and isinstance(value, dict)):
            raise ConfigError(_unknown(inside + key, value, [inside + name for name in known]))
        values[key] = _fit(hints[key], value, key=inside + key, default=known[key].default_factory)
    return values


def _fit(wanted: Any, value: Any, *, key: str, default: Any) -> Any:
    if is_dataclass(wanted):
        if not isinstance(value, dict):
            raise ConfigError(f"{key} is a table of settings, not {value!r}")
        # A table overrides the default of its field, which may differ from the defaults of its class.
        make: Any = wanted if default is MISSING else default
        return replace(make(), **_values(wanted, cast(dict[str, Any], value), inside=f"{key}."))
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(wanted).validate_python(
            _as_tuple(value) if "tuple[" in str(wanted) else value, strict=type(value) is not int
        )
    except ValidationError as error:
        raise ConfigError(f"{key}: {error.errors()[0]['msg'].lower()}; got {value!r}") from None


def _as_tuple(value: object) -> object:
    """TOML has lists, not tuples."""
    return tuple(cast(list[object], value)) if isinstance(value, list) else value


def _unknown(key: str, value: Any, known: Sequence[str]) -> str:
    """The error for a setting that does not exist: its present name if it was renamed, else the nearest one."""
    tables = key.split(".")
    for start in range(len(tables)):  # in warm.update.rate the name is update.rate
        outer, name = "".join(f"{table}." for table in tables[:start]), ".".join(tables[start:])
        new = outer + RENAMED.get(name, "")
        if name in RENAMED and any(new == place or new.startswith(f"{place}.") for place in known):
            return f"unknown setting {_inner(key, value)!r}: did you mean {_inner(new, value)}?"
    if key in known:
        return f"{key} is a string, not a table of settings; got {value!r}"
    return f"unknown setting {key!r}: {did_you_mean(key, known)}"


def _inner(key: str, value: Any) -> str:
    """The first setting in a table, by its whole name; the key itself for a plain value."""
    while isinstance(value, dict) and value:
        name, value = next(iter(cast(dict[str, Any], value).items()))
        key = f"{key}.{name}"
    return key


def _read_extended(file: Path) -> dict[str, Any]:
    """The settings of a file, laid over those of the file it extends."""
    settings = _read(file)
    base = settings.pop(EXTENDS, None)
    if base is None:
        return settings
    beside = file.parent / f"{base}.toml"
    if not isinstance(base, str) or Path(base).name != base or not beside.is_file() or EXTENDS in _read(beside):
        raise ConfigError(f"{file}: extends is the name of a file beside it that extends no other; got {base!r}")
    extended = _read(beside)
    _merge(extended, settings)
    return extended


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number of 5,000 digits
        raise ConfigError(f"{file} is not valid TOML: {error}") from None


def _set(settings: dict[str, Any], key: str, value: Any) -> None:
    *tables, last = key.split(".")
    for table in tables:
        settings = settings.setdefault(table, {})
        if not isinstance(settings, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"{key}: {table} is a value, not a table")
    settings[last] = value


def _merge(settings: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Override settings with others, table by table."""
    for key, value in more.items():
        below = settings.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            _merge(cast(dict[str, Any], below), cast(dict[str, Any], value))
        else:
            settings[key] = dict(cast(dict[str, Any], value)) if isinstance(value, dict) else value


def _value(text: str) -> Any:
    """A value as TOML reads it (`4000`, `0.5`, `true`, `[1, 2]`); anything else is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except (ValueError, RecursionError):  # a number of 5,000 digits, 10,000 brackets
        raise ConfigError(f"{text[:40]}... cannot be read: it is too long for a value") from None


def to_toml(settings: Any) -> str:
    """A dataclass as TOML. Values that are None are left out: a missing key means the default."""
    lines: list[str] = []
    tables: list[str] = []

    def write(record: Any, name: str, into: list[str]) -> None:
        for setting in fields(record):
            value = getattr(record, setting.name)
            if is_dataclass(value):
                below = [f"\n[{name}{setting.name}]"]
                write(value, f"{name}{setting.name}.", below)
                tables.append("\n".join(below))
            elif isinstance(value, dict):
                items = cast(dict[str, Any], value).items()
                rows = [f"{_toml(str(key))} = {_toml(item)}" for key, item in items if item is not None]
                tables.append("\n".join([f"\n[{name}{setting.name}]", *rows]))
            elif value is not None:
                into.append(f"{setting.name} = {_toml(value)}")

    write(settings, "", lines)
    # Inner tables were finished first, but TOML wants a table before those inside it: sorting puts it there.
    return "\n".join([*lines, *sorted(tables)]) + "\n"


def _toml(value: Any) -> str:
    """One value. Tables inside tables are written inline, without what is None."""
    if isinstance(value, dict):
        items = [(key, item) for key, item in cast(dict[str, Any], value).items() if item is not None]
        return "{" + ", ".join(f"{_toml(str(key))} = {_toml(item)}" for key, item in items) + "}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf, -inf, nan: the same in TOML
    if isinstance(value, (date, time)):  # datetime is a date
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item) for item in cast(Sequence[Any], value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML requires it escaped
