"""What `ramet run` is asked: a question in plain text with texts and functions, or a task, like `craft:hard/17`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO

from ramet.agent.dialects import make_dialect
from ramet.config import AUTO, load, merge_settings, names_server
from ramet.engine.open import WHICH_MODEL
from ramet.errors import ConfigError
from ramet.inputs.functions import load_functions
from ramet.inputs.settings import RunConfig
from ramet.inputs.texts import STDIN, read_text, read_texts
from ramet.inputs.world import InputWorld, join_worlds
from ramet.interfaces import Taskset, World
from ramet.plugins import anchored
from ramet.tasks.provenance import plugin_facts
from ramet.tasks.registry import SOURCES, TASKSETS, find_task, is_plugin, split_spec
from ramet.tasks.returned import budget_of
from ramet.tasks.trained import FoundModel, find_named_model, trained_window
from ramet.tasks.worlds import make_world
from ramet.types import Task, clean

TASK_LIKE = re.compile(r"[a-z_][\w.-]*:[a-z_][\w-]*/\d+", re.IGNORECASE)  # NAME:SPLIT/INDEX
INPUTS = ("context", "functions", "mcp")  # settings of questions in plain text


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The settings of one tree and its task, checked before an engine is opened."""

    config: RunConfig
    task: Task
    taskset: Taskset | None = None  # None: a question in plain text, which has no verdict
    world: World | None = None  # of the settings; None: the taskset's, or the texts of the question
    names_dialect: bool = False  # the user named the dialect, `auto` perhaps

    def plugins(self) -> dict[str, Any]:
        """The plug-ins of the tree, for meta.json."""
        question = self.config.question.strip()
        spec = anchored(question, Path.cwd()) if self.taskset is not None else ""
        return plugin_facts(self.config, task=spec.rpartition("/")[0])


def resolve_run(
    *, file: Path | None = None, words: Sequence[str] = (), flags: Mapping[str, Any], stdin: BinaryIO | None = None
) -> RunPlan:
    """Read the settings, find the task and read what comes with it.

    Settings override those that the model was trained with, which override the budget that a taskset declares.
    """
    given = load(RunConfig, file=file, words=words, flags=flags)
    own = merge_settings(file=file, words=words, flags=flags)
    found, names_dialect = _find_model(given, names_server(own)), "dialect" in own
    flags = {**flags, **({"engine.model": found.name} if found.name else {})}
    if given.question == STDIN:
        flags["question"] = read_text(STDIN, limit=given.context_bytes, stdin=stdin).strip()
    config = load(RunConfig, file=file, words=words, flags=flags, base=found.settings)
    named = named_task(config.question, config.taskset)
    if named is None:
        base = found.settings | {"budget": _window(found) | found.settings.get("budget", {})}
        config = load(RunConfig, file=file, words=words, flags=flags, base=base)
        texts = read_texts(config.context, limit=config.context_bytes, stdin=stdin)
        return _checked(replace(plan_question(config, texts), names_dialect=names_dialect))
    taskset, task = named
    for name in INPUTS:
        if getattr(config, name):
            raise ConfigError(f"{name} goes with a question in plain text: {config.question} brings its own")
    declared = {key: value for key, value in asdict(budget_of(taskset, task)).items() if value is not None}
    base = found.settings | {"budget": declared | found.settings.get("budget", {})}
    config = load(RunConfig, file=file, words=words, flags=flags, base=base)
    world = make_world(config.world, task) if config.world else None
    return _checked(RunPlan(config=config, task=task, taskset=taskset, world=world, names_dialect=names_dialect))


def _find_model(config: RunConfig, on_server: bool) -> FoundModel:
    """The model that a name means, and what its training says about how it is run."""
    if not config.engine.model:
        return FoundModel(name="", settings={})
    question = config.question.strip()
    tasks = [anchored(question, Path.cwd()).rpartition("/")[0]] if "/" in question and names_task(question) else []
    found = find_named_model(config.engine.model, tasks, on_server=on_server)
    return found if tasks else replace(found, settings={k: v for k, v in found.settings.items() if k != "taskset"})


def _window(found: FoundModel) -> dict[str, Any]:
    window = trained_window(found.name) if found.settings else None
    return {} if window is None else {"window": window}


def plan_question(config: RunConfig, texts: Mapping[str, str], *, id: str = "task") -> RunPlan:
    """A question in plain text with these texts, and the world and the functions of its settings."""
    task = Task(id=id, question=config.question, context={clean(key): text for key, text in texts.items()})
    world = question_world(config, task)
    if world is not None and config.functions:
        task = replace(task, context=world.context)  # with the texts of the files
    return RunPlan(config=config, task=task, world=world)


def question_world(config: RunConfig, task: Task) -> World | None:
    """The texts of a question, with its world and the functions of its settings; None if it has neither."""
    worlds = {config.world: make_world(config.world, task)} if config.world else {}
    worlds |= {reference: load_functions(reference, call_s=config.call_s) for reference in config.functions}
    if not worlds:
        return None
    known = [world.context for world in worlds.values()]  # a world may hold texts of the task that it was made for
    texts = {key: text for key, text in task.context.items() if all(each.get(key) != text for each in known)}
    if len(worlds) == 1 and not texts:
        return next(iter(worlds.values()))
    return join_worlds({"--context": InputWorld(texts, {}), **worlds})


def named_task(question: str, options: Mapping[str, Any]) -> tuple[Taskset, Task] | None:
    """The task a question names (`craft:hard/17`); None for a question in plain text."""
    question = question.strip()
    if names_task(question):
        return find_task(question, options)
    if problem := unknown_taskset(question):
        raise ConfigError(problem)
    return None


def unknown_taskset(question: str) -> str:
    """What is wrong with a word that looks like a task (`crft:hard/17`) of no taskset; empty if nothing is."""
    if TASK_LIKE.fullmatch(question) is None or names_task(question):
        return ""
    name = question.partition(":")[0]
    nearest = get_close_matches(name, TASKSETS, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else "ramet tasks lists all."
    return f"no taskset {name!r} in {question}: {hint} To ask it as a question, put a space in it"


def names_task(question: str) -> bool:
    """Whether it begins with a taskset: one by name, one of another package, or file.py:Name before a number."""
    if " " in question:
        return False
    name, colon, _ = question.partition(":")
    if colon and (name in TASKSETS or name in SOURCES):
        return True
    place, _, index = question.rpartition("/")
    return index.isdigit() and is_plugin(split_spec(place)[0])


def _checked(plan: RunPlan) -> RunPlan:
    config = plan.config
    if not config.question.strip():
        raise ConfigError("the question is empty: write it in quotes, or - to read it from standard input")
    if not config.engine.model and config.engine.kind == "local":
        raise ConfigError(WHICH_MODEL)
    if clean(config.question) != config.question:
        raise ConfigError("the question is not valid UTF-8")
    if config.dialect != AUTO:
        make_dialect(config.dialect, also=(AUTO,))
    return plan
