"""What must hold of a run directory after any fault."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

from ramet.evaluate.journal import read_records
from ramet.store import RunDir, read_trees
from ramet.store.checkpoints import checkpoint_path
from ramet.types import State, Tree
from tests.soak.rounds import Report


def check_budgets(report: Report, trees: list[Tree], *, event: int = 0) -> None:
    """No tree has spent more than its budget.

    A server that ignores limits is cut off late: each node may have one event of `event` tokens more.
    """
    for tree in trees:
        used, budget = tree.usage, tree.budget
        most = budget.tokens + event * len(tree.nodes)
        report.check(used.tokens + used.lost_tokens <= most, f"tree {tree.id}: {used} of {budget.tokens}")
        report.check(len(tree.nodes) <= budget.nodes, f"tree {tree.id} has {len(tree.nodes)} of {budget.nodes} nodes")
        report.check(tree.depth <= budget.depth, f"tree {tree.id} is {tree.depth} deep, of {budget.depth}")
        ended = all(node.stop is not None and node.state is State.ENDED for node in tree.nodes)
        report.check(ended, f"tree {tree.id} has nodes that have not ended")
    report.done["trees checked"] += len(trees)


def check_training(report: Report, run: Path, *, steps: int, trees_per_step: int, same_as: Path) -> None:
    """Every step once, all trees of every step once, and the weights of a run that was never interrupted."""
    if not run.is_dir():
        report.broken.append(f"{run.name} does not exist")
        return
    logged = [record["step"] for record in RunDir.open(run).metrics()]
    report.check(logged == list(range(steps)), f"{run.name} logged the steps {logged}")
    trees = list(read_trees(run))
    per_id = Counter(tree.id for tree in trees)
    report.check(len(trees) == len(per_id) == steps * trees_per_step, f"{run.name} has {len(trees)} trees")
    check_budgets(report, trees)
    report.check(weights(run, steps) == weights(same_as, steps), f"{run.name} ended with other weights")


def weights(run: Path, steps: int) -> str:
    """A hash of the weights of a checkpoint."""
    files = sorted(checkpoint_path(run, steps).rglob("*.safetensors"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest() if files else "no weights"


def check_evaluation(report: Report, run: Path, *, items: int, event: int = 0) -> None:
    """Every item of every method once, each with its trees; `event` as in `check_budgets`."""
    if not run.is_dir():
        report.broken.append(f"{run.name} does not exist")
        return
    records = read_records(run)
    keys = Counter((record.method, record.budget, record.task) for record in records)
    report.check(len(keys) == items, f"{len(keys)} of {items} items have a record")
    report.check(len(records) == len(keys), f"{len(records) - len(keys)} records stand twice")
    trees = list(read_trees(run))
    stored = Counter(tree.id for tree in trees)
    named = Counter(tree for record in records for tree in record.trees)
    report.check(stored == named, f"{len(stored)} trees are stored, and records name {len(named)}")
    check_budgets(report, trees, event=event)
    report.done["records checked"] += len(records)
