"""Commands about trees: run one, show those of a run directory."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio

from ramet.agent.dialects.python import PythonDialect
from ramet.agent.live import LiveLog
from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.config import AUTO
from ramet.draw import counted, one_line
from ramet.engine.http import HttpEngine
from ramet.engine.open import OpenedEngine, check_named, clone_config, closing, open_clone_engine, open_engines
from ramet.engine.probing import choose_dialect
from ramet.errors import EngineError, StoreError
from ramet.inputs.open import as_stored, open_world
from ramet.inputs.settings import RunConfig
from ramet.interfaces import Engine, World
from ramet.serve.settings import ServeConfig
from ramet.store import RunDir, read_trees
from ramet.store.atomic import write_text
from ramet.store.facts import node_facts, tree_facts
from ramet.tasks.judge import open_judge
from ramet.tasks.play import grade, options_for_task
from ramet.tasks.question import RunPlan
from ramet.tasks.registry import short_name
from ramet.tasks.unchecked import Unchecked
from ramet.terminal.console import command, out, print_json, warn
from ramet.terminal.live import summary, watch_tree
from ramet.train.stored_credit import stored_credit
from ramet.types import Node, Tree

Config = TypeVar("Config", RunConfig, ServeConfig)
MAX_DRAWN = 10  # trees drawn by one command; a run may hold thousands


def run_question(plan: RunPlan, *, api_key: str | None, runs: Path, as_json: bool) -> bool:
    """Run one tree, grade it if it has a taskset, and store it in a new run directory; whether there is an answer."""
    config = plan.config
    clone_config(config.engine, config.clone)  # a bad setting fails before a model is loaded
    engine, judge = open_engines(config.engine, None if plan.taskset is None else config.judge, api_key=api_key)
    clones = open_clone_engine(config.engine, config.clone, api_key=api_key)
    return anyio.run(partial(_run_question, plan, engine, judge, clones, runs=runs, as_json=as_json))


async def _run_question(
    plan: RunPlan,
    engine: OpenedEngine,
    judge: OpenedEngine | None,
    clones: OpenedEngine | None,
    *,
    runs: Path,
    as_json: bool,
) -> bool:
    async with closing(engine, judge, clones), open_world(plan.config, plan.task.context, plan.world) as world:
        options = tree_options(plan, engine, world, clones)
        tree_run = TreeRun(plan.task, options)  # refuses what does not fit before the server is asked
        plan = replace(plan, config=await check_engines(plan.config, engine, clones, explain=plan.names_dialect))
        if plan.config.dialect != tree_run.tree.dialect:
            tree_run = TreeRun(plan.task, replace(options, dialect=plan.config.dialect))

        name = plan.config.question if plan.taskset is None else short_name(plan.config.question.strip())
        run_dir = RunDir.create(runs, name, config=as_stored(plan.config), facts=plan.plugins())

        async def grade_tree() -> None:
            if plan.taskset is not None:
                judging = None if judge is None else open_judge(judge, plan.config.judge, run=run_dir.path)
                await grade(tree_run.tree, plan.taskset, tree_run.world, judge=judging)
                Unchecked().add([tree_run.tree])

        await run_and_store(tree_run, run_dir, as_json=as_json, after=grade_tree)
        return tree_run.tree.answer is not None


async def check_engines(config: Config, engine: OpenedEngine, clones: OpenedEngine | None, *, explain: bool) -> Config:
    """Reach the servers, find out the model if none was named, and choose the dialect.

    `explain`: the user named the dialect, so a line says why `auto` is not `native`.
    """
    for one in (engine, clones):
        if isinstance(one, HttpEngine):
            await check_named(one)
    if isinstance(engine, HttpEngine):
        config = replace(config, engine=replace(config.engine, model=engine.model))
    engines = [one for one in (engine, clones) if one is not None]
    dialect = await choose_dialect(config.dialect, engines, explain=explain)
    return replace(config, dialect=dialect)


def tree_options(plan: RunPlan, engine: Engine, world: World | None, clones: Engine | None = None) -> TreeOptions:
    """How the tree of a plan is run."""
    config = plan.config
    options = TreeOptions.from_settings(
        config,
        engine=engine,
        clone_engine=clones,
        budget=config.budget,
        dialect="tools" if config.dialect == AUTO else config.dialect,
        world=world,
        seed=config.seed,
    )
    return options if plan.taskset is None else options_for_task(plan.taskset, plan.task, options)


async def run_and_store(
    tree_run: TreeRun, run_dir: RunDir, *, as_json: bool = False, after: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Run, show and store a tree; `after` may grade it. An interrupted tree is stored with the nodes it has.

    A server without the model leaves nothing to read, so the run directory is removed again.
    """
    interrupted = kept = True
    tree_run.watcher = LiveLog(run_dir.path)
    try:
        if as_json or not out.is_terminal:
            await tree_run.run()
        else:
            await watch_tree(tree_run, out)
        if after is not None:
            await after()
        interrupted = False
    except EngineError as error:
        interrupted = False
        if error.lasting == "missing" and not any(node.turns for node in tree_run.tree.nodes):
            kept = not run_dir.remove_if_empty()
            raise
        raise EngineError(f"{error} · the unfinished tree is in {run_dir.path}") from error
    finally:
        if kept and tree_run.tree.nodes:
            run_dir.write([tree_run.tree])
        if interrupted:
            _print_result(tree_run.tree, run_dir, as_json=as_json, note="the tree so far is in ")
    _print_result(tree_run.tree, run_dir, as_json=as_json)
    if not _texts_were_read(tree_run):
        warn(
            "no node has read the texts: the root sees their names and handed none of them to a clone; "
            "with --depth 0 it reads them itself"
        )


def _texts_were_read(tree_run: TreeRun) -> bool:
    """Whether a node read a text, if there are any. A cell of Python may always read them."""
    if not tree_run.tree.task.context or tree_run.root.reads_texts or isinstance(tree_run.dialect, PythonDialect):
        return True
    return any(node.texts for node in tree_run.tree.nodes if node.parent is not None)


def _print_result(tree: Tree, run_dir: RunDir, *, as_json: bool, note: str = "") -> None:
    if as_json:
        return print_json(tree_facts(tree) | {"run": str(run_dir.path)})
    out.print(summary(tree, width=out.width))
    return out.print(f"{note}{run_dir.path}  ({command()} show {run_dir.path})", style="dim")


def show_trees(path: Path, *, tree_id: str | None, as_json: bool) -> None:
    """Draw the trees of a run directory, the first ten if there are many; as JSON, print all of them."""
    trees = _matching_trees(path, tree_id, limit=None if as_json else MAX_DRAWN + 1)
    if as_json:
        return print_json([tree_facts(tree) for tree in trees])
    if not trees:
        return out.print(f"{path} has no finished tree yet")
    for tree in trees[:MAX_DRAWN]:
        if len(trees) > 1:
            out.print(f"tree {tree.id}", style="bold")
        out.print(summary(tree, width=out.width))
        if len(trees) > 1:
            out.print()
    if len(trees) > MAX_DRAWN:
        listing = shlex.join([command(), "sql", str(path), "select tree, score, tokens from trees"])
        out.print(f"Only the first {MAX_DRAWN} are shown. Show another: --tree ID; list all: {listing}", style="dim")
    return None


def show_node(path: Path, index: int, *, tree_id: str | None, as_json: bool) -> None:
    """Print every message of one node, of the first tree unless an id is given."""
    trees = _matching_trees(path, tree_id, limit=1)
    if not trees:
        return print_json([]) if as_json else out.print(f"{path} has no finished tree yet")
    tree = trees[0]
    if not 0 <= index < len(tree.nodes):
        raise StoreError(f"tree {tree.id} has nodes 0 to {len(tree.nodes) - 1}, not {index}")
    node = tree.nodes[index]
    run = RunDir.open(path)
    credit = stored_credit(run, tree.id) if run.kind == "train" else None
    if as_json:
        credit = {} if credit is None else {"credit": credit["nodes"].get(str(index))}
        return print_json(node_facts(node) | credit | {"pieces": [asdict(piece) for piece in node.pieces]})
    out.print(f"node {node.index}{_place(tree, node)}: {one_line(node.goal, 200)}", style="bold")
    if credit is not None:
        out.print(_credit_line(credit, index), style="dim")
    turn = itertools.count()  # as `ramet fork --turn` counts them
    for piece in node.pieces:
        out.rule(f"sampled, turn {next(turn)}" if piece.sampled else "given", style="green" if piece.sampled else "dim")
        out.print(piece.text)
    out.rule(f"{node.stop}" + (f": {node.error}" if node.error else ""))
    return None


def _credit_line(credit: Mapping[str, Any], index: int) -> str:
    """The credit of one node of a training, or why it has none."""
    if credit["nodes"]:
        own = credit["nodes"][str(index)]
        terms = f"reward {own['reward']:.3g}, baseline {own['baseline']:.3g}, advantage {own['advantage']:+.3g}"
        note = f"; {credit['note']}" if credit["note"] else ""
        return f"credit by rule {credit['rule']}: {terms}, weight {own['weight']:.3g}{note}"
    return f"no credit: {credit['why']}"


def save_moving_tree(path: Path, file: Path, *, tree_id: str | None) -> None:
    """Write an SVG file in which a tree grows: the first tree, unless an id is given."""
    from ramet.report.moving import moving_tree

    trees = _matching_trees(path, tree_id, limit=1)
    if not trees:
        raise StoreError(f"{path} has no finished tree yet")
    try:
        write_text(file, moving_tree(trees[0]) + "\n")
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror or error}") from None
    out.print(f"{file}: tree {trees[0].id}, {counted(len(trees[0].nodes), 'node')}")


def _place(tree: Tree, node: Node) -> str:
    """Which clone of which node it is, as its parent reads it: `clone 2.1` is the first clone of the second turn."""
    if node.parent is None:
        return ", the root"
    turns = tree.nodes[node.parent].turns
    places = [
        (turn, turns[turn].children.index(node.index))
        for turn in range(len(turns))
        if node.index in turns[turn].children
    ]
    return "".join(f", clone {turn + 1}.{place + 1} of node {node.parent}" for turn, place in places[:1])


def _matching_trees(path: Path, tree_id: str | None, *, limit: int | None) -> list[Tree]:
    """The tree with this id, else those whose id starts with it; without an id all trees. At most `limit`."""
    matching: list[Tree] = []
    for tree in read_trees(path, on_problem=warn):
        if tree.id == tree_id:
            return [tree]
        if tree_id is None and len(matching) == limit:
            break
        if (tree_id is None or tree.id.startswith(tree_id)) and (limit is None or len(matching) < limit):
            matching.append(tree)
    if tree_id is not None and not matching:
        raise StoreError(f"{path} has no tree {tree_id!r}")
    return matching
