"""Where the numbers come from: what was typed, which model, which machine, which settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ramet.report.markup import Content, Markup, table, tag
from ramet.report.read import Run

# Shown first and under these names, where a run has them; everything else of meta.json follows.
KNOWN = {
    "command": "command",
    "kind": "kind",
    "created": "made",
    "finished": "finished",
    "ramet": "ramet version",
    "python": "Python",
    "seed": "seed",
    "model": "model",
    "model_sha256": "model hash (SHA-256)",
    "server": "server",
    "hardware": "hardware",
}
HIDDEN = {"schema", "key"}  # for machines


def provenance(runs: Sequence[Run]) -> list[Content]:
    """A table with a column a run, what is missing in each, and their settings."""
    facts = [_facts(run) for run in runs]
    names = [key for key in KNOWN if any(key in one for one in facts)]
    names += sorted({key for one in facts for key in one} - set(names) - {"path"})
    rows: list[Sequence[Content]] = [["directory", *(str(run.path) for run in runs)]]
    rows += [[KNOWN.get(name, name), *(one.get(name, "not recorded") for one in facts)] for name in names]
    parts: list[Content] = [table(["", *(run.name for run in runs)], rows, caption="Runs")]
    parts += [_notes(run) for run in runs if run.notes]
    if len(runs) > 1:
        parts.append(_differing(runs))
    parts += [_settings(run) for run in runs if run.config]
    return parts


def _facts(run: Run) -> dict[str, str]:
    facts = {key: _said(value) for key, value in run.meta.items() if key not in HIDDEN}
    if "seed" not in facts and "seed" in run.config:
        facts["seed"] = _said(run.config["seed"])
    if "model" not in facts and "model" in flat(run.config):
        facts["model"] = _said(run.config["model"])
    return facts


def _said(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return ", ".join(f"{key} {_said(inner)}" for key, inner in cast(dict[str, Any], value).items())
    if isinstance(value, list):
        return " ".join(map(_said, cast(list[Any], value)))
    return json.dumps(value, ensure_ascii=False, default=str)


def _notes(run: Run) -> Markup:
    items = [tag("li", note) for note in run.notes]
    return tag("div", tag("p", tag("strong", f"Not all of {run.name} could be read:")), tag("ul", items), class_="note")


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings under dotted names.

    Example:
        flat({"seed": 1, "budget": {"tokens": 9}})  # {"seed": 1, "budget.tokens": 9}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            found |= flat(cast(dict[str, Any], value), f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _differing(runs: Sequence[Run]) -> Markup | None:
    """Settings that are not the same in all runs."""
    settings = [flat(run.config) for run in runs]
    names = dict.fromkeys(name for one in settings for name in one)
    rows: list[Sequence[Content]] = []
    for name in names:
        said = [_said(one[name]) if name in one else "–" for one in settings]
        if len(set(said)) > 1:
            rows.append([name, *said])
    if not rows:
        return tag("p", "All settings of these runs are the same.")
    return table(["setting", *(run.name for run in runs)], rows, caption="Settings that differ")


def _settings(run: Run) -> Markup:
    lines = "\n".join(
        f"{name} = {json.dumps(value, ensure_ascii=False, default=str)}" for name, value in flat(run.config).items()
    )
    return tag("details", tag("summary", f"Settings of {run.name}"), tag("pre", lines, tabindex="0"))
