"""The first task of a training, tried before it starts: does it fit the window, and what does its oracle do?"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio

from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.budget import Budget
from ramet.engine.scripted import Reply, ScriptedEngine
from ramet.errors import ConfigError
from ramet.interfaces import Taskset
from ramet.models.folders import NANO, SMOLLM2, SMOLLM2_FOLDER, cache_folder, choose_device
from ramet.models.nano import WINDOW, nano_tokenizer_files
from ramet.models.packages import check_packages
from ramet.tasks.play import demonstrate, play_unjudged
from ramet.tasks.returned import budget_of, world_of
from ramet.tokens.huggingface import load_renderer
from ramet.tokens.render import TokenRenderer
from ramet.train.bounds import parse_bounds
from ramet.train.collect import step_attempts
from ramet.train.settings import TrainConfig, resolve_model_path
from ramet.types import Stop, Task, Tree


def check_first_task(
    taskset: Taskset, split: str, config: TrainConfig, renderer: TokenRenderer, *, window: int | None
) -> tuple[Task, Budget]:
    """The first task and the smallest budget it may get. Raises if its prompt does not fit the window.

    `window` is the most that the model can read, if that is known. Raises too if only a judge could grade the task, and
    there is none: a tree without an answer is graded to find out.
    """
    task = step_attempts(taskset, split, replace(config, group_size=1, tasks_per_step=1), step=0)[0].task
    lowest = {name: low for name, (low, _) in parse_bounds(config.budget).items()}
    budget = replace(budget_of(taskset, task), **lowest)
    budget = replace(budget, window=min(budget.window, window or budget.window))
    engine = ScriptedEngine(lambda _: Reply(text=""), renderer=renderer)
    options = TreeOptions.from_settings(config, engine=engine, budget=budget, world=world_of(taskset, task))
    try:
        TreeRun(task, options)
    except ConfigError as error:
        model = f" (the model reads at most {window:,} tokens)" if window == budget.window else ""
        raise ConfigError(f"{task.id}: {error}{model}") from None
    if not config.judge.model and anyio.run(play_unjudged, taskset, task, options).root.verdict is None:
        raise ConfigError(f"{task.id}: this taskset needs a judge, and none is given: add judge.model=NAME")
    return task, budget


def preview(taskset: Taskset, split: str, config: TrainConfig) -> str:
    """One line about the first task, played by its oracle in the tokens of the model. Loads no model."""
    try:
        tokens = model_tokens(config)
    except ConfigError as error:
        return f"no task was tried: {error}"
    return describe(*play_first_task(taskset, split, config, *tokens))


def full_window(taskset: Taskset, split: str, config: TrainConfig) -> str:
    """The same line if the window ends the root of the first task, where its oracle fills it; else nothing."""
    try:
        tokens = model_tokens(config)
    except ConfigError:
        return ""  # the training says so itself
    task, tree = play_first_task(taskset, split, config, *tokens)
    return describe(task, tree) if tree.root.stop is Stop.WINDOW else ""


def play_first_task(
    taskset: Taskset, split: str, config: TrainConfig, renderer: TokenRenderer, window: int | None
) -> tuple[Task, Tree]:
    """The first task and the tree of its oracle, within the smallest budget that the settings allow."""
    task, budget = check_first_task(taskset, split, config, renderer, window=window)
    play = partial(
        demonstrate,
        taskset,
        task,
        dialect=config.dialect,
        budget=budget,
        renderer=renderer,
        show_budget=config.show_budget,
        allow_impossible=config.allow_impossible,
        instructions=config.instructions,
        delegate_instructions=config.delegate_instructions,
    )
    return task, anyio.run(play)


def device_problems(config: TrainConfig) -> list[str]:
    """Why the devices that the settings name cannot be used on this machine, a line each. Only then torch is loaded."""
    named = {device for device in (config.sampler.device, config.update.device) if device not in (None, "cpu")}
    if config.backend.kind != "local":
        return []
    return [problem for device in sorted(named) if (problem := _device_problem(device))]


def _device_problem(device: str) -> str:
    try:
        check_packages()
        choose_device(device)
    except ConfigError as error:
        return str(error)
    return ""


def describe(task: Task, tree: Tree) -> str:
    """What an oracle did with a task, and how much of the window it took."""
    peak, used = max(node.usage.peak_window for node in tree.nodes), tree.usage
    nodes = "1 node" if len(tree.nodes) == 1 else f"{len(tree.nodes)} nodes"
    ended = "answers" if tree.root.stop is Stop.ANSWERED else f"is stopped by {tree.root.stop}"
    right = tree.root.verdict is not None and tree.root.verdict.is_right
    stops = Counter(f"{node.stop}" for node in tree.nodes[1:] if node.stop is not Stop.ANSWERED)
    stopped = "".join(f" ({number} stopped by {stop})" for stop, number in sorted(stops.items()))
    return (
        f"{task.id}: its oracle {ended}, {'right' if right else 'not right'}, with {nodes}{stopped} and "
        f"{used.tokens:,} tokens; the fullest window has {peak:,} of {tree.budget.window:,} tokens"
    )


def model_tokens(config: TrainConfig) -> tuple[TokenRenderer, int | None]:
    """The tokenizer of the model and the most tokens that it reads, from its files."""
    if config.model == NANO:
        with tempfile.TemporaryDirectory() as folder:
            return load_renderer(nano_tokenizer_files(folder)), config.sampler.window or WINDOW
    unpacked = cache_folder() / SMOLLM2_FOLDER
    known = config.model == SMOLLM2 and (unpacked / "tokenizer.json").is_file()
    model = str(unpacked) if known else resolve_model_path(config.model)
    return load_renderer(model), config.sampler.window or _positions(Path(model) / "config.json")


def _positions(file: Path) -> int | None:
    """The longest text that a model was made for, as its config.json says."""
    try:
        found = json.loads(file.read_text(encoding="utf-8")).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, int) and found > 0 else None
