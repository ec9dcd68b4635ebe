"""What a model folder says about its model: longest sequence, vocabulary, tokens that end a turn."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ramet.errors import ConfigError

DEFAULT_WINDOW = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a model, as far as its files name them."""

    window: int | None = None
    vocabulary: int | None = None
    stop_ids: tuple[int, ...] = ()


def read_limits(folder: Path) -> Limits:
    """From config.json and generation_config.json; a folder with a tokenizer alone has neither."""
    config, generation = (_read(folder / name) for name in ("config.json", "generation_config.json"))
    inner = config.get("text_config")
    text: dict[str, Any] = config | cast(dict[str, Any], inner) if isinstance(inner, dict) else config
    ends = [end for source in (text, generation) for end in _as_list(source.get("eos_token_id"))]
    window, vocabulary = text.get("max_position_embeddings"), text.get("vocab_size")
    return Limits(
        window=window if isinstance(window, int) else None,
        vocabulary=vocabulary if isinstance(vocabulary, int) else None,
        stop_ids=tuple(sorted({end for end in ends if isinstance(end, int)})),
    )


def choose_window(asked: int | None, *known: int | None) -> int:
    """The window that was asked for, if the model has it; else the smallest one that is known."""
    longest = min((window for window in known if window), default=None)
    if asked is not None and longest is not None and asked > longest:
        raise ConfigError(f"window must be at most {longest:,} tokens; got {asked:,}")
    return asked or longest or DEFAULT_WINDOW


def _as_list(value: object) -> list[object]:
    return cast(list[object], value) if isinstance(value, list) else [value]


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        found: object = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from None
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}
