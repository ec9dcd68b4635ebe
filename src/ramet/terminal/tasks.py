"""Commands about tasksets: list them, show samples, check them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
from rich.table import Table

from ramet.draw import counted
from ramet.errors import ConfigError
from ramet.interfaces import Taskset
from ramet.store.facts import tree_facts
from ramet.tasks.play import demonstrate
from ramet.tasks.registry import check_index, check_split, taskset_class, taskset_names
from ramet.tasks.returned import split_size, task_at
from ramet.tasks.validate import validate
from ramet.terminal.console import command, out, print_json
from ramet.terminal.live import table
from ramet.types import Task, Tree

MAX_FAULTS = 10  # printed per split


def list_tasksets(*, as_json: bool) -> None:
    """Print every taskset, one line each."""
    facts = [{"name": name, "about": _about(name)} for name in taskset_names()]
    if as_json:
        return print_json(facts)
    grid = Table.grid(padding=(0, 2))
    for fact in facts:
        grid.add_row(fact["name"], fact["about"])
    out.print(grid)
    hint = f"\n{command()} tasks show NAME prints samples; {command()} run NAME:SPLIT/INDEX runs one task"
    return out.print(hint, style="dim")


def _about(name: str) -> str:
    try:
        return getattr(taskset_class(name), "about", "")
    except ConfigError as error:  # an entry point of a package that is broken
        return str(error)


def show_tasks(taskset: Taskset, split: str | None, *, num_tasks: int, start: int, dialect: str, as_json: bool) -> None:
    """Print tasks of a split, each with the tree of its oracle."""
    split = check_split(taskset, split or next(iter(taskset.splits)))
    check_index(taskset, split, start)
    size = split_size(taskset, split)
    shown: list[dict[str, Any]] = []
    for index in range(start, start + num_tasks if size is None else min(size, start + num_tasks)):
        task = task_at(taskset, split, index)
        tree = anyio.run(partial(demonstrate, taskset, task, dialect=dialect))
        if as_json:
            hidden = {"id": task.id, "reference": task.reference, "context": dict(task.context)}
            shown.append(tree_facts(tree) | hidden)
            continue
        if index == start:
            _print_splits(taskset)
        _print_task(taskset, task, tree)
    if as_json:
        print_json(shown)


def _print_splits(taskset: Taskset) -> None:
    out.print(f"{taskset.name}: {taskset.about}")
    grid = Table.grid(padding=(0, 2))
    for split, about in taskset.splits.items():
        grid.add_row(f"  {taskset.name}:{split}", about)
    out.print(grid)
    out.print()


def _print_task(taskset: Taskset, task: Task, tree: Tree) -> None:
    out.rule(task.id, align="left")
    out.print(task.question)
    if task.context:
        out.print(
            f"with {counted(len(task.context), 'text')}, {counted(sum(map(len, task.context.values())), 'character')}",
            style="dim",
        )
    out.print(f"functions: {', '.join(taskset.world(task).functions) or 'none'}", style="dim")
    out.print(table(tree, width=out.width))
    out.print(f"the oracle answers: {tree.answer}")
    out.print()


def check_taskset(taskset: Taskset, split: str | None, *, num_tasks: int) -> bool:
    """Validate one split, or all of them, and print the faults; True if there are none and a split was checked."""
    splits = [check_split(taskset, split)] if split else list(taskset.splits)
    valid = [_check_split(taskset, name, num_tasks=num_tasks, skip=split is None) for name in splits]
    return any(valid) and False not in valid


def _check_split(taskset: Taskset, split: str, *, num_tasks: int, skip: bool) -> bool | None:
    """Validate one split. `skip`: one that cannot be read, such as without its files, is reported; None is returned."""
    try:
        report = anyio.run(partial(validate, taskset, split, num_tasks=num_tasks))
    except ConfigError as error:
        if not skip:
            raise
        out.print(f"{taskset.name}:{split}  not checked: {error}", style="yellow")
        return None
    result = counted(len(report.faults), "fault") if report.faults else "no faults"
    trees = f"{counted(report.trees, 'tree')} ({report.delegating:,} delegating)"
    out.print(f"{taskset.name}:{split}  {counted(report.tasks, 'task')}, {trees}: {result}")
    _print_faults(report.faults)
    return not report.faults


def _print_faults(faults: Sequence[str]) -> None:
    for fault in faults[:MAX_FAULTS]:
        out.print(f"  {fault}", style="red")
    if len(faults) > MAX_FAULTS:
        out.print(f"  … and {len(faults) - MAX_FAULTS:,} more", style="red")
