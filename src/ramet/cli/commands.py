"""What the commands do. `cli.py` parses and calls one of these."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
from rich.console import Console

from ramet.agent.dialects import make_dialect
from ramet.agent.tree import TreeRun
from ramet.config import RunConfig
from ramet.engine.http import HttpEngine
from ramet.engine.open import ChosenEngine, closing, engines_of
from ramet.errors import ConfigError, EngineError, StoreError
from ramet.interfaces import Engine, Taskset, World
from ramet.store import RunDir, query, read_trees
from ramet.tasks.judge import Judge
from ramet.tasks.play import grade
from ramet.tasks.registry import TASKSETS, find
from ramet.terminal.live import summary, watch
from ramet.types import Node, Task, Tree, clean

out = Console(highlight=False, soft_wrap=True, markup=False)
DRAWN = 10  # trees one command draws; a run may hold many thousands


def command() -> str:
    """How to call us from here: the bare name where it is on the path."""
    return "ramet" if shutil.which("ramet") else sys.argv[0]


Work = tuple[Taskset, Task]


def work_of(config: RunConfig) -> Work | None:
    """The task a question names (`craft:hard/17`), or None for a question in words."""
    name, colon, rest = config.question.partition(":")
    if not colon or name not in TASKSETS or " " in rest.strip():
        return None
    return find(config.question.strip(), config.taskset)


def budget_of(work: Work) -> dict[str, Any]:
    """The budget a taskset declares, as settings."""
    taskset, task = work
    return {key: value for key, value in asdict(taskset.budget(task)).items() if value is not None}


def run(config: RunConfig, work: Work | None, *, api_key: str | None, runs: Path, as_json: bool) -> None:
    """One question or task, one tree."""
    if not config.engine.model:
        raise ConfigError("which model? give --model NAME (the server's /v1/models lists them), a folder, or smollm2")
    if not config.question.strip():
        raise ConfigError("the question is empty")
    if clean(config.question) != config.question:
        raise ConfigError("the question is not valid UTF-8")
    make_dialect(config.dialect)  # a name nobody knows is told before a model is loaded
    engine, judge = engines_of(config, judged=work is not None, api_key=api_key)
    anyio.run(_run, config, work, engine, judge, runs, as_json)


async def _run(
    config: RunConfig, work: Work | None, engine: ChosenEngine, judge: ChosenEngine | None, runs: Path, as_json: bool
) -> None:
    async with closing(engine, judge):
        world = None if work is None else work[0].world(work[1])
        tree_run = tree_run_of(config, engine, config.question if work is None else work[1], world)
        if isinstance(engine, HttpEngine):
            await engine.check()  # before anything is written

        async def graded() -> None:
            if work is not None and world is not None:
                await grade(tree_run.tree, work[0], world, judge=None if judge is None else Judge(judge))

        run_dir = RunDir.create(runs, config.question, config=config)
        await run_and_store(tree_run, run_dir, as_json=as_json, after=graded)


def tree_run_of(config: RunConfig, engine: Engine, task: Task | str, world: World | None) -> TreeRun:
    return TreeRun(
        task,
        engine=engine,
        budget=config.budget,
        dialect=config.dialect,
        world=world,
        temperature=config.temperature,
        seed=config.seed,
        show_budget=config.show_budget,
    )


async def run_and_store(
    tree_run: TreeRun, run_dir: RunDir, *, as_json: bool, after: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Run, show and keep the tree; `after` may grade it. An interrupted one is kept as far as it got."""
    try:
        if as_json or not out.is_terminal:
            await tree_run.run()
        else:
            await watch(tree_run, out)
        if after is not None:
            await after()
    except EngineError as error:
        raise EngineError(f"{error} · the tree so far: {run_dir.path}") from error
    finally:
        if tree_run.tree.nodes:
            run_dir.write([tree_run.tree])
    if as_json:
        print_json(tree_facts(tree_run.tree) | {"run": str(run_dir.path)})
    else:
        out.print(summary(tree_run.tree, width=out.width))
        out.print(f"{run_dir.path}  ({command()} show {run_dir.path})", style="dim")


def show(path: Path, *, tree_id: str | None, node: int | None, as_json: bool) -> None:
    """A run's trees; with a node, everything that node was given and said."""
    trees = _trees(path, tree_id, most=None if as_json else DRAWN + 1)
    if not trees:
        if tree_id is not None:
            raise StoreError(f"{path} has no tree {tree_id!r}")
        if as_json:
            return print_json([])
        return out.print(f"{path} has no finished tree yet")
    if node is not None:
        return _show_node(trees[0], node, as_json=as_json)
    if as_json:
        return print_json([tree_facts(tree) for tree in trees])
    for tree in trees[:DRAWN]:
        if len(trees) > 1:
            out.print(f"tree {tree.id}", style="bold")
        out.print(summary(tree, width=out.width))
        if len(trees) > 1:
            out.print()
    if len(trees) > DRAWN:
        asked = shlex.join([command(), "sql", str(path), "select tree, score, tokens from trees"])
        out.print(f"These are the first {DRAWN}. One of the others: --tree ID; all of them: {asked}", style="dim")
    return None


def _trees(path: Path, tree_id: str | None, *, most: int | None) -> list[Tree]:
    """Those of that id, or else those whose ids begin like it; all of them without one. No more than are wanted."""
    found: list[Tree] = []
    for tree in read_trees(path):
        if tree.id == tree_id:
            return [tree]
        if (tree_id is None or tree.id.startswith(tree_id)) and (most is None or len(found) < most):
            found.append(tree)
        elif tree_id is None and len(found) == most:
            break
    return found


def _show_node(tree: Tree, index: int, *, as_json: bool) -> None:
    if not 0 <= index < len(tree.nodes):
        raise StoreError(f"tree {tree.id} has nodes 0 to {len(tree.nodes) - 1}, not {index}")
    node = tree.nodes[index]
    if as_json:
        return print_json(node_facts(node) | {"pieces": [asdict(piece) for piece in node.pieces]})
    for piece in node.pieces:
        out.rule("said" if piece.sampled else "given", style="green" if piece.sampled else "dim")
        out.print(piece.text, markup=False)
    out.rule(f"{node.stop}" + (f": {node.error}" if node.error else ""))
    return None


def sql(path: Path, text: str, *, as_json: bool) -> None:
    """SQL over a run."""
    names, rows = query(path, text)
    if as_json:
        return print_json([dict(zip(names, row, strict=True)) for row in rows])
    from rich.table import Table

    table = Table(*names)
    for row in rows:
        table.add_row(*["" if value is None else str(value) for value in row])
    # Into a file or pipe everything goes in full.
    (out if out.is_terminal else Console(width=100_000, markup=False)).print(table)
    return None


def tree_facts(tree: Tree) -> dict[str, Any]:
    """A tree for machines: everything but the token ids."""
    usage = asdict(tree.usage) | {"dollars": tree.usage.dollars}
    return {
        "id": tree.id,
        "question": tree.task.question,
        "answer": tree.answer,
        "stop": tree.root.stop,
        "verdict": tree.root.verdict and asdict(tree.root.verdict),
        "seconds": tree.seconds,
        "usage": usage,
        "budget": asdict(tree.budget),
        "nodes": [node_facts(node) for node in tree.nodes],
    }


def node_facts(node: Node) -> dict[str, Any]:
    return {
        "index": node.index,
        "parent": node.parent,
        "depth": node.depth,
        "goal": node.goal,
        "grant": node.grant,
        "stop": node.stop,
        "answer": node.answer,
        "verdict": node.verdict and asdict(node.verdict),
        "error": node.error,
        "started_s": node.started_s,
        "ended_s": node.ended_s,
        "usage": asdict(node.usage),
        "turns": [asdict(turn) for turn in node.turns],
    }


def print_json(facts: object) -> None:
    sys.stdout.write(json.dumps(facts, ensure_ascii=False, indent=1, default=str) + "\n")
