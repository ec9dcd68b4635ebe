"""The inputs of the costs in docs/scale-out.md: sizes of the oracle's trees, and of the rows made from them.

PYTHONPATH=. python -m tests.cluster.oracle_trees        (no server is needed)
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import fmean

import anyio

from ramet import Budget, Tree
from ramet.config import load
from ramet.recipes import recipe_file
from ramet.tasks.play import demonstrate
from ramet.tasks.registry import load_taskset
from ramet.tokens.huggingface import load_renderer
from ramet.train.loss import Loss
from ramet.train.rows import Row
from ramet.train.settings import TrainConfig
from ramet.train.tinker.datum import native_datum
from ramet.train.warmstart import rows_to_copy

RECIPE, TASKS = "rao-craft-4b", 48


async def oracle_trees() -> list[Tree]:
    """The trees of the first training tasks of the recipe, in tokens of SmolLM2."""
    config = load(TrainConfig, file=recipe_file(RECIPE))
    taskset, renderer = load_taskset("craft"), load_renderer("smollm2")
    return [
        await demonstrate(
            taskset,
            taskset.task("train", place),
            dialect=config.dialect,
            budget=Budget(**config.budget),
            renderer=renderer,
            delegate_instructions=config.delegate_instructions,
        )
        for place in range(TASKS)
    ]


def json_bytes(rows: Sequence[Row]) -> float:
    """Bytes of a row's token in JSON, as the client of the Tinker API sends it."""
    dice = random.Random(0)
    size = 0
    for row in rows:
        played = replace(row, logprobs=tuple(dice.uniform(-2, 0) for _ in row.token_ids), advantage=dice.gauss(0, 1))
        size += len(json.dumps(asdict(native_datum(played, 1 / len(rows), Loss()))))
    return size / sum(len(row.token_ids) for row in rows)


def main() -> None:
    trees = anyio.run(oracle_trees)
    rows = [row for tree in trees for row in rows_to_copy([tree])]
    means = {
        "nodes": fmean(len(tree.nodes) for tree in trees),
        "turns": fmean(tree.usage.calls for tree in trees),
        "generated tokens": fmean(tree.usage.tokens for tree in trees),
        "tokens in all windows": sum(len(row.token_ids) for row in rows) / len(trees),
        "tokens of all prompts": fmean(tree.usage.prompt_tokens for tree in trees),
        "tokens on the longest chain": fmean(tree.usage.critical_path_tokens for tree in trees),
    }
    for name, value in means.items():
        sys.stdout.write(f"{value:10,.1f} {name}\n")
    longest = max(tree.usage.critical_path_tokens for tree in trees)
    sys.stdout.write(f"{longest:10,} tokens on the longest chain of any of {len(trees)} trees\n")
    sys.stdout.write(f"{json_bytes(rows):10.1f} bytes of JSON per token of a row\n")
    right = sum(tree.root.verdict is not None and tree.root.verdict.score == 1 for tree in trees)
    sys.stdout.write(f"{right:10,} trees are right\n")


if __name__ == "__main__":
    main()
