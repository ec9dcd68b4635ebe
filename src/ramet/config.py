"""Knobs: frozen dataclasses, filled from a TOML file and `key=value` words. An unknown key names the nearest one.

Example:
    load(RunConfig, file="run.toml", words=["budget.tokens=2000", "dialect=python"])
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_type_hints

from ramet.budget import Budget
from ramet.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Which model answers: one behind a server (http), or one in this process (local)."""

    kind: Literal["http", "local"] = "http"  # when not said: local for a model on this machine, if no server is named
    base_url: str = "http://127.0.0.1:8000/v1"
    model: str = ""  # its name on the server; local: a Hugging Face folder, or smollm2
    tokenizer: str | None = None  # a folder with tokenizer.json, a .gguf file, or smollm2: exact token ids
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    concurrency: int = 64
    tries: int = 5
    stall_s: float = 120.0
    device: str | None = None  # cpu, cuda, cuda:1, mps; a GPU if there is one
    dtype: Literal["bfloat16", "float16", "float32"] | None = None  # bfloat16 on a GPU, else float32
    max_batch: int | None = None  # requests computed together
    cache_tokens: int | None = None  # tokens whose keys and values are kept
    window: int | None = None  # longest text in tokens; what the model was made for unless said

    def __post_init__(self) -> None:
        for name in ("concurrency", "tries", "stall_s", "max_batch", "cache_tokens", "window"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"engine.{name} is a number above 0; got {value!r}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"engine.top_p is above 0 and at most 1; got {self.top_p!r}")
        if self.top_k < 0:
            raise ConfigError(f"engine.top_k is a whole number from 0 up; got {self.top_k!r}")
        self._refuse_strangers()

    def _refuse_strangers(self) -> None:
        """A knob of the other kind of engine would be ignored: say so instead."""
        only = {
            "http": ("base_url", "concurrency", "tries", "stall_s"),
            "local": ("device", "dtype", "max_batch", "cache_tokens", "window"),
        }
        for kind, names in only.items():
            for knob in fields(self):
                if kind != self.kind and knob.name in names and getattr(self, knob.name) != knob.default:
                    raise ConfigError(f"engine.{knob.name} is for engine.kind={kind}, and this is {self.kind}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig:
    """Who gives verdicts where a task cannot: a model, where the engine's is unless a server is named."""

    model: str = ""  # empty: nobody
    base_url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One tree on one question, or on one task of a taskset."""

    question: str = ""  # or NAME:SPLIT/INDEX, like craft:hard/17
    taskset: dict[str, Any] = field(default_factory=dict[str, Any])  # options of the taskset
    dialect: str = "tools"
    temperature: float = 0.7
    seed: int | None = None
    show_budget: bool = False  # the model is told what it has left
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
    """The defaults, then the base, then the file, then the words, then the flags (`{"budget.tokens": 2000}`).

    An engine of which only the model is known, and that one is on this machine, is a local one.
    """
    settings: dict[str, Any] = {}
    _merge(settings, base or {})
    _merge(settings, {} if file is None else _read(Path(file)))
    _merge(settings, settings_of(words))
    for key, value in (flags or {}).items():
        _set(settings, key, value)
    _choose_engine(settings.get("engine"))
    return build(kind, settings)


def _choose_engine(engine: Any) -> None:
    if isinstance(engine, dict):
        known = cast(dict[str, Any], engine)
        if "kind" not in known and "base_url" not in known and on_this_machine(known.get("model")):
            known["kind"] = "local"


def on_this_machine(model: object) -> bool:
    """Whether a model's name is `smollm2`, `nano` or a folder with config.json."""
    if not isinstance(model, str) or not model:
        return False
    return model in ("smollm2", "nano") or os.path.isfile(os.path.join(model, "config.json"))


def settings_of(words: Sequence[str]) -> dict[str, Any]:
    """What `key=value` words say, dots making tables."""
    settings: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"{word!r} is not a setting: write key=value, like budget.tokens=2000")
        _set(settings, key.strip(), _value(text.strip()))
    return settings


def build(kind: type[T], settings: Mapping[str, Any], *, inside: str = "") -> T:
    """A dataclass from plain settings; nested tables become nested dataclasses."""
    return kind(**_values(kind, settings, inside=inside))


def _values(kind: Any, settings: Mapping[str, Any], *, inside: str) -> dict[str, Any]:
    known = {knob.name: knob for knob in fields(kind)}
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in known:
            raise ConfigError(_unknown(inside + key, [inside + name for name in known]))
        values[key] = _fit(hints[key], value, key=inside + key, default=known[key].default_factory)
    return values


def _fit(wanted: Any, value: Any, *, key: str, default: Any) -> Any:
    if is_dataclass(wanted):
        if not isinstance(value, dict):
            raise ConfigError(f"{key} is a table of settings, not {value!r}")
        # What a table leaves out stays as it is where no table is given, which need not be the defaults of its kind.
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
    """TOML writes lists only."""
    return tuple(cast(list[object], value)) if isinstance(value, list) else value


def _unknown(key: str, known: Sequence[str]) -> str:
    near = get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
    return f"unknown setting {key!r}: {hint}"


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None


def _set(settings: dict[str, Any], key: str, value: Any) -> None:
    *tables, last = key.split(".")
    for table in tables:
        settings = settings.setdefault(table, {})
        if not isinstance(settings, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"{key}: {table} is a value, not a table")
    settings[last] = value


def _merge(settings: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Lay settings over others, table by table."""
    for key, value in more.items():
        below = settings.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            _merge(cast(dict[str, Any], below), cast(dict[str, Any], value))
        else:
            settings[key] = dict(cast(dict[str, Any], value)) if isinstance(value, dict) else value


def _value(text: str) -> Any:
    """`4000`, `0.5`, `true`, `[1, 2]` as TOML reads them; anything else is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def to_toml(settings: Any) -> str:
    """A dataclass as a TOML file. Values that are None are left out: absent means the default."""
    lines: list[str] = []
    tables: list[str] = []

    def write(record: Any, name: str, into: list[str]) -> None:
        for knob in fields(record):
            value = getattr(record, knob.name)
            if is_dataclass(value):
                below = [f"\n[{name}{knob.name}]"]
                write(value, f"{name}{knob.name}.", below)
                tables.append("\n".join(below))
            elif isinstance(value, dict):
                rows = [f"{_toml(key)} = {_toml(one)}" for key, one in cast(dict[str, Any], value).items()]
                tables.append("\n".join([f"\n[{name}{knob.name}]", *rows]))
            elif value is not None:
                into.append(f"{knob.name} = {_toml(value)}")

    write(settings, "", lines)
    # Inner tables were finished first; TOML wants the outer one before them, and does not mind the order otherwise.
    return "\n".join([*lines, *sorted(tables)]) + "\n"


def _toml(value: Any) -> str:
    """One value. Tables inside tables are written inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(one)}" for key, one in cast(dict[str, Any], value).items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(one) for one in cast(Sequence[Any], value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML wants it escaped
