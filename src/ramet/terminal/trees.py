"""Commands about trees: run one, show those of a run directory, query them with SQL."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import anyio
from rich.table import Table

from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.engine.http import HttpEngine
from ramet.engine.open import OpenedEngine, closing, open_engines
from ramet.errors import EngineError, StoreError
from ramet.store import RunDir, query, read_trees
from ramet.store.facts import node_facts, tree_facts
from ramet.tasks.judge import open_judge
from ramet.tasks.play import goal_comparison, goal_measure, goal_problem, grade
from ramet.tasks.question import RunPlan
from ramet.terminal.console import command, out, print_json, table_console, warn
from ramet.terminal.live import summary, watch_tree
from ramet.types import Tree

MAX_DRAWN = 10  # trees drawn by one command; a run may hold thousands


def run_question(plan: RunPlan, *, api_key: str | None, runs: Path, as_json: bool) -> None:
    """Run one tree, grade it if it has a taskset, and store it in a new run directory."""
    config = plan.config
    engine, judge = open_engines(config.engine, None if plan.taskset is None else config.judge, api_key=api_key)
    anyio.run(partial(_run_question, plan, engine, judge, runs=runs, as_json=as_json))


async def _run_question(
    plan: RunPlan, engine: OpenedEngine, judge: OpenedEngine | None, *, runs: Path, as_json: bool
) -> None:
    async with closing(engine, judge):
        tree_run = TreeRun(plan.task, _tree_options(plan, engine))
        if isinstance(engine, HttpEngine):
            await engine.check()  # before a run directory is created

        run_dir = RunDir.create(runs, plan.config.question, config=plan.config)

        async def grade_tree() -> None:
            if plan.taskset is not None:
                judging = None if judge is None else open_judge(judge, plan.config.judge, run=run_dir.path)
                await grade(tree_run.tree, plan.taskset, tree_run.world, judge=judging)

        await run_and_store(tree_run, run_dir, as_json=as_json, after=grade_tree)


def _tree_options(plan: RunPlan, engine: OpenedEngine) -> TreeOptions:
    config = plan.config
    return TreeOptions(
        engine=engine,
        budget=config.budget,
        dialect=config.dialect,
        world=None if plan.taskset is None else plan.taskset.world(plan.task),
        temperature=config.temperature,
        seed=config.seed,
        show_budget=config.show_budget,
        same_goal=None if plan.taskset is None else goal_comparison(plan.taskset, plan.task),
        goal_size=None if plan.taskset is None else goal_measure(plan.taskset, plan.task),
        impossible=None if plan.taskset is None else goal_problem(plan.taskset, plan.task),
        allow_same_goal=config.allow_same_goal,
        allow_impossible=config.allow_impossible,
        instructions=config.instructions,
        delegate_instructions=config.delegate_instructions,
    )


async def run_and_store(
    tree_run: TreeRun, run_dir: RunDir, *, as_json: bool = False, after: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Run, show and store a tree; `after` may grade it. An interrupted tree is stored with the nodes it has."""
    try:
        if as_json or not out.is_terminal:
            await tree_run.run()
        else:
            await watch_tree(tree_run, out)
        if after is not None:
            await after()
    except EngineError as error:
        raise EngineError(f"{error} · the unfinished tree is in {run_dir.path}") from error
    finally:
        if tree_run.tree.nodes:
            run_dir.write([tree_run.tree])
    if as_json:
        print_json(tree_facts(tree_run.tree) | {"run": str(run_dir.path)})
    else:
        out.print(summary(tree_run.tree, width=out.width))
        out.print(f"{run_dir.path}  ({command()} show {run_dir.path})", style="dim")


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
    if as_json:
        return print_json(node_facts(node) | {"pieces": [asdict(piece) for piece in node.pieces]})
    for piece in node.pieces:
        out.rule("sampled" if piece.sampled else "given", style="green" if piece.sampled else "dim")
        out.print(piece.text)
    out.rule(f"{node.stop}" + (f": {node.error}" if node.error else ""))
    return None


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


def print_query(path: Path, sql: str, *, as_json: bool = False) -> None:
    """Print the rows that a SQL query returns."""
    names, rows = query(path, sql, on_problem=warn)
    if as_json:
        return print_json([dict(zip(names, row, strict=True)) for row in rows])
    table = Table(*names)
    for row in rows:
        table.add_row(*["" if value is None else str(value) for value in row])
    return table_console().print(table)
