"""The methods that are compared: what each may spend on an item, and which of its trees it stands by.

A cell's budget covers all a method does for an item. Where a method grows several trees they share it in equal parts,
each part a ledger of its own, so that the sum cannot exceed it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal

from ramet.budget import Budget
from ramet.errors import ConfigError
from ramet.interfaces import Comparing, Taskset, Watcher
from ramet.tasks.check import NUMBER
from ramet.types import Stop, Task, Tree

ACCEPTED = "single, vote@K, best@K, clones, clones/DEPTH"
NAMED = re.compile(r"(single|clones)|(vote|best)@([1-9]\d{0,3})|clones/(\d{1,3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How an item is answered.

    Example:
        method_of("vote@8")  # Method(name="vote@8", kind="vote", trees=8, depth=0)
    """

    name: str
    kind: Literal["single", "vote", "best", "clones"]
    trees: int = 1  # grown for each item
    depth: int | None = None  # most levels below a root; None: as many as the budget allows

    @property
    def oracle(self) -> bool:
        """Whether it looks at the verdict to choose: a bound for others, not something one can have."""
        return self.kind == "best"


def method_of(name: str) -> Method:
    """The method a name means."""
    found = NAMED.fullmatch(name)
    if found is None:
        raise ConfigError(f"unknown method {name!r}: accepted are {ACCEPTED}")
    plain, chosen, trees, depth = found.groups()
    if depth is not None:
        return Method(name=name, kind="clones", depth=int(depth))
    if chosen is not None:
        return Method(name=name, kind="vote" if chosen == "vote" else "best", trees=int(trees), depth=0)
    return Method(name=name, kind="single", depth=0) if plain == "single" else Method(name=name, kind="clones")


def methods_of(names: Sequence[str]) -> list[Method]:
    """Several of them, each once."""
    if not names:
        raise ConfigError(f"which methods? accepted are {ACCEPTED}")
    if len(set(names)) < len(names):
        raise ConfigError(f"a method is named twice in {','.join(names)}")
    return [method_of(name) for name in names]


def tree_budget(
    method: Method, declared: Budget, *, tokens: int | None, limits: Mapping[str, Any], window: int | None = None
) -> Budget:
    """What each tree may spend: the task's own budget, other limits laid over it, and the method's part of the cell's.

    No window is larger than the model's.
    """
    budget = replace(declared, **limits)
    tokens = budget.tokens if tokens is None else tokens
    if tokens < method.trees:
        raise ConfigError(
            f"{method.name} grows {method.trees} trees, and a budget of {tokens} tokens has no part for each"
        )
    return replace(
        budget,
        tokens=tokens // method.trees,
        money=None if budget.money is None else budget.money / method.trees,
        depth=budget.depth if method.depth is None else method.depth,
        window=budget.window if window is None else min(budget.window, window),
    )


def seed_of(*place: object) -> int:
    """A number that follows from a place alone: run seed, method, budget, task, tree. Nothing else that runs matters.

    Example:
        seed_of(0, "vote@8", 1000, "craft:hard/17", 3)
    """
    return int.from_bytes(hashlib.blake2b(repr(place).encode(), digest_size=7).digest(), "big")


# Which tree a method stands by.


def choose(method: Method, taskset: Taskset, task: Task, trees: Sequence[Tree]) -> Tree:
    """The tree whose answer and score count."""
    if method.kind == "best":
        return max(trees, key=score_of)  # the earliest of equals
    if method.kind == "vote":
        return vote(taskset, task, trees)
    return trees[0]


def score_of(tree: Tree) -> float:
    """The verdict on a root."""
    if tree.root.verdict is None:
        raise AssertionError(f"tree {tree.id} has not been graded")
    return tree.root.verdict.score


def vote(taskset: Taskset, task: Task, trees: Sequence[Tree]) -> Tree:
    """The earliest tree with the answer most of them gave; of equally frequent answers, the one given first.

    Who has no answer has no vote. Where the outcome is the state of a world and not what was answered, as in crafting,
    there is nothing to count: the first tree that ended by answering is taken, without a look at its verdict.
    """
    if isinstance(taskset.world(task), Watcher):
        return next((tree for tree in trees if tree.root.stop is Stop.ANSWERED), trees[0])
    camps: list[list[Tree]] = []
    for tree in trees:
        answer = tree.answer
        if answer is None or not answer.strip():
            continue
        home = next((camp for camp in camps if same(taskset, task, camp[0].answer or "", answer)), None)
        if home is None:
            camps.append([tree])
        else:
            home.append(tree)
    return max(camps, key=len)[0] if camps else trees[0]


def same(taskset: Taskset, task: Task, one: str, other: str) -> bool:
    """Whether two answers say the same, as the taskset sees it; else by their words, and numbers as numbers."""
    if one == other:
        return True
    return taskset.same(task, one, other) if isinstance(taskset, Comparing) else same_text(one, other)


def same_text(one: str, other: str) -> bool:
    """Whether two texts are the same but for case and spaces, or the same number.

    Example:
        same_text(" Paris", "paris")      # True
        same_text("1,200", "1200.0")      # True
        same_text("12 apples", "12")      # False
    """
    one, other = (" ".join(text.split()).casefold().removesuffix(".") for text in (one, other))
    if NUMBER.fullmatch(one) and NUMBER.fullmatch(other):
        return Decimal(one.replace(",", "")) == Decimal(other.replace(",", ""))
    return one == other
