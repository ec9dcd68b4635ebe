"""`ramet tasks`, `ramet tasks show` and `ramet tasks check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ramet.cli.options import DataPath, Json, TasksetName, TasksetOptions

if TYPE_CHECKING:
    from ramet.interfaces import Taskset

app = typer.Typer(help="List tasksets, show samples with the tree of their oracle, check a taskset.")


@app.callback(invoke_without_command=True)
def tasks(context: typer.Context, json: Json = False) -> None:
    """List the tasksets, one line each."""
    if context.invoked_subcommand is None:
        from ramet.terminal.tasks import list_tasksets

        list_tasksets(as_json=json)


@app.command("show")
def show(
    name: TasksetName,
    options: TasksetOptions = None,
    split: Annotated[str | None, typer.Option(help="Split to show; the taskset's first by default.")] = None,
    num_tasks: Annotated[int, typer.Option("-n", min=1, help="Number of tasks.")] = 3,
    start: Annotated[int, typer.Option(min=0, help="Index of the first task.")] = 0,
    dialect: Annotated[str, typer.Option(help="Dialect of the oracle: tools, python or terse.")] = "tools",
    data: DataPath = None,
    json: Json = False,
) -> None:
    """Print tasks of a taskset, each with the tree of its oracle.

    Example: ramet tasks show arithmetic:long -n 2
    """
    from ramet.terminal.tasks import show_tasks

    taskset, split = _load(name, split, options, data)
    show_tasks(taskset, split, num_tasks=num_tasks, start=start, dialect=dialect, as_json=json)


@app.command("check")
def check(
    name: TasksetName,
    options: TasksetOptions = None,
    split: Annotated[str | None, typer.Option(help="Split to check; all of them by default.")] = None,
    num_tasks: Annotated[int, typer.Option("-n", min=1, help="Number of tasks per split.")] = 5,
    data: DataPath = None,
) -> None:
    """Check a taskset: right answers score 1, wrong ones less, and the oracle solves its tasks in every dialect."""
    from ramet.terminal.tasks import check_taskset

    taskset, split = _load(name, split, options, data)
    if not check_taskset(taskset, split, num_tasks=num_tasks):
        raise typer.Exit(1)


def _load(name: str, split: str | None, options: list[str] | None, data: str | None) -> tuple[Taskset, str | None]:
    """The taskset and the split, which stands after the name or in an option."""
    from ramet.config import taskset_options
    from ramet.errors import ConfigError
    from ramet.tasks.registry import load_taskset, split_spec

    named, own = split_spec(name)
    if own and split and own != split:
        raise ConfigError(f"two splits are given, {own!r} in {name!r} and --split {split}: leave one out")
    return load_taskset(named or name, **taskset_options(options or [], data=data)), own or split
