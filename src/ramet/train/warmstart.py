"""A supervised start: demonstrations become rows like any others, with a loss on every token the demonstrator wrote.

Demonstrations come from a taskset's oracle, played by the real runtime in the model's own tokens, or from the trees of
a run directory: used as they are where they were sampled in those tokens, else rendered again.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from ramet import plugins
from ramet.agent.dialects import make_dialect
from ramet.config import load
from ramet.errors import TrainError
from ramet.interfaces import Taskset
from ramet.models.folders import model_folder
from ramet.store import RunDir, read_trees
from ramet.tasks.dice import seed_of
from ramet.tasks.play import demonstrate
from ramet.tasks.provenance import check_plugins, plugin_facts
from ramet.tasks.registry import check_split, load_taskset, parse_spec
from ramet.tasks.returned import budget_of, split_size, task_at
from ramet.tasks.unchecked import unchecked_nodes
from ramet.tasks.worlds import with_world
from ramet.tokens.huggingface import load_renderer
from ramet.tokens.render import TokenRenderer
from ramet.train.ahead import Ahead
from ramet.train.backend import Backend
from ramet.train.bounds import draw_budget, parse_bounds
from ramet.train.decisions import REPLAY
from ramet.train.length import change_settings
from ramet.train.phase import (
    Configured,
    OnStart,
    OpenBackend,
    Phase,
    continue_run,
    ignore,
    is_complete,
    new_run,
    reopen_run,
    tracked,
)
from ramet.train.prefetch import Collect
from ramet.train.replay import replay, uses_tokens_of
from ramet.train.rows import Row, tree_rows
from ramet.train.settings import WarmConfig, resolve_model_path
from ramet.train.step import Lesson
from ramet.train.track import OnStep, check_trackers
from ramet.types import Stop, Tree


def warmstart(
    config: WarmConfig,
    *,
    runs: Path | str = "runs",
    open_backend: OpenBackend | None = None,
    on_step: OnStep = ignore,
    on_start: OnStart = ignore,
) -> RunDir:
    """Teach a model by demonstrations; `ramet train` can begin with the last checkpoint of this run."""
    config = replace(config, model=resolve_model_path(config.model))
    check_source(config)
    backend = (open_backend or Configured())(config)
    with new_run(runs, config, kind="warmstart", facts=plugin_facts(config)) as run:
        return _continue(config, run, backend, on_step=on_step, on_start=on_start)


def resume_warmstart(
    path: Path | str,
    *,
    steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
    open_backend: OpenBackend | None = None,
    on_step: OnStep = ignore,
    on_start: OnStart = ignore,
    accept_changes: bool = False,
) -> RunDir:
    """Continue from the newest checkpoint; `steps` gives the run another number of steps, `settings` others of
    those in `ramet.train.length.FREE`.

    A run whose plug-ins have changed is refused unless `accept_changes`. For a run that has done all its steps no
    backend is opened.
    """

    def check(run: RunDir) -> None:
        if not is_complete(run, steps or load(WarmConfig, file=run.path / "config.toml").steps):
            check_plugins(run, accept_changes=accept_changes)

    with reopen_run(path, kind="warmstart", check=check) as run:
        given = load(WarmConfig, file=run.path / "config.toml")
        config = change_settings(run, given, steps=steps, settings=settings)
        if is_complete(run, config.steps):
            on_start(run)
            return run
        check_source(config)
        return _continue(config, run, (open_backend or Configured())(config), on_step=on_step, on_start=on_start)


def _continue(config: WarmConfig, run: RunDir, backend: Backend, *, on_step: OnStep, on_start: OnStart) -> RunDir:
    on_start(run)
    with tracked(config, run, on_step) as report:
        continue_run(partial(warm_phase, config), backend, run, on_step=report)
    return run


def warm_phase(config: WarmConfig, backend: Backend) -> Phase:
    """Demonstrations in the backend's tokens, every token of the demonstrator a target."""
    taskset, split = check_source(config)
    if config.run:
        collect = collect_stored(config, taskset, backend.renderer)
    elif config.workers:
        make = partial(make_step, config, str(model_folder(config.model)))
        ahead = Ahead(make, workers=config.workers, steps=config.steps)
        return Phase(config=config, collect=ahead.collect, lesson=copying, resources=ahead)
    else:
        collect = _collect_from_oracle(taskset, split, config, backend.renderer)
    return Phase(config=config, collect=collect, lesson=copying)


def copying(trees: Sequence[Tree]) -> Lesson:
    """Copy every token of these trees."""
    return Lesson(rows=rows_to_copy(trees))


def check_source(config: WarmConfig) -> tuple[Taskset, str]:
    """The taskset and split of the demonstrations; what does not exist is reported before a model is loaded."""
    check_trackers(config.track)
    name, split = parse_spec(config.task)
    taskset = with_world(load_taskset(name, **config.taskset), config.world)
    if config.run:
        load_demonstrations(config)
    else:
        make_dialect(config.dialect)
        split = check_split(taskset, split)
    return taskset, split


def load_demonstrations(config: WarmConfig) -> list[Tree]:
    """The trees of `config.run` that scored enough to be shown. Replays of decisions are not among them."""
    trees = [tree for tree in read_trees(config.run) if not tree.id.startswith(REPLAY)]
    return filter_by_score(trees, least=config.least, source=config.run)


async def in_own_tokens(trees: Sequence[Tree], taskset: Taskset, renderer: TokenRenderer, **added: str) -> list[Tree]:
    """The trees in this model's tokens. Those of the taskset's own tasks are played in its worlds again.

    `added` are instructions for the system prompt, as in `replay`.
    """
    own: list[Tree] = []
    for tree in trees:
        if uses_tokens_of(renderer, tree):
            own.append(tree)
            continue
        ours = tree.task.id.partition(":")[0] == taskset.name
        again = await replay(tree, renderer=renderer, taskset=taskset if ours else None, **added)
        own += [] if again is None else [again]
    if not own:
        raise TrainError(f"none of {len(trees):,} trees can be replayed in this model's tokens")
    return own


def filter_by_score(
    trees: Sequence[Tree], *, least: float, source: str, honest_failures: bool = False, advice: str = ""
) -> list[Tree]:
    """The good trees; it is an error if there are none. `advice`: what to do then, if no limit ended them."""
    good = good_trees(trees, least=least, honest_failures=honest_failures)
    if not good:
        stops = Counter(str(tree.root.stop) for tree in trees if tree.root.stop not in (None, Stop.ANSWERED))
        limits = ", ".join(f"{number:,} ended by {stop}" for stop, number in stops.most_common())
        raise TrainError(
            f"none of the {len(trees):,} trees of {source} scored {least:g} or more: nothing to learn from"
            + (f" ({limits}: are the limits of budget too tight?)" if limits else f"{_check_fault(trees)}{advice}")
        )
    return good


def _check_fault(trees: Sequence[Tree]) -> str:
    """What failed in the check of the answers, if it did."""
    failed = unchecked_nodes(trees)
    verdict = failed[0][1].verdict if failed else None
    return "" if verdict is None else f" ({failed[0][0].task.id} {verdict.reason})"


def good_trees(trees: Sequence[Tree], *, least: float, honest_failures: bool = False) -> list[Tree]:
    """Trees whose root scored `least` or more.

    With `honest_failures`, also those in which all nodes answered by themselves: an oracle reports its failures.
    """
    return [
        tree
        for tree in trees
        if (tree.root.verdict is not None and tree.root.verdict.score >= least)
        or (honest_failures and all(node.stop is Stop.ANSWERED for node in tree.nodes))
    ]


def collect_stored(config: WarmConfig, taskset: Taskset, renderer: TokenRenderer) -> Collect:
    """The trees of another run, in this model's tokens."""
    added = {name: getattr(config, name) for name in ("instructions", "delegate_instructions")}
    trees = anyio.run(partial(in_own_tokens, load_demonstrations(config), taskset, renderer, **added))

    async def collect(step: int) -> list[Tree]:
        """Every tree once per epoch, in a new order each time."""
        await anyio.lowlevel.checkpoint()
        places = range(step * config.trees_per_step, (step + 1) * config.trees_per_step)
        orders: dict[int, list[Tree]] = {}
        for epoch in {place // len(trees) for place in places}:
            orders[epoch] = list(trees)
            random.Random(seed_of(config.seed, "order", epoch)).shuffle(orders[epoch])
        return [orders[place // len(trees)][place % len(trees)] for place in places]

    return collect


def _collect_from_oracle(taskset: Taskset, split: str, config: WarmConfig, renderer: TokenRenderer) -> Collect:
    return partial(_oracle_step, taskset, split, config, renderer)


async def _oracle_step(
    taskset: Taskset, split: str, config: WarmConfig, renderer: TokenRenderer, step: int
) -> list[Tree]:
    places = range(step * config.trees_per_step, (step + 1) * config.trees_per_step)
    trees = await demonstrations(taskset, split, config, renderer, places)
    return filter_by_score(
        trees,
        least=config.least,
        source=f"the oracle of {config.task}",
        honest_failures=config.honest_failures,
        advice=f"; see ramet tasks check {plugins.shortened(config.task)}",
    )


def make_step(config: WarmConfig, folder: str, step: int) -> list[Tree]:
    """The demonstrations of one step, in a process of its own. `folder` is that of the model."""
    taskset, split, renderer = _opened(config.task, json.dumps(config.taskset), config.world, folder)
    return anyio.run(_oracle_step, taskset, split, config, renderer, step)


@cache
def _opened(task: str, options: str, world: str, folder: str) -> tuple[Taskset, str, TokenRenderer]:
    """What a worker process needs for every step."""
    name, split = parse_spec(task)
    taskset = with_world(load_taskset(name, **json.loads(options)), world)
    return taskset, check_split(taskset, split), load_renderer(folder)


async def demonstrations(
    taskset: Taskset, split: str, config: WarmConfig, renderer: TokenRenderer, places: Sequence[int]
) -> list[Tree]:
    """The oracle's trees at these places, in the tokens of `renderer`.

    A share of them delegates, at random; or those whose root does not score enough without clones.
    """
    size, bounds = split_size(taskset, split), parse_bounds(config.budget)
    trees: list[Tree] = []
    for place in places:
        task = task_at(taskset, split, place if size is None else place % size)
        dice = random.Random(seed_of(config.seed, "show", place))
        at = dice.random()
        show = partial(
            demonstrate,
            taskset,
            task,
            dialect=config.dialect,
            seed=dice.getrandbits(32),
            budget=draw_budget(budget_of(taskset, task), bounds, seed=dice.getrandbits(32)),
            renderer=renderer,
            show_budget=config.show_budget,
            allow_impossible=config.allow_impossible,
            instructions=config.instructions,
            delegate_instructions=config.delegate_instructions,
        )
        if isinstance(config.delegate, str):  # when needed
            tree = await show(delegate=False)
            if not good_trees([tree], least=config.least):
                tree = await show(delegate=True)
        else:
            tree = await show(delegate=at < config.delegate)
        tree.id = f"show-{place:08d}"
        trees.append(tree)
    return trees


def rows_to_copy(trees: Sequence[Tree]) -> list[Row]:
    """One row per node, with a target on every token it sampled except mistakes. Log-probs are dropped."""
    credits = [dict.fromkeys((node.index for node in tree.nodes), (1.0, 1.0)) for tree in trees]
    rows = [row for tree, own in zip(trees, credits, strict=True) for row in tree_rows(tree, own)]
    return [replace(row, logprobs=None) for row in rows]
