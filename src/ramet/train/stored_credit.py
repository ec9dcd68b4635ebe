"""The credit of stored trees: reward, baseline, advantage and weight of every node.

Credit is not stored. It is a function of the trees of a step and of the run's rule, so it is computed again. The file
of a rule of the user's own is run for that.
"""

# pyarrow ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from ramet import plugins
from ramet.credit import Credits, compute_credits, group_trees, load_rule
from ramet.errors import RametError
from ramet.store import RunDir
from ramet.store.seal import read_table
from ramet.store.tree_files import read_file
from ramet.train.refill import without_replaced

STEP = "step-"  # how the names of files with trees that were learnt from begin
MAX_FILE = 400 * 2**20  # bytes of a tree file; the credit of a larger step is not computed
NOT_A_STEP = "only trees of training steps have credit"
REPLACED = "this tree was replaced by one with a signal, and not trained on"


def step_credits(config: Mapping[str, Any], file: Path) -> Credits | str:
    """The credit that the rule of a run's settings gives the trees of a file, or one line that says why none."""
    if not file.stem.startswith(STEP):
        return NOT_A_STEP
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
    except Exception as error:
        why = plugins.mistake(error)  # of a rule of the user's own
        if why is None:
            raise
        return f"the credit of this step cannot be computed here: {why}"
    return credits


def tree_credit(config: Mapping[str, Any], credits: Credits | str, tree: str) -> dict[str, Any]:
    """The credit of a tree by node index, with the name of the rule; or why there is none."""
    if isinstance(credits, str):
        return {"nodes": {}, "why": credits}
    nodes = {str(node): asdict(credit) for (name, node), credit in credits.by_node.items() if name == tree}
    turns = {f"{node}.{turn}": asdict(c) for (name, node, turn), c in credits.by_turn.items() if name == tree}
    if not nodes:
        return {"nodes": {}, "why": REPLACED}
    return {"nodes": nodes, "turns": turns, "rule": str(config.get("rule")), "note": replay_note(config)}


def stored_credit(run: RunDir, tree: str) -> dict[str, Any]:
    """The credit of a tree of a run directory by node index; or why there is none."""
    for file in step_files(run):
        if tree in read_table(file, columns=["tree"]).column("tree").to_pylist():
            return tree_credit(run.settings, step_credits(run.settings, file), tree)
    return {"nodes": {}, "why": NOT_A_STEP}


def credit_table(run: RunDir, on_problem: Callable[[str], None]) -> Any:
    """An Arrow table with the credit of every node of a training. A step that has none is reported."""
    import pyarrow as pa

    rows: list[dict[str, Any]] = []
    files = step_files(run)
    if not files:
        on_problem(NOT_A_STEP)
    for file in files:
        credits = step_credits(run.settings, file)
        if isinstance(credits, str):
            on_problem(f"{file.name}: {credits}")
            continue
        rows += [{"tree": tree, "node": node} | asdict(credit) for (tree, node), credit in credits.by_node.items()]
    numbers = [(name, pa.float64()) for name in ("reward", "baseline", "advantage", "weight")]
    return pa.Table.from_pylist(rows, schema=pa.schema([("tree", pa.string()), ("node", pa.int32()), *numbers]))


def step_files(run: RunDir) -> list[Path]:
    """The readable files with trees of training steps; none if the run is no training."""
    files = run.readable_files(lambda _: None) if run.kind == "train" else []
    return [file for file in files if file.stem.startswith(STEP)]


def replay_note(config: Mapping[str, Any]) -> str:
    """What credit that is computed again lacks, if the run replayed turns."""
    replayed = config.get("counterfactual")
    share = cast(dict[str, Any], replayed).get("share") if isinstance(replayed, dict) else 0
    return "without what the replays of the step added" if share else ""
