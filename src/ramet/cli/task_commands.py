"""What `ramet tasks` does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
from rich.table import Table

from ramet.cli.commands import out, print_json, tree_facts
from ramet.config import settings_of
from ramet.errors import ConfigError
from ramet.interfaces import Taskset
from ramet.tasks.play import demonstrate
from ramet.tasks.registry import TASKSETS, check_index, check_split, load, taskset_class
from ramet.tasks.validate import validate
from ramet.terminal.live import table
from ramet.types import Task, Tree


def listing(*, as_json: bool) -> None:
    """Every taskset, one line each."""
    facts = [{"name": name, "about": taskset_class(name).about} for name in TASKSETS]
    if as_json:
        return print_json(facts)
    grid = Table.grid(padding=(0, 2))
    for fact in facts:
        grid.add_row(fact["name"], fact["about"])
    out.print(grid)
    return out.print("\nramet tasks show NAME prints samples; ramet run NAME:SPLIT/INDEX runs one", style="dim")


def taskset_of(name: str, words: Sequence[str], data: str | None) -> Taskset:
    """The taskset with options given as KEY=VALUE words."""
    settings = settings_of(words)
    unknown = [key for key in settings if key != "taskset"]
    if unknown:
        raise ConfigError(f"unknown setting {unknown[0]!r}: options of the taskset are written taskset.{unknown[0]}=...")
    options = settings.get("taskset", {}) | ({} if data is None else {"data": data})
    return load(name, **options)


def show(taskset: Taskset, split: str | None, *, number: int, start: int, dialect: str, as_json: bool) -> None:
    """Tasks of a split, each with its oracle's tree."""
    split = check_split(taskset, split or next(iter(taskset.splits)))
    size = taskset.size(split)
    last = start + number if size is None else min(size, start + number)
    check_index(taskset, split, start)
    shown: list[dict[str, Any]] = []
    for index in range(start, last):
        task = taskset.task(split, index)
        tree = anyio.run(partial(demonstrate, taskset, task, dialect=dialect))
        if as_json:
            hidden = {"id": task.id, "reference": task.reference, "context": dict(task.context)}
            shown.append(tree_facts(tree) | hidden)
        else:
            _print(taskset, task, tree)
    if as_json:
        print_json(shown)


def _print(taskset: Taskset, task: Task, tree: Tree) -> None:
    out.rule(task.id, align="left")
    out.print(task.question)
    if task.context:
        out.print(f"with {len(task.context)} texts, {sum(map(len, task.context.values())):,} characters", style="dim")
    out.print(f"functions: {', '.join(taskset.world(task).functions) or 'none'}", style="dim")
    out.print(table(tree, width=out.width))
    out.print(f"the oracle answers: {tree.answer}")
    out.print()


def check(taskset: Taskset, split: str | None, *, number: int) -> bool:
    """Validate splits; says whether all is well."""
    splits = [check_split(taskset, split)] if split else list(taskset.splits)
    well = True
    for one in splits:
        try:
            report = anyio.run(partial(validate, taskset, one, num_tasks=number))
        except ConfigError as error:
            if split:
                raise
            out.print(f"{taskset.name}:{one}  not checked: {error}", style="yellow")
            continue
        well = well and not report.faults
        verdict = "all well" if not report.faults else f"{len(report.faults)} faults"
        out.print(
            f"{taskset.name}:{one}  {report.tasks} tasks, {report.trees} trees, "
            f"{report.delegating} of them delegating: {verdict}"
        )
        for fault in report.faults[:10]:
            out.print(f"  {fault}", style="red")
    return well
