"""`ramet fork`: run a forked tree, store it, and show it beside the recorded one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from rich.text import Text

from ramet.agent.difference import Place, first_difference, turn_texts
from ramet.draw import figures, numbered, one_line, totals, walk
from ramet.engine.open import OpenedEngine, closing, open_clone_engine, open_engines, with_model
from ramet.inputs.open import as_stored
from ramet.store import RunDir
from ramet.store.facts import tree_facts
from ramet.tasks.forking import ForkPlan
from ramet.tasks.judge import Judge
from ramet.tasks.play import grade
from ramet.terminal.console import command, out, print_json
from ramet.terminal.live import colour
from ramet.types import Tree

HERE, NEW = "→", "+"
GOAL_WIDTH, TEXT_WIDTH = 46, 160


def run_fork(plan: ForkPlan, *, api_key: str | None, runs: Path, as_json: bool) -> None:
    """Fork the tree, grade it if it has a taskset, and store it in a new run directory."""
    config = replace(plan.config, engine=with_model(plan.config.engine, api_key=api_key))
    plan = replace(plan, config=config)
    engine, judge = open_engines(config.engine, None if plan.taskset is None else config.judge, api_key=api_key)
    clones = open_clone_engine(config.engine, config.clone, api_key=api_key)
    anyio.run(partial(_run_fork, plan, engine, judge, clones, runs=runs, as_json=as_json))


async def _run_fork(
    plan: ForkPlan,
    engine: OpenedEngine,
    judge: OpenedEngine | None,
    clones: OpenedEngine | None,
    *,
    runs: Path,
    as_json: bool,
) -> None:
    async with closing(engine, judge, clones), plan.open(engine, clones) as run:
        forked = await run.run()
        if plan.taskset is not None:
            await grade(forked, plan.taskset, run.tree_run.world, judge=None if judge is None else Judge(judge))
    name = f"fork-{plan.tree.id}-{plan.point.node}-{plan.point.turn}"
    run_dir = RunDir.create(runs, name, config=as_stored(plan.config), kind="fork", facts={"fork": plan.provenance})
    run_dir.write([forked])
    place = first_difference(plan.tree, forked)
    if as_json:
        return print_json(_facts(plan, forked, place, run.tokens) | {"run": str(run_dir.path)})
    _print(plan, forked, place, tokens=run.tokens)
    return out.print(f"{run_dir.path}  ({command()} show {run_dir.path})", style="dim")


def _print(plan: ForkPlan, forked: Tree, place: Place | None, *, tokens: int) -> None:
    for title, tree, other in (("recorded", plan.tree, forked), ("forked", forked, plan.tree)):
        out.print(f"{title}: {tree.id}", style="bold")
        for line in drawn(tree, other, place):
            out.print(line)
        answer = "no answer" if tree.answer is None else tree.answer
        out.print(Text(one_line(answer, TEXT_WIDTH), style="red" if tree.answer is None else "bold"))
        out.print(totals(tree), style="dim")
        out.print()
    if place is None:
        out.print("No difference: every turn has the same text.")
    else:
        path, number = place
        index = next((str(node.index) for node in plan.tree.nodes if node.path == path), "new")
        out.print(f"{HERE} first difference: node {index}, turn {number}")
        for title, tree in (("recorded", plan.tree), ("forked", forked)):
            text = turn_texts(tree).get(place)
            out.print(f"  {title + ':':<9} " + ("no such turn" if text is None else one_line(text, TEXT_WIDTH)))
    out.print(f"{tokens:,} tokens were generated for the fork", style="dim")


def drawn(tree: Tree, other: Tree, place: Place | None) -> list[Text]:
    """One line per node: an arrow where the trees part, a plus where the other tree has no such node."""
    known = {node.path for node in other.nodes}
    labels = numbered(tree, width=GOAL_WIDTH)
    rows = [(node, label) for (node, _), label in zip(walk(tree), labels, strict=True)]
    width = max(len(label) for _, label in rows)
    lines: list[Text] = []
    for node, label in rows:
        mark = HERE if place is not None and node.path == place[0] else " " if node.path in known else NEW
        line = Text(f"{mark} ", style="yellow") + Text(f"{label:<{width}}  ", style="default")
        lines.append(line + Text(figures(tree, node), style=colour(node)))
    return lines


def _facts(plan: ForkPlan, forked: Tree, place: Place | None, tokens: int) -> dict[str, Any]:
    difference = None if place is None else {"path": list(place[0]), "turn": place[1]}
    return {
        "fork": plan.provenance,
        "first_difference": difference,
        "new_tokens": tokens,
        "recorded": tree_facts(plan.tree),
        "forked": tree_facts(forked),
    }
