"""What `ramet run` is asked: a question in plain text, or a task by its name, like `craft:hard/17`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ramet.agent.dialects import make_dialect
from ramet.config import RunConfig, load
from ramet.errors import ConfigError
from ramet.interfaces import Taskset
from ramet.tasks.registry import TASKSETS, find_task
from ramet.types import Task, clean


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The settings of one tree and its task, checked before an engine is opened."""

    config: RunConfig
    task: Task
    taskset: Taskset | None = None  # None: a question in plain text, which has no verdict


def resolve_run(*, file: Path | None = None, words: Sequence[str] = (), flags: Mapping[str, Any]) -> RunPlan:
    """Read the settings and find the task. Settings override the budget that a taskset declares."""
    config = load(RunConfig, file=file, words=words, flags=flags)
    named = named_task(config.question, config.taskset)
    if named is None:
        return _checked(RunPlan(config=config, task=Task(question=config.question)))
    taskset, task = named
    declared = {key: value for key, value in asdict(taskset.budget(task)).items() if value is not None}
    config = load(RunConfig, file=file, words=words, flags=flags, base={"budget": declared})
    return _checked(RunPlan(config=config, task=task, taskset=taskset))


def named_task(question: str, options: Mapping[str, Any]) -> tuple[Taskset, Task] | None:
    """The task a question names (`craft:hard/17`); None for a question in plain text."""
    name, colon, rest = question.partition(":")
    if not colon or name not in TASKSETS or " " in rest.strip():
        return None
    return find_task(question.strip(), options)


def _checked(plan: RunPlan) -> RunPlan:
    config = plan.config
    if not config.engine.model:
        raise ConfigError("which model? give --model NAME (the server's /v1/models lists them), a folder, or smollm2")
    if not config.question.strip():
        raise ConfigError("the question is empty")
    if clean(config.question) != config.question:
        raise ConfigError("the question is not valid UTF-8")
    make_dialect(config.dialect)
    return plan
