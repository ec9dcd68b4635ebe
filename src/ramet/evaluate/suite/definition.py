"""What a suite consists of. Nothing in it can be set: two cards with the same hash answer the same question.

A change to tasks, budgets, methods, seeds or prompts changes the hash, and a test fails. Such a change is a new suite,
with a new number in its name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any, Literal

from ramet.agent.dialects import make_dialect
from ramet.errors import ConfigError, did_you_mean
from ramet.evaluate.items import load_tasksets, select_items
from ramet.tasks.registry import load_taskset, parse_spec
from ramet.types import Stop

PREFIX = "suite:"
SIZES = ("quick", "full")
Size = Literal["quick", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kind of work: the first tasks of a split, under budgets of generated tokens per item."""

    name: str
    about: str
    task: str
    tokens: int  # per item; the full size also has half of them
    taskset: Mapping[str, Any] = field(default_factory=dict[str, Any])
    splits: bool = True  # whether a fixed rule can cut its tasks, for the control `split@4`


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """All that is pinned."""

    name: str
    about: str
    parts: tuple[Part, ...]
    seed: int = 1
    temperature: float = 0.7
    limits: Mapping[str, Any] = field(default_factory=lambda: {"nodes": 16, "depth": 2, "window": 8192})
    num_tasks: Mapping[str, int] = field(default_factory=lambda: {"quick": 8, "full": 100})

    def methods(self, part: Part, size: Size) -> tuple[str, ...]:
        """Alone, by vote, and with clones; in full, also cut by a fixed rule where there is one."""
        control = ("split@4",) if size == "full" and part.splits else ()
        return ("single", "vote@4", *control, "clones")

    def budgets(self, part: Part, size: Size) -> tuple[int, ...]:
        return (part.tokens,) if size == "quick" else (part.tokens // 2, part.tokens)

    def settings(self, part: Part, size: Size, *, dialect: str) -> dict[str, Any]:
        """The settings of the evaluation of one part."""
        return {
            "tasks": [part.task],
            "taskset": dict(part.taskset),
            "methods": list(self.methods(part, size)),
            "budgets": list(self.budgets(part, size)),
            "num_tasks": self.num_tasks[size],
            "dialect": dialect,
            "temperature": self.temperature,
            "seed": self.seed,
        }


SUITES: dict[str, Suite] = {
    "delegation-1": Suite(
        name="delegation-1",
        about="does it pay that a model delegates to clones of itself?",
        parts=(
            Part(
                name="crafting",
                about="craft an item from base materials, of which a plan has to be made",
                task="craft:easy",
                tokens=4000,
            ),
            Part(name="arithmetic", about="compute long expressions", task="arithmetic:eval", tokens=2000),
            Part(
                name="multi-hop",
                about="answer from several of many short texts",
                task="multihop:eval",
                tokens=2000,
            ),
            Part(
                name="counting",
                about="count over texts that are longer than a window",
                task="aggregate:eval",
                tokens=4000,
                taskset={"lines": [200, 400]},
            ),
            Part(
                name="search",
                about="find facts with a search engine, one after another",
                task="search:eval",
                tokens=4000,
                splits=False,
            ),
        ),
    )
}


def find_suite(text: str) -> Suite:
    """The suite that `suite:NAME` names."""
    name = text.removeprefix(PREFIX)
    if name not in SUITES:
        raise ConfigError(f"unknown suite {name!r}: {did_you_mean(name, [*SUITES, 'compare'])}")
    return SUITES[name]


def check_size(size: str) -> Size:
    if size not in SIZES:
        raise ConfigError(f"--size is quick or full; got {size!r}")
    return "quick" if size == "quick" else "full"


def suite_hash(suite: Suite, size: Size, *, dialect: str = "tools") -> str:
    """SHA-256 over everything that is pinned: settings, every task with its texts and reference, every prompt."""
    digest = hashlib.sha256()
    for fact in _pinned(suite, size, dialect):
        digest.update(json.dumps(fact, sort_keys=True, ensure_ascii=False, default=_plain).encode() + b"\n")
    return digest.hexdigest()


def _pinned(suite: Suite, size: Size, dialect: str) -> Iterator[Any]:
    yield {"suite": suite.name, "size": size, "limits": dict(suite.limits)}
    for part in suite.parts:
        yield suite.settings(part, size, dialect=dialect)
        tasksets = load_tasksets([part.task], part.taskset)
        for item in select_items(tasksets, num_tasks=suite.num_tasks[size]):
            yield asdict(item.task)
            limits = asdict(item.taskset.budget(item.task))  # limits that the suite does not set are the task's own
            yield {name: value for name, value in limits.items() if value is not None}  # a new, unset one is no change
        yield from _prompts(part, dialect)


def _prompts(part: Part, dialect: str) -> Iterator[str]:
    """What every node of the part reads apart from its task."""
    taskset = load_taskset(parse_spec(part.task)[0], **part.taskset)
    functions = taskset.world(taskset.task(parse_spec(part.task)[1], 0)).functions
    written = make_dialect(dialect)
    for may_delegate, child in product((False, True), repeat=2):
        try:
            yield written.system(functions=functions, may_delegate=may_delegate, child=child)
        except ConfigError as error:  # a dialect without functions: this part is left out
            yield str(error)
    yield from (written.closing(why) for why in (Stop.BUDGET, Stop.TURNS, Stop.WINDOW))


def _plain(value: object) -> object:
    """A value that JSON does not have, in a form that is the same on every machine."""
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return repr(value)
