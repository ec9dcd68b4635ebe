"""The numbers of a step: what its trees were like, what credit came out, what the update saw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ramet.credit import Credits
from ramet.interfaces import Engine, HasSizes, Taskset
from ramet.tasks.registry import known_size
from ramet.tasks.unchecked import unchecked_nodes
from ramet.train.behaviour import average, behaviour_metrics, success
from ramet.types import Judging, Tree

LARGEST_ALONE = 16  # sizes up to this one have numbers of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """What one `forward_backward` saw. Means are over trained tokens that were computed; None: nothing to average."""

    loss: float
    num_rows: int
    num_skipped: int  # rows that were not computed because they have no credit
    num_trained: int  # tokens with a loss term, those of skipped rows included
    num_tokens: int  # tokens of the rows, as if no prefix were shared
    num_read: int  # tokens the model was run on
    num_batches: int  # micro-batches
    clip_fraction: float | None
    logprob_gap: float | None  # mean |log-prob of learner - log-prob of sampler|, of rows sampled by this version
    logprob_gap_max: float | None
    entropy: float | None  # of the whole distribution each token was drawn from
    kl: float | None


def tree_metrics(trees: Sequence[Tree], taskset: Taskset | None = None) -> dict[str, Any]:
    """What the trees were like. Nodes without a verdict are left out of averages."""
    nodes = [node for tree in trees for node in tree.nodes]
    roots = [tree.root for tree in trees]
    return (
        {
            "trees": len(trees),
            "score": average([node.verdict.score for node in roots if node.verdict is not None]),
            "success": success(roots),
            "success_by_depth": [
                success([node for node in nodes if node.depth == depth])
                for depth in range(max(node.depth for node in nodes) + 1)
            ],
            "delegated": average([len(tree.nodes) > 1 for tree in trees]),
            "trees_delegated": sum(len(tree.nodes) > 1 for tree in trees),
            "success_delegated": success([tree.root for tree in trees if len(tree.nodes) > 1]),
            "success_alone": success([tree.root for tree in trees if len(tree.nodes) == 1]),
            "nodes": average([len(tree.nodes) for tree in trees]),
            "tokens": average([tree.usage.tokens for tree in trees]),
            "critical_path_tokens": average([tree.usage.critical_path_tokens for tree in trees]),
            "unchecked": len(unchecked_nodes(trees)),
            "answered": average([tree.answer is not None for tree in trees]),
        }
        | size_metrics(trees, taskset)
        | behaviour_metrics(trees, taskset)
        | judge_metrics(trees)
    )


def size_metrics(trees: Sequence[Tree], taskset: Taskset | None) -> dict[str, Any]:
    """Success of roots, share that delegated, and number of trees, by size of the task; empty if tasks have no sizes.

    The tasks of two steps differ in size, and so does their mean success; success at one size can be compared.
    """
    if not isinstance(taskset, HasSizes):
        return {}
    by_size: dict[int, list[Tree]] = {}
    for tree in trees:
        size = known_size(taskset, tree.task)
        if size is not None:
            by_size.setdefault(range_start(size), []).append(tree)
    found = {size_range(start): of_size for start, of_size in sorted(by_size.items())}
    return {
        "success_by_size": {name: success([tree.root for tree in of_size]) for name, of_size in found.items()},
        "delegated_by_size": {
            name: average([len(tree.nodes) > 1 for tree in of_size]) for name, of_size in found.items()
        },
        "trees_by_size": {name: len(of_size) for name, of_size in found.items()},
    }


def range_start(size: float) -> int:
    """The smallest whole number of a size's range: sizes up to 16 stand alone, ranges of larger ones double."""
    whole = math.ceil(size)
    return whole if whole <= LARGEST_ALONE else 2 ** (whole - 1).bit_length() // 2 + 1


def size_range(start: int) -> str:
    """What a range of sizes is called.

    Example:
        size_range(range_start(5))   # "5"
        size_range(range_start(40))  # "33-64"
    """
    return str(start) if start <= LARGEST_ALONE else f"{start}-{2 * (start - 1)}"


def judge_metrics(trees: Sequence[Tree]) -> dict[str, Any]:
    """What judging cost and gave, summed over the trees; empty without a judge."""
    counted = [tree.judging for tree in trees if tree.judging is not None]
    if not counted:
        return {}
    judged = [node for tree in trees for node in tree.nodes if node.verdict is not None and node.verdict.judgement]
    sums = {f"judge_{name}": sum(getattr(one, name) for one in counted) for name in Judging.__dataclass_fields__}
    return sums | {"judge_success": success(judged)}


def credit_metrics(credits: Credits) -> dict[str, Any]:
    """Mean reward of the roots, and how many groups have no advantage anywhere."""
    summary = credits.summary
    return {"reward": summary.reward, "groups": summary.groups, "flat": len(summary.flat)}


@runtime_checkable
class CountsSteps(Protocol):
    """An engine that counts its steps and the tokens it has generated."""

    @property
    def stats(self) -> EngineCounts: ...


class EngineCounts(Protocol):
    """Counters of an engine since its start."""

    @property
    def generated_tokens(self) -> int: ...
    @property
    def steps(self) -> int: ...


def engine_counts(engine: Engine) -> tuple[int, int] | None:
    """Tokens that an engine has generated and steps it has made; None if it does not count them."""
    return (engine.stats.generated_tokens, engine.stats.steps) if isinstance(engine, CountsSteps) else None


def engine_metrics(before: tuple[int, int] | None, after: tuple[int, int] | None) -> dict[str, Any]:
    """What the engine did during a step of training, for trees of this step and of the next ones.

    Example:
        engine_metrics((1000, 20), (4000, 35))["tokens_per_engine_step"]  # 200.0
    """
    if before is None or after is None:
        return {}
    tokens, steps = (late - early for early, late in zip(before, after, strict=True))
    return {"engine_tokens": tokens, "engine_steps": steps, "tokens_per_engine_step": tokens / max(1, steps)}


def age_metrics(trees: Sequence[Tree], version: int) -> dict[str, float]:
    """How many versions of the weights ago the oldest token of each tree was sampled: mean and maximum."""
    ages = tree_ages(trees, version)
    return {"age": sum(ages) / len(ages), "age_max": max(ages)}


def tree_ages(trees: Sequence[Tree], version: int) -> list[int]:
    """How many versions of the weights ago the oldest token of each tree was sampled."""
    sampled = [
        [piece.policy_version or 0 for node in tree.nodes for piece in node.pieces if piece.sampled] for tree in trees
    ]
    return [version - min(versions, default=version) for versions in sampled]
