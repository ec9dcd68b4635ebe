"""Settings: frozen dataclasses, filled from a TOML file and `key=value` words. An unknown key suggests the nearest.

Example:
    load(RunConfig, file="run.toml", words=["budget.tokens=2000", "dialect=python"])
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import MISSING, fields, is_dataclass, replace
from datetime import date, time
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_type_hints

from ramet import plugins
from ramet.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
TEMPERATURE = 0.7  # of trees that are run, on the command line and from Python
AUTO = "auto"  # as dialect: chosen by what the server can do
TINKER_PATH = "tinker://"  # how the path of a checkpoint on a server of the Tinker API begins
PEERS = ("inspect", "verifiers")  # before the names of tasks of other packages
OPTIONS_OF = {"task": "taskset", "rule": "credit"}  # tables that belong to what another setting names
EXTENDS = "extends"  # in a file: the name of another one beside it, whose settings it overrides

# What settings are called in other projects, or might be called. Only errors use these names: they are not accepted.
CALLED_ELSEWHERE = {
    "aggregation": "loss_agg_mode",
    "bounds": "clip_eps clip_range clip_ratio cliprange epsilon epsilon_high loss.clip",
    "budget.depth": "depth",
    "budget.node_tokens": "max_completion_length max_response_length",
    "budget.nodes": "nodes",
    "budget.seconds": "seconds",
    "budget.tokens": "max_new_tokens max_tokens tokens",
    "budget.window": "max_prompt_length",
    "concurrency": "at_once",
    "epochs": "num_iterations ppo_epochs",
    "eval.every": "eval_steps test_freq",
    "gradient_checkpointing": "checkpointing",
    "group_of_one": "lone",
    "group_size": "group num_generations rollouts_per_example",
    "keep_checkpoints": "keep save_total_limit",
    "kl": "beta kl_coef kl_loss_coef",
    "learning_rate": "lr rate",
    "lora_rank": "lora lora_r",
    "loss.kind": "loss_type",
    "max_grad_norm": "clip grad_clip",
    "max_logprob_gap": "gap",
    "micro_batch_tokens": "gradient_accumulation_steps update.tokens",
    "mini_batches": "mini_batch_size ppo_mini_batch_size",
    "model": "model_name",
    "num_tasks": "number",
    "parent_share": "budget.keep",
    "rule": "adv_estimator",
    "save_every": "save_freq save_steps",
    "steps": "max_steps num_steps num_train_steps total_training_steps",
    "tasks_per_step": "batch_size per_device_train_batch_size rollout_batch_size tasks train_batch_size",
    "taskset": "options task",  # `task` of a question; elsewhere it is NAME:SPLIT, and no table
    "track": "logger report_to tensorboard wandb",
    "trees_per_step": "trees",
    "warmup_steps": "warmup",
    "weight_decay": "decay",
    "window": "budget.context",
}
OTHER_NAMES = {other: name for name, others in CALLED_ELSEWHERE.items() for other in others.split()}
# Options of the built-in tasksets. Only errors use them: `file=x` is `taskset.file=x`. A test keeps the list complete.
TASKSET_OPTIONS = frozenset(
    [
        *("ask_tokens", "brackets", "check", "check_seconds", "clone_lines", "comparisons", "data", "dataset"),
        *("digits", "eval_share", "extra_pages", "file", "findable", "guesses", "hops", "kinds", "largest"),
        *("levels", "lines", "long_lines", "long_numbers", "metric", "mistakes", "numbers", "one_hop"),
        *("operators", "page", "pages", "params", "part", "per_clone", "places", "relations", "seed", "size"),
        *("state_size", "style", "symbols", "target", "targets", "topics", "unknown", "users", "value_digits"),
        *("wording", "working"),
    ]
)


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
    settings = merge_settings(file=file, words=words, flags=flags, base=base)
    for table in ("engine", "clone"):
        _choose_engine(settings.get(table))
    return build(kind, settings)


def merge_settings(
    *,
    file: Path | str | None = None,
    words: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    base: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What is set, as nested tables, in the order of `load`."""
    settings: dict[str, Any] = {}
    _merge(settings, base or {})
    if file is not None:  # paths of plug-ins are relative to the file, elsewhere to the working directory
        _merge(settings, plugins.anchor_settings(_read_extended(Path(file)), Path(file).parent))
    more = plugins.anchor_settings(settings_of(words), Path.cwd())
    for key, value in plugins.anchor_settings(flags or {}, Path.cwd()).items():
        _set(more, key, value)
    _drop_options(settings, more)
    _merge(settings, more)
    return settings


def _drop_options(settings: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Drop the options of a taskset or rule that others replace: they say nothing about the new one."""
    for choice, table in OPTIONS_OF.items():
        old, new = settings.get(choice), more.get(choice)
        if isinstance(old, str) and isinstance(new, str) and _without_split(old) != _without_split(new):
            settings.pop(table, None)


def _without_split(name: str) -> str:
    """`codes:train` without `:train`, `my_tasks.py:Mine:long` and `package.module:Mine:long` without `:long`."""
    file, is_file, rest = name.rpartition(".py:")
    first, colon, more = name.partition(":")
    if not is_file and ("." in first or first in PEERS):
        return f"{first}{colon}{more.partition(':')[0]}"
    return f"{file}{is_file}{rest.partition(':')[0]}"


def names_server(settings: Mapping[str, Any]) -> bool:
    """Whether these settings say that the model is behind a server."""
    found: object = settings.get("engine")
    engine = cast(dict[str, Any], found) if isinstance(found, dict) else {}
    return "base_url" in engine or bool(engine.get("provider")) or engine.get("kind") == "http"


def _choose_engine(engine: Any) -> None:
    if isinstance(engine, dict):
        settings = cast(dict[str, Any], engine)
        named = any(key in settings for key in ("kind", "base_url", "provider"))
        if "kind" not in settings and str(settings.get("model")).startswith(TINKER_PATH):
            settings["kind"] = "tinker"
        elif not named and on_this_machine(settings.get("model")):
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
            hint = f" (a text: --context {word}, once per file)" if os.path.isfile(word) else ""
            raise ConfigError(f"{word!r} is not a setting: write key=value, like budget.tokens=2000{hint}")
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
            old, new = inner_name(key, value), inner_name(OTHER_NAMES.get(key, f"taskset.{key}"), value)
            raise ConfigError(f"unknown setting {old!r}: did you mean {new}?")
    options: object = settings.get("taskset", {})
    if not isinstance(options, dict):
        raise ConfigError(f"taskset is a table of settings, like taskset.KEY=VALUE; got {options!r}")
    return cast(dict[str, Any], options) | ({} if data is None else {"data": data})


def build(kind: type[T], settings: Mapping[str, Any], *, inside: str = "") -> T:
    """A dataclass from plain settings; nested tables become nested dataclasses."""
    return kind(**_values(kind, settings, inside=inside))


def _values(kind: Any, settings: Mapping[str, Any], *, inside: str) -> dict[str, Any]:
    known = {setting.name: setting for setting in fields(kind)}
    hints = _hints(kind)
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in known or (hints[key] is str and isinstance(value, dict)):
            raise ConfigError(_unknown(inside + key, value, kind, inside=inside))
        values[key] = _fit(hints[key], value, key=inside + key, default=known[key].default_factory)
    return values


def _fit(wanted: Any, value: Any, *, key: str, default: Any) -> Any:
    optional = next((kind for kind in get_args(wanted) if is_dataclass(kind)), None)
    wanted = optional if optional is not None and value is not None else wanted  # a table that may be left out
    if is_dataclass(wanted):
        if not isinstance(value, dict):
            hint = f": did you mean {key}.kind={value}?" if "kind" in _hints(wanted) else ""
            raise ConfigError(f"{key} is a table of settings, not {value!r}{hint}")
        # A table overrides the default of its field, which may differ from the defaults of its class.
        make: Any = wanted if default is MISSING else default
        return replace(make(), **_values(wanted, cast(dict[str, Any], value), inside=f"{key}."))
    from pydantic import ValidationError

    try:
        return _adapter(wanted).validate_python(
            _as_tuple(value) if "tuple[" in str(wanted) else value, strict=type(value) is not int
        )
    except ValidationError as error:
        message = error.errors()[0]["msg"].lower().replace("a valid tuple", 'a list, like ["a"] or [1, 2]')
        message = message.replace("field required", "the list should have more items")
        message = message.replace("tuple should", "the list should").replace(" after validation", "")
        message = message.replace("a valid dictionary", f"a table of settings, like {key}.NAME=VALUE")
        raise ConfigError(f"{key}: {message}; got {value!r}{_nearest(value, wanted)}") from None


def _nearest(value: object, wanted: Any) -> str:
    """The end of an error about a word that is not among the accepted ones."""
    accepted = [word for kind in (wanted, *get_args(wanted)) for word in get_args(kind) if isinstance(word, str)]
    near = get_close_matches(value, accepted, n=1) if isinstance(value, str) else []
    return f": did you mean {near[0]}?" if near else ""


# A run builds its settings hundreds of times, from few classes: reading their annotations would take most of the time.
_hints = cache(get_type_hints)


@cache
def _adapter(wanted: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(wanted)


def _as_tuple(value: object) -> object:
    """TOML has lists, not tuples."""
    return tuple(cast(list[object], value)) if isinstance(value, list) else value


def _unknown(key: str, value: Any, kind: Any, *, inside: str) -> str:
    """The error for a setting that does not exist in `kind`: what it is called here, where it is, or the nearest."""
    name, known = key.removeprefix(inside), [setting.name for setting in fields(kind)]
    if inside + name in TASKSET_OPTIONS and "taskset" in known:
        return f"unknown setting {key!r}: did you mean taskset.{key}, an option of the taskset?"
    if name in known and name not in OTHER_NAMES:
        return f"{key} is a string, not a table of settings; got {value!r}"
    meant = [inner_name(inside + place, value) for place in find_settings(kind, name, table=inside.split(".")[-2:-1])]
    if meant:
        return f"unknown setting {inner_name(key, value)!r}: did you mean {' or '.join(meant)}?"
    return f"unknown setting {key!r}: {did_you_mean(name, known, prefix=inside)}"


def find_settings(kind: Any, name: str, *, table: Sequence[str] = ()) -> list[str]:
    """The settings in `kind` and its tables that this name stands for, by its last part or by what others call it.

    Example:
        In the settings of a training, `lr` stands for `update.learning_rate`.
    """
    other = OTHER_NAMES.get(".".join([*table, name]), OTHER_NAMES.get(name))
    places = list(_setting_names(kind))
    if other and other.partition(".")[0] in places:  # maybe in a table that has no class, like the budget of a training
        return [other]
    endings = tuple(f".{wanted}" for wanted in (other, name) if wanted)
    return [place for place in places if place.endswith(endings)]


def _setting_names(kind: Any, inside: str = "") -> Iterator[str]:
    """All settings in `kind` and its tables."""
    for name, hint in _hints(kind).items():
        yield inside + name
        table = next((part for part in (hint, *get_args(hint)) if is_dataclass(part)), None)
        if table is not None:
            yield from _setting_names(table, f"{inside}{name}.")


def inner_name(key: str, value: Any) -> str:
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
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))  # a byte order mark is left out
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number of 5,000 digits
        raise ConfigError(f"{file} is not valid TOML: {error}") from None


def _set(settings: dict[str, Any], key: str, value: Any) -> None:
    *tables, last = key.split(".")
    for table in tables:
        settings = settings.setdefault(table, {})
        if not isinstance(settings, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            hint = f": did you mean taskset.{last}?" if table == "task" else ""
            raise ConfigError(f"{key}: {table} is a value, not a table{hint}")
    settings[last] = value


def _merge(settings: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Override settings with others, table by table."""
    for key, value in more.items():
        below = settings.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            _merge(cast(dict[str, Any], below), cast(dict[str, Any], value))
        else:
            settings[key] = deepcopy(cast(dict[str, Any], value)) if isinstance(value, dict) else value


def _value(text: str) -> Any:
    """A value as TOML reads it (`4000`, `0.5`, `true`, `[1, 2]`); anything else is a string."""
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except (ValueError, RecursionError):  # a number of 5,000 digits, 10,000 brackets
        raise ConfigError(f"{text[:40]}... cannot be read: it is too long for a value") from None
    return read["value"] if len(read) == 1 else text  # a text whose lines look like settings


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
                rows = [f"{toml_value(str(key))} = {toml_value(item)}" for key, item in items if item is not None]
                tables.append("\n".join([f"\n[{name}{setting.name}]", *rows]))
            elif value is not None:
                into.append(f"{setting.name} = {toml_value(value)}")

    write(settings, "", lines)
    # Sorted, whatever the order of the fields: evaluations are found again by a hash of this text.
    return "\n".join([*lines, *sorted(tables)]) + "\n"


def toml_value(value: Any) -> str:
    """One value. Tables inside tables are written inline, without what is None."""
    if isinstance(value, dict):
        items = [(key, item) for key, item in cast(dict[str, Any], value).items() if item is not None]
        return "{" + ", ".join(f"{toml_value(str(key))} = {toml_value(item)}" for key, item in items) + "}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf, -inf, nan: the same in TOML
    if isinstance(value, (date, time)):  # datetime is a date
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(item) for item in cast(Sequence[Any], value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML requires it escaped
