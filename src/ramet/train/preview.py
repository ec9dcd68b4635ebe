"""The first tasks of a training, tried before it starts: do they fit the window, and is their oracle right?"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio

from ramet import plugins
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.budget import Budget
from ramet.engine.scripted import Reply, ScriptedEngine
from ramet.errors import ConfigError
from ramet.interfaces import Taskset
from ramet.models.folders import NANO, SMOLLM2, SMOLLM2_FOLDER, cache_folder, choose_device
from ramet.models.nano import WINDOW, nano_tokenizer_files
from ramet.models.packages import check_packages
from ramet.tasks.play import AS_DEMONSTRATED, demonstrate, play_unjudged
from ramet.tasks.returned import budget_of, world_of
from ramet.tokens.huggingface import load_renderer
from ramet.tokens.render import TokenRenderer
from ramet.train.bounds import parse_bounds
from ramet.train.collect import step_attempts
from ramet.train.settings import TrainConfig, resolve_model_path
from ramet.types import Node, Stop, Task, Tree

TRIED = 5  # tasks, until the oracle is right in one


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What the oracle did with the first tasks: a line per tree, and what is wrong if it was right in none of them."""

    notes: tuple[str, ...]
    problem: str | None = None


def check_first_task(
    taskset: Taskset, split: str, config: TrainConfig, renderer: TokenRenderer, *, window: int | None
) -> None:
    """Raise if the prompt of the first task does not fit the window. `window` is what the model reads, if known.

    Raise too if only a judge could grade the task, and there is none: a tree without an answer is graded to find out.
    """
    task, budget = next(_tries(taskset, split, config, window=window, most=1))
    engine = ScriptedEngine(lambda _: Reply(text=""), renderer=renderer)
    options = TreeOptions.from_settings(config, engine=engine, budget=budget, world=world_of(taskset, task))
    try:
        TreeRun(task, options)
    except ConfigError as error:
        model = f" (the model reads at most {window:,} tokens)" if window == budget.window else ""
        raise ConfigError(f"{task.id}: {error}{model}") from None
    if not config.judge.model and anyio.run(play_unjudged, taskset, task, options).root.verdict is None:
        raise ConfigError(f"{task.id}: this taskset needs a judge, and none is given: add judge.model=NAME")


def preview(taskset: Taskset, split: str, config: TrainConfig) -> Preview:
    """The first tasks, played by their oracle in the tokens of the model until it is right. Loads no model."""
    try:
        renderer, window = model_tokens(config)
    except ConfigError as error:
        return Preview(notes=(f"no task was tried: {error}",))
    check_first_task(taskset, split, config, renderer, window=window)
    trees: list[Tree] = []
    for task, budget in _tries(taskset, split, config, window=window):
        trees.append(anyio.run(_demonstration(taskset, task, budget, config, renderer)))
        if _is_right(trees[-1]):
            return Preview(notes=tuple(map(describe, trees)))
    return Preview(notes=tuple(map(describe, trees)), problem=_problem(trees, plugins.shortened(config.task)))


def full_window(taskset: Taskset, split: str, config: TrainConfig) -> str:
    """A line about the first task if the window ends its root, where the oracle fills it; else nothing."""
    try:
        renderer, window = model_tokens(config)
    except ConfigError:
        return ""  # the training says so itself
    check_first_task(taskset, split, config, renderer, window=window)
    task, budget = next(_tries(taskset, split, config, window=window, most=1))
    tree = anyio.run(_demonstration(taskset, task, budget, config, renderer))
    return describe(tree) if tree.root.stop is Stop.WINDOW else ""


def _tries(
    taskset: Taskset, split: str, config: TrainConfig, *, window: int | None, most: int = TRIED
) -> Iterator[tuple[Task, Budget]]:
    """The first tasks, each with the smallest budget that it may get, then with the largest if that is another."""
    attempts = step_attempts(taskset, split, replace(config, group_size=1, tasks_per_step=most), step=0)
    bounds = parse_bounds(config.budget).items()
    for task in {attempt.task.id: attempt.task for attempt in attempts}.values():
        own = budget_of(taskset, task)
        both = [replace(own, **{name: ends[place] for name, ends in bounds}) for place in (0, 1)]
        both = [replace(budget, window=min(budget.window, window or budget.window)) for budget in both]
        yield from ((task, budget) for budget in dict.fromkeys(both))


def _demonstration(
    taskset: Taskset, task: Task, budget: Budget, config: TrainConfig, renderer: TokenRenderer
) -> Callable[[], Awaitable[Tree]]:
    return partial(
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


def _is_right(tree: Tree) -> bool:
    return tree.root.verdict is not None and tree.root.verdict.is_right


def _problem(trees: Sequence[Tree], spec: str) -> str:
    """Why a training on these tasks has a chance of nothing: the first reason, and where to see more."""
    tasks = len({tree.task.id for tree in trees})
    verdict, nodes = trees[0].root.verdict, trees[0].nodes
    reason = (verdict.reason if verdict else "") or ", ".join(_stopped(nodes))
    because = f" ({reason})" if reason else ""
    return f"the oracle of {spec} is right in none of {tasks} tasks{because}; see ramet tasks check {spec}"


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


def describe(tree: Tree) -> str:
    """What an oracle did with its task, and how much of the window it took."""
    peak, used, limits = max(node.usage.peak_window for node in tree.nodes), tree.usage.tokens, tree.budget
    nodes = "1 node" if len(tree.nodes) == 1 else f"{len(tree.nodes)} nodes"
    ended = "answers" if tree.root.stop is Stop.ANSWERED else f"is stopped by {tree.root.stop}"
    judged = tree.root.verdict is not None and tree.root.verdict.reason == AS_DEMONSTRATED
    right = "for the judge to grade" if judged else "right" if _is_right(tree) else "not right"
    stopped = "".join(f" ({nodes})" for nodes in _stopped(tree.nodes[1:]))
    return (
        f"{tree.task.id}: its oracle {ended}, {right}, with {nodes}{stopped} and "
        f"{used:,} of {limits.tokens:,} tokens; the fullest window has {peak:,} of {limits.window:,} tokens"
    )


def _stopped(nodes: Sequence[Node]) -> list[str]:
    """How many nodes each limit stopped."""
    stops = Counter(f"{node.stop}" for node in nodes if node.stop is not Stop.ANSWERED)
    return [f"{number} stopped by {stop}" for stop, number in sorted(stops.items())]


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
