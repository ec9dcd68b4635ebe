"""The methods that are compared: what each may spend on an item, and which of its trees gives the answer.

The budget of a cell covers everything a method does for an item. If a method grows several trees, they share it in
equal parts; each part is a ledger of its own, so the sum cannot exceed the budget.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ramet.budget import Budget
from ramet.errors import ConfigError
from ramet.interfaces import Comparing, NodeObserver, Taskset
from ramet.tasks.numbers import only_number
from ramet.types import Stop, Task, Tree

ACCEPTED = "single, vote@K, best@K, split@K, chain, chain@K, clones, clones/DEPTH"
PATTERN = re.compile(r"(single|clones)|(vote|best)@([1-9]\d{0,3})|clones/(\d{1,3})")
CONTROL = re.compile(r"(split)@([2-9]|[1-9]\d{1,2})|(chain)(?:@([2-9]|[1-9]\d{1,2}))?")
CHAIN_PARTS = 4  # of `chain` without a number
BASELINE = "single"  # others are compared with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How an item is answered.

    Example:
        parse_method("vote@8")  # Method(name="vote@8", kind="vote", trees=8, depth=0)
    """

    name: str
    kind: Literal["single", "vote", "best", "split", "chain", "clones"]
    trees: int = 1  # grown for each item
    parts: int = 0  # into which a fixed rule cuts the task, at most; 0: the model decides
    depth: int | None = None  # most levels below a root; None: as many as the budget allows


def is_oracle(method: str) -> bool:
    """Whether a method looks at the verdict to choose: an upper bound, not a method for real use."""
    return method.startswith("best@")


def parse_method(name: str) -> Method:
    """The method of that name."""
    control = CONTROL.fullmatch(name)
    if control is not None:
        split, parts, _, links = control.groups()
        kind = "split" if split else "chain"
        return Method(name=name, kind=kind, parts=int(parts or links or CHAIN_PARTS), depth=1)
    match = PATTERN.fullmatch(name)
    if match is None:
        raise ConfigError(f"unknown method {name!r}: accepted are {ACCEPTED}")
    plain, choice, trees, depth = match.groups()
    if depth is not None:
        return Method(name=name, kind="clones", depth=int(depth))
    if choice is not None:
        return Method(name=name, kind="vote" if choice == "vote" else "best", trees=int(trees), depth=0)
    return Method(name=name, kind="single", depth=0) if plain == "single" else Method(name=name, kind="clones")


def parse_methods(names: Sequence[str]) -> list[Method]:
    """Several methods, each named once."""
    if not names:
        raise ConfigError(f"which methods? accepted are {ACCEPTED}")
    if len(set(names)) < len(names):
        raise ConfigError(f"a method is named twice in {','.join(names)}")
    return [parse_method(name) for name in names]


def tree_budget(
    method: Method, declared: Budget, *, tokens: int | None, limits: Mapping[str, Any], window: int | None = None
) -> Budget:
    """The budget of each tree: what the task declares, then `limits`, then the tree's part of the cell's `tokens`.

    The window is at most that of the model.
    """
    budget = replace(declared, **limits)
    tokens = budget.tokens if tokens is None else tokens
    if method.parts and tokens <= method.parts:
        raise ConfigError(f"{method.name} runs {method.parts + 1} nodes: a budget of {tokens} tokens is too small")
    if tokens < method.trees:
        raise ConfigError(f"{method.name} grows {method.trees} trees: a budget of {tokens} tokens is too small")
    return replace(
        budget,
        tokens=tokens // method.trees,
        money=None if budget.money is None else budget.money / method.trees,
        depth=budget.depth if method.depth is None else method.depth,
        window=budget.window if window is None else min(budget.window, window),
    )


# Choosing among the trees of an item.


def choose_tree(method: Method, taskset: Taskset, task: Task, trees: Sequence[Tree]) -> Tree:
    """The tree whose answer and score count."""
    if method.kind == "best":
        return max(trees, key=root_score)  # the first of equals
    if method.kind == "vote":
        return vote(taskset, task, trees)
    return trees[0]


def root_score(tree: Tree) -> float:
    """The score of the root."""
    if tree.root.verdict is None:
        raise AssertionError(f"tree {tree.id} has not been graded")
    return tree.root.verdict.score


def vote(taskset: Taskset, task: Task, trees: Sequence[Tree]) -> Tree:
    """The first tree with the most frequent answer; among equally frequent answers, the one that was given first.

    Trees without an answer have no vote. If the outcome is the state of a world and not the answer, as in crafting,
    there is nothing to count: the first tree that ended by answering is taken, without looking at its verdict.
    """
    if isinstance(taskset.world(task), NodeObserver):
        return next((tree for tree in trees if tree.root.stop is Stop.ANSWERED), trees[0])
    groups: list[list[Tree]] = []
    for tree in trees:
        answer = tree.answer
        if answer is None or not answer.strip():
            continue
        group = next((group for group in groups if same_answer(taskset, task, group[0].answer or "", answer)), None)
        if group is None:
            groups.append([tree])
        else:
            group.append(tree)
    return max(groups, key=len)[0] if groups else trees[0]


def same_answer(taskset: Taskset, task: Task, first: str, second: str) -> bool:
    """Whether two answers are the same: by the taskset's own rule, else by `same_text`."""
    if first == second:
        return True
    return taskset.same(task, first, second) if isinstance(taskset, Comparing) else same_text(first, second)


def same_text(first: str, second: str) -> bool:
    """Whether two texts are equal apart from case and spaces, or are the same number.

    Example:
        same_text(" Paris", "paris")      # True
        same_text("1,200", "1200.0")      # True
        same_text("12 apples", "12")      # False
    """
    first, second = (" ".join(text.split()).casefold().removesuffix(".") for text in (first, second))
    number = only_number(first)
    return first == second or (number is not None and number == only_number(second))
