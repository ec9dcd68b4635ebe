"""What `ramet fork` is asked: a tree of a run directory, where to fork it, and with which model.

Settings that the recorded prompts depend on come from the run, and so do its functions, worlds and MCP servers. Its
models are used too, unless others are named: of a training run, the newest checkpoint.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramet.agent.fork import ForkRun
from ramet.agent.options import TreeOptions
from ramet.agent.recording import ForkPoint, find_node
from ramet.config import load, merge_settings, names_server, settings_of
from ramet.engine.http import HttpEngine
from ramet.engine.open import WHICH_MODEL, OpenedEngine, clone_config
from ramet.engine.settings import ENGINE_KINDS
from ramet.errors import ConfigError, StoreError, did_you_mean
from ramet.inputs.mcp import McpServer
from ramet.inputs.open import open_world
from ramet.inputs.settings import RunConfig
from ramet.interfaces import Engine, Taskset, World
from ramet.store import RunDir, read_trees
from ramet.store.checkpoints import latest
from ramet.tasks.play import options_for_task
from ramet.tasks.question import question_world
from ramet.tasks.registry import SOURCES, TASKSETS, load_taskset, split_spec
from ramet.tasks.worlds import with_world
from ramet.types import Tree

# Settings of a run that its forks share.
KEPT = (
    *(
        "taskset",
        "world",
        "functions",
        "mcp",
        "mcp_env",
        "call_s",
        "clone",
        "temperature",
        "show_budget",
        "allow_same_goal",
        "allow_impossible",
    ),
    *("instructions", "delegate_instructions", "judge"),
)
ENGINE = ("kind", "base_url", "model")  # one of these names another engine than the run's
FIXED = ("budget", "dialect", "question")
MAX_LISTED = 8  # ids of trees in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPlan:
    """A tree, where it is forked and how the rest is sampled, checked before an engine is opened."""

    config: RunConfig
    run: Path
    tree: Tree
    point: ForkPoint
    taskset: Taskset | None = None  # None: a question in plain text, which has no verdict

    def world(self) -> World | None:
        if self.taskset is not None:
            return self.taskset.world(self.tree.task)
        return question_world(self.config, self.tree.task)

    @asynccontextmanager
    async def open(self, engine: OpenedEngine, clones: OpenedEngine | None) -> AsyncGenerator[ForkRun]:
        """The forked tree, ready to run. MCP servers run as long as the block; model servers have been reached."""
        async with open_world(self.config, self.tree.task.context, self.world()) as world:
            run = ForkRun(self.tree, self.point, self.options(engine, clones, world))
            for one in (engine, clones):
                if isinstance(one, HttpEngine):
                    await one.check()
            yield run

    def options(self, engine: Engine, clones: Engine | None, world: World | None) -> TreeOptions:
        options = TreeOptions.from_settings(
            self.config, engine=engine, clone_engine=clones, world=world, seed=self.config.seed
        )
        return options if self.taskset is None else options_for_task(self.taskset, self.tree.task, options)

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the forked tree comes from, for meta.json."""
        point = self.point
        changes = {
            "without_delegation": point.without_delegation or None,
            "without_clone": point.without_clone,
            "say": point.say,
            "tell": point.tell,
        }
        option = next(({name: value} for name, value in changes.items() if value is not None), None)
        return {
            "run": str(self.run.resolve()),
            "tree": self.tree.id,
            "node": point.node,
            "turn": point.turn,
            "option": option,
        }


def resolve_fork(
    path: Path, tree_id: str | Tree | None, point: ForkPoint, *, words: Sequence[str] = (), flags: Mapping[str, Any]
) -> ForkPlan:
    """Find the tree, its taskset and its settings. A tree that was read already is not looked for."""
    run = RunDir.open(path)
    tree = tree_id if isinstance(tree_id, Tree) else find_tree(run, tree_id)
    find_node(tree, point)
    given = settings_of(words)
    for key in FIXED:
        if key in given or any(flag.partition(".")[0] == key for flag in flags):
            raise ConfigError(f"{key} cannot be set: a forked tree keeps that of its tree")
    recorded = run.settings
    base = {key: recorded[key] for key in KEPT if key in recorded}
    if not any(f"engine.{name}" in flags or name in given.get("engine", {}) for name in ENGINE):
        base["engine"] = _engine_of(run, recorded)
    if "mcp" not in given and "mcp" not in flags:
        _refuse_forgotten(base.get("mcp", []))
    config = load(RunConfig, base=base, words=words, flags={**flags, "question": tree.task.question})
    on_server = config.engine.kind == "http" and names_server(merge_settings(words=words, flags=flags))
    if not config.engine.model and config.engine.kind in ENGINE_KINDS and not on_server:
        raise ConfigError(WHICH_MODEL)
    clone_config(config.engine, config.clone)  # a bad setting fails before a model is loaded
    taskset = _taskset_of(tree, config, recorded, run)
    return ForkPlan(config=config, run=run.path, tree=tree, point=point, taskset=taskset)


def _refuse_forgotten(servers: Sequence[str]) -> None:
    """MCP servers are stored without their arguments, which may be keys: only an address is enough to reach one."""
    commands = [name for name in servers if not McpServer(address=name).is_url]
    if commands:
        again = " ".join(f"--mcp {shlex.quote(name)}" for name in servers)
        raise ConfigError(
            f"this tree had the tools of MCP servers ({', '.join(servers)}), whose commands are not stored in full: "
            f"give them again, like {again}"
        )


def find_tree(run: RunDir, tree_id: str | None) -> Tree:
    """The tree with this id, or the only one whose id begins with it; without an id, the only tree of the run."""
    ids: list[str] = []
    matching: list[Tree] = []
    for tree in read_trees(run):
        if tree.id == tree_id:
            return tree
        ids.append(tree.id)
        if (tree_id is None or tree.id.startswith(tree_id)) and len(matching) <= MAX_LISTED:
            matching.append(tree)
    if len(matching) == 1:
        return matching[0]
    if not ids:
        raise StoreError(f"{run.path} has no finished tree yet")
    if not matching:
        raise StoreError(f"{run.path} has no tree {tree_id!r}: {_known(tree_id or '', ids)}")
    which = f"{len(ids):,} trees: give --tree" if tree_id is None else f"several trees that begin with {tree_id!r}"
    raise StoreError(f"{run.path} has {which} ({_listed([tree.id for tree in matching])})")


def _known(word: str, ids: Sequence[str]) -> str:
    return did_you_mean(word, ids) if len(ids) <= MAX_LISTED else f"it has {len(ids):,} ({_listed(ids)})"


def _listed(ids: Sequence[str]) -> str:
    return ", ".join(ids[:MAX_LISTED]) + (", ..." if len(ids) > MAX_LISTED else "")


def _engine_of(run: RunDir, recorded: Mapping[str, Any]) -> dict[str, Any]:
    if "engine" in recorded:
        return dict(recorded["engine"])
    checkpoint = latest(run.path)
    return {} if checkpoint is None else {"model": str(checkpoint), "kind": "local"}


def _taskset_of(tree: Tree, config: RunConfig, recorded: Mapping[str, Any], run: RunDir) -> Taskset | None:
    """The taskset that made the task, by the task's id (`craft:hard/17`): built in, or one that the run names."""
    name, colon, _ = tree.task.id.rpartition(":")
    if colon and name in TASKSETS:
        return with_world(load_taskset(name, **config.taskset), config.world)
    plugins = [str(fact["reference"]) for fact in run.meta.get("plugins", []) if fact["kind"] == "taskset"]
    for reference in [*plugins, *_peers(recorded)]:
        taskset = load_taskset(reference, **config.taskset)
        if taskset.name == name:
            return with_world(taskset, config.world)
    return None


def _peers(recorded: Mapping[str, Any]) -> list[str]:
    """Tasksets of other packages that the settings of a run name: `verifiers:NAME`, `inspect:file.py@task`."""
    tables: list[Mapping[str, Any]] = [recorded, *(recorded.get(name, {}) for name in ("eval", "warm", "demos"))]
    specs: list[str] = [spec for table in tables for spec in (table.get("task", ""), *table.get("tasks", ()))]
    question = str(recorded.get("question", ""))
    specs += [] if " " in question else [question.rpartition("/")[0]]
    return [split_spec(spec)[0] for spec in specs if spec.partition(":")[0] in SOURCES]
