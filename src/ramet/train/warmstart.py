"""A supervised start: demonstrations become rows like any others, and every token of them is worth learning.

Demonstrations come from a taskset's oracle, played by the real runtime in the model's own tokens, or from the trees of
a run directory: as they are where they were sampled in those tokens, else said again in them.
"""

# pyright: standard

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel

from ramet.agent.dialects import make_dialect
from ramet.config import load
from ramet.errors import TrainError
from ramet.interfaces import Taskset
from ramet.store import RunDir, read_trees
from ramet.tasks.play import demonstrate
from ramet.tasks.registry import check_split, spec_of
from ramet.tasks.registry import load as load_taskset
from ramet.tokens.render import TokenRenderer
from ramet.train.collect import drawn_budget, seed_of
from ramet.train.local.backend import Held, Started, Tell, found_again, hold, kept, quiet, settled, tracked
from ramet.train.local.checkpoint import latest, save
from ramet.train.local.learner import shorten, step
from ramet.train.replay import replay, speaks
from ramet.train.rows import Row, rows_of
from ramet.train.settings import WarmConfig, bounds_of
from ramet.train.step import differentiate, facts_of
from ramet.train.track import check_trackers
from ramet.types import Tree

Shown = Callable[[int], Awaitable[list[Tree]]]  # the trees of a step


def warmstart(config: WarmConfig, *, runs: Path | str = "runs", tell: Tell = quiet, started: Started = quiet) -> RunDir:
    """Teach a model by showing; the last checkpoint of the run is where `ramet train` can begin."""
    config = replace(config, model=settled(config.model))
    source = check_source(config)
    held = hold(config.model, config.update, config.sampler, seed=config.seed)
    with held.engine:
        run = RunDir.create(runs, config.name, config=config, kind="warmstart")
        started(run)
        with tracked(config, run, tell) as told:
            anyio.run(partial(_go_on, config, held, source(held), run, first=0, tell=told))
    return run


def resume_warmstart(path: Path | str, *, tell: Tell = quiet, started: Started = quiet) -> RunDir:
    """Go on where the newest checkpoint is."""
    run = found_again(path, kind="warmstart")
    config = load(WarmConfig, file=run.path / "config.toml")
    source = check_source(config)
    held = hold(config.model, config.update, config.sampler, seed=config.seed, state=latest(run.path))
    with held.engine:
        first = held.engine.policy_version
        run.rewind(first)
        started(run)
        with tracked(config, run, tell) as told:
            anyio.run(partial(_go_on, config, held, source(held), run, first=first, tell=told))
    return run


def check_source(config: WarmConfig) -> Callable[[Held], Shown]:
    """Where demonstrations come from; what is not there is told before a model is loaded."""
    check_trackers(config.track)
    name, split = spec_of(config.task)
    taskset = load_taskset(name, **config.taskset)
    if config.run:
        trees = worth_showing(list(read_trees(config.run)), least=config.least, where=config.run)
        return lambda held: _from_trees(anyio.run(own_words, trees, taskset, held.renderer), config)
    make_dialect(config.dialect)
    check_split(taskset, split)
    return lambda held: _from_oracle(taskset, split, config, held.renderer)


async def own_words(trees: Sequence[Tree], taskset: Taskset, renderer: TokenRenderer) -> list[Tree]:
    """The trees in this model's tokens. Those of the taskset's own tasks are played in its worlds again."""
    found: list[Tree] = []
    for tree in trees:
        if speaks(renderer, tree):
            found.append(tree)
            continue
        ours = tree.task.id.partition(":")[0] == taskset.name
        again = await replay(tree, renderer=renderer, taskset=taskset if ours else None)
        found += [] if again is None else [again]
    if not found:
        raise TrainError(f"none of {len(trees):,} trees can be said again in this model's tokens")
    return found


def worth_showing(trees: Sequence[Tree], *, least: float, where: str) -> list[Tree]:
    """Trees whose root scored at least so much."""
    good = [tree for tree in trees if tree.root.verdict is not None and tree.root.verdict.score >= least]
    if not good:
        raise TrainError(f"none of the {len(trees):,} trees of {where} scored {least:g} or more: nothing to show")
    return good


def _from_trees(trees: Sequence[Tree], config: WarmConfig) -> Shown:
    async def shown(step: int) -> list[Tree]:
        """Every tree once, in a new order each time round."""
        await anyio.lowlevel.checkpoint()
        places = range(step * config.trees_per_step, (step + 1) * config.trees_per_step)
        orders: dict[int, list[Tree]] = {}
        for epoch in {place // len(trees) for place in places}:
            orders[epoch] = list(trees)
            random.Random(seed_of(config.seed, "order", epoch)).shuffle(orders[epoch])
        return [orders[place // len(trees)][place % len(trees)] for place in places]

    return shown


def _from_oracle(taskset: Taskset, split: str, config: WarmConfig, renderer: TokenRenderer) -> Shown:
    async def shown(step: int) -> list[Tree]:
        places = range(step * config.trees_per_step, (step + 1) * config.trees_per_step)
        trees = await demonstrations(taskset, split, config, renderer, places)
        return worth_showing(trees, least=config.least, where=f"the oracle of {config.task}")

    return shown


async def demonstrations(
    taskset: Taskset, split: str, config: WarmConfig, renderer: TokenRenderer, places: Sequence[int]
) -> list[Tree]:
    """The oracle's trees at these places, in the tokens of `renderer`. A share of them delegates, at random."""
    size, bounds = taskset.size(split), bounds_of(config.budget)
    trees: list[Tree] = []
    for place in places:
        task = taskset.task(split, place if size is None else place % size)
        dice = random.Random(seed_of(config.seed, "show", place))
        tree = await demonstrate(
            taskset,
            task,
            dialect=config.dialect,
            delegate=dice.random() < config.delegate,
            seed=dice.getrandbits(32),
            budget=drawn_budget(taskset.budget(task), bounds, seed=dice.getrandbits(32)),
            renderer=renderer,
            show_budget=config.show_budget,
        )
        tree.id = f"show-{place:08d}"
        trees.append(tree)
    return trees


def rows_to_copy(trees: Sequence[Tree]) -> list[Row]:
    """Every sampled token, to be said again. What the demonstrator thought of it (its log-probs) plays no part."""
    credits = [dict.fromkeys((node.index for node in tree.nodes), (1.0, 1.0)) for tree in trees]
    rows = [row for tree, own in zip(trees, credits, strict=True) for row in rows_of(tree, own)]
    return [replace(row, logprobs=None) for row in rows]


async def _go_on(config: WarmConfig, held: Held, shown: Shown, run: RunDir, *, first: int, tell: Tell) -> None:
    with kept(held, run, keep=config.keep_checkpoints):
        for number in range(first, config.steps):
            began = time.monotonic()
            trees = await shown(number)
            stats = differentiate(held.learner, rows_to_copy(trees), loss=config.loss, tokens=config.update.micro_batch_tokens)
            norm, rate = shorten(held.learner), config.update.rate_at(number, config.steps)
            with held.engine.updating():
                step(held.learner, rate=rate)
            facts = facts_of(trees) | {"norm": norm, "rate": rate} | asdict(stats)
            record = {"step": number, **facts, "learn_s": time.monotonic() - began}
            run.log(record)
            tell(record)
            if (number + 1) % config.save_every == 0 or number + 1 == config.steps:
                save(held.learner, run.path, step=number + 1, tokenizer=held.folder, keep=config.keep_checkpoints)
