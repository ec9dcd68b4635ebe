"""Which plug-ins a run uses: meta.json has their references and the hashes of their files, for when it is resumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, cast

from ramet import plugins
from ramet.agent.dialects import DIALECTS
from ramet.config import AUTO
from ramet.credit import RULES
from ramet.engine.settings import ENGINE_KINDS
from ramet.errors import ConfigError
from ramet.store import RunDir
from ramet.store.checkpoints import checkpoint_step, latest
from ramet.tasks.registry import SOURCES, TASKSETS, split_spec

FIELD = "plugins"  # of meta.json
ACCEPTED = "accepted_changes"  # of meta.json: of the files of plug-ins, when the run was resumed
BUILT_IN: dict[str, tuple[str, ...]] = {
    "taskset": tuple(TASKSETS),
    "rule": tuple(RULES),
    "dialect": (AUTO, *DIALECTS),
    "engine": ENGINE_KINDS,
    "world": (),
    "function": (),
}


def plugin_facts(config: Any, *, task: str = "") -> dict[str, Any]:
    """The plug-ins that settings and a task name, for meta.json; nothing if there are none."""
    found = [
        {"kind": kind, "reference": reference, "sha256": plugins.fingerprint(reference, kind)}
        for kind, reference in dict.fromkeys(_references(config, task))
    ]
    return {FIELD: found} if found else {}


def _references(config: Any, task: str) -> Iterator[tuple[str, str]]:
    for kind, name in (("taskset", split_spec(task)[0]), *_named(config)):
        if name and name not in BUILT_IN[kind] and name.partition(":")[0] not in SOURCES:
            yield kind, name


def _named(config: Any) -> Iterator[tuple[str, str]]:
    """Everything that settings name, plug-in or not."""
    tables = [config, *(_get(config, name) for name in ("eval", "warm", "demos"))]
    for table in tables:
        for spec in (_get(table, "task"), *(_get(table, "tasks") or ())):
            yield "taskset", split_spec(spec or "")[0]
        yield "dialect", _get(table, "dialect") or ""
    yield "rule", _get(config, "rule") or ""
    yield "world", _get(config, "world") or ""
    yield "function", _get(_get(config, "stop"), "when") or ""
    for engine in ("engine", "clone"):
        yield "engine", _get(_get(config, engine), "kind") or ""


def _get(table: Any, name: str) -> Any:
    return cast(Mapping[str, Any], table).get(name) if isinstance(table, Mapping) else getattr(table, name, None)


def check_plugins(run: RunDir, *, accept_changes: bool = False) -> None:
    """Refuse to resume a run whose plug-ins are gone, or have other contents than when they were last accepted.

    With `accept_changes` the new contents are accepted: `meta.json` gets their hashes, and an entry for every change.
    """
    meta, accepted = run.meta, list[dict[str, Any]]()
    for fact in meta.get(FIELD, []):
        reference, kind, before = str(fact["reference"]), str(fact["kind"]), str(fact["sha256"])
        now = _fingerprint(run, reference, kind)
        if now == before:
            continue
        if not accept_changes:
            raise ConfigError(
                f"the file of the {kind} {reference} has changed since {run.path} was started: "
                "put it back, or resume with --accept-changes"
            )
        fact["sha256"] = now
        accepted.append({"kind": kind, "reference": reference, "from": before, "to": now})
    if accepted:
        event = {"after": checkpoint_step(latest(run.path)), "when": datetime.now(UTC).isoformat(timespec="seconds")}
        run.write_meta(meta | {ACCEPTED: [*meta.get(ACCEPTED, []), *(change | event for change in accepted)]})


def _fingerprint(run: RunDir, reference: str, kind: str) -> str:
    try:
        plugins.load(reference, kind)
        return plugins.fingerprint(reference, kind)
    except ConfigError as error:
        raise ConfigError(f"{run.path} was started with the {kind} {reference}: {error}") from None
