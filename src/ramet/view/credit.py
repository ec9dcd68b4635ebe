"""The credit of every node of a training tree: reward, baseline, advantage and weight.

Credit is not stored. It is a function of the trees of a step and of the run's rule, so it is computed again when a
page asks for it; the newest steps are kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from ramet.credit import Credits, compute_credits, group_trees, load_rule
from ramet.errors import RametError
from ramet.store.tree_files import read_file
from ramet.train.refill import without_replaced
from ramet.view.catalog import read_config
from ramet.view.index import Index

KEPT_STEPS = 6
MAX_FILE = 400 * 2**20  # bytes of a tree file; the credit of a larger step is not computed


class CreditCache:
    """Credits of the steps that were looked at last."""

    def __init__(self) -> None:
        self._steps: OrderedDict[tuple[str, int], Credits | str] = OrderedDict()
        self._lock = threading.Lock()

    def of_tree(self, index: Index, tree: str) -> dict[str, Any]:
        """Credit by node index, or one line that says why there is none."""
        file = Path(index.file_of(tree))
        if not file.stem.startswith("step-"):
            return {"nodes": {}, "why": "only trees of training steps have credit"}
        credits = self._of_step(index, file)
        if isinstance(credits, str):
            return {"nodes": {}, "why": credits}
        nodes = {str(node): asdict(credit) for (name, node), credit in credits.by_node.items() if name == tree}
        turns = {f"{node}.{turn}": asdict(c) for (name, node, turn), c in credits.by_turn.items() if name == tree}
        if not nodes:
            return {"nodes": {}, "why": "this tree was replaced by one with a signal, and not trained on"}
        config = read_config(index.run)
        replayed = config.get("counterfactual")
        share = cast(dict[str, Any], replayed).get("share") if isinstance(replayed, dict) else 0
        note = "without what the replays of the step added" if share else ""
        return {"nodes": nodes, "turns": turns, "rule": str(config.get("rule")), "note": note}

    def _of_step(self, index: Index, file: Path) -> Credits | str:
        key = (str(file), file.stat().st_mtime_ns)
        with self._lock:
            if key not in self._steps:
                self._steps[key] = _compute(index.run, file)
                while len(self._steps) > KEPT_STEPS:
                    self._steps.popitem(last=False)
            self._steps.move_to_end(key)
            return self._steps[key]


def _compute(run: Path, file: Path) -> Credits | str:
    """The credit that the run's rule gives the trees of a step."""
    config = read_config(run)
    if "rule" not in config:
        return "the settings of this run name no rule of credit"
    if file.stat().st_size > MAX_FILE:
        return "this step has too many trees to compute their credit here"
    options = config.get("credit")
    try:
        rule = load_rule(str(config["rule"]), cast(dict[str, Any], options) if isinstance(options, dict) else {})
        groups = group_trees(read_file(file))
        credits = compute_credits(rule, groups)
        if config.get("refill"):
            kept = without_replaced(groups, credits.summary.flat, num_groups=int(config["tasks_per_step"]))
            credits = compute_credits(rule, kept) if len(kept) < len(groups) else credits
    except (RametError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"the credit of this step cannot be computed here: {error}"
    return credits
