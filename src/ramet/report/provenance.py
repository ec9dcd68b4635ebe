"""Where the numbers come from: command, model, machine and settings of each run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ramet.report.markup import Content, Markup, table, tag
from ramet.report.read import Run

# Shown first and with these labels; everything else in meta.json follows.
LABELS = {
    "command": "command",
    "kind": "kind",
    "created": "created",
    "finished": "finished",
    "ramet": "ramet version",
    "python": "Python",
    "seed": "seed",
    "model": "model",
    "model_sha256": "model hash (SHA-256)",
    "server": "server",
    "hardware": "hardware",
}
HIDDEN = {"schema", "key"}  # of no use to a reader


def provenance(runs: Sequence[Run]) -> list[Content]:
    """A table with a column per run, what is missing in each, and their settings."""
    facts = [_facts(run) for run in runs]
    names = [key for key in LABELS if any(key in one for one in facts)]
    names += sorted({key for one in facts for key in one} - set(names) - {"path"})
    rows: list[Sequence[Content]] = [["directory", *(str(run.path) for run in runs)]]
    rows += [[LABELS.get(name, name), *(one.get(name, "not recorded") for one in facts)] for name in names]
    parts: list[Content] = [table(["", *(run.name for run in runs)], rows, caption="Runs")]
    parts += [_notes(run) for run in runs if run.notes]
    if len(runs) > 1:
        parts.append(_differing_settings(runs))
    parts += [_settings(run) for run in runs if run.config]
    return parts


def _facts(run: Run) -> dict[str, str]:
    facts = {key: _text(value) for key, value in run.meta.items() if key not in HIDDEN}
    if "seed" not in facts and "seed" in run.config:
        facts["seed"] = _text(run.config["seed"])
    if "model" not in facts and "model" in flatten(run.config):
        facts["model"] = _text(run.config["model"])
    return facts


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(inner)}" for key, inner in cast(dict[str, Any], value).items())
    if isinstance(value, list):
        return " ".join(map(_text, cast(list[Any], value)))
    return json.dumps(value, ensure_ascii=False, default=str)


def _notes(run: Run) -> Markup:
    items = [tag("li", note) for note in run.notes]
    return tag("div", tag("p", tag("strong", f"{run.name} is incomplete:")), tag("ul", items), class_="note")


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted names.

    Example:
        flatten({"seed": 1, "budget": {"tokens": 9}})  # {"seed": 1, "budget.tokens": 9}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= flatten(cast(dict[str, Any], value), f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _differing_settings(runs: Sequence[Run]) -> Markup | None:
    settings = [flatten(run.config) for run in runs]
    names = dict.fromkeys(name for one in settings for name in one)
    rows: list[Sequence[Content]] = []
    for name in names:
        values = [_text(one[name]) if name in one else "–" for one in settings]
        if len(set(values)) > 1:
            rows.append([name, *values])
    if not rows:
        return tag("p", "All settings of these runs are the same.")
    return table(["setting", *(run.name for run in runs)], rows, caption="Settings that differ")


def _settings(run: Run) -> Markup:
    lines = "\n".join(
        f"{name} = {json.dumps(value, ensure_ascii=False, default=str)}" for name, value in flatten(run.config).items()
    )
    return tag("details", tag("summary", f"Settings of {run.name}"), tag("pre", lines, tabindex="0"))
