"""Tables of training runs, and of runs that are only trees."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ramet.draw import one_line
from ramet.evaluate.format import share
from ramet.report.curves import look_up
from ramet.report.drilldown import show_command
from ramet.report.format import amount
from ramet.report.markup import Content, Markup, anchor, table, tag
from ramet.report.page_tables import link
from ramet.report.read import Run, as_number
from ramet.types import Tree

LAST = 10  # steps whose mean is shown next to the last one
SHARE, COUNT, PLAIN = "share", "count", "plain"
METRICS = (
    ("reward", "reward of the root", PLAIN),
    ("loss", "loss", PLAIN),
    ("success", "success of the root", SHARE),
    ("score", "score of the root", PLAIN),
    ("delegated", "trees that delegated", SHARE),
    ("nodes", "nodes per tree", COUNT),
    ("tokens", "tokens per tree", COUNT),
    ("critical_path_tokens", "critical path, tokens", COUNT),
    ("passed_on", "clones with their parent's goal", SHARE),
    ("impossible", "clones with a goal that cannot be met", SHARE),
    ("unearned", "right nodes in whose subtree nothing was done", SHARE),
    ("refused", "refused clones per tree", PLAIN),
    ("faults", "failed calls per tree", PLAIN),
    ("root_stops/window", "roots whose window was full", SHARE),
    ("root_stops/budget", "roots that ran out of tokens", SHARE),
    ("root_stops/turns", "roots that ran out of turns", SHARE),
    ("entropy", "entropy of a sampled token", PLAIN),
    ("logprob_gap", "log-probability gap between sampler and learner", PLAIN),
    ("eval_success", "held-out: success of the root", SHARE),
    ("eval_delegated", "held-out: trees that delegated", SHARE),
    ("eval_tokens", "held-out: tokens per tree", COUNT),
)
WARM_START_METRICS = (  # its trees are demonstrations
    ("loss", "loss", PLAIN),
    ("delegated", "demonstrations that delegate", SHARE),
    ("tokens", "tokens per demonstration", COUNT),
)


def training_table(run: Run) -> Markup | None:
    """Metrics of the first step, of the last step, and their means over the last few."""
    if not run.metrics:
        return None
    columns = _columns(run)
    rows: list[Sequence[Content]] = []
    for key, label, kind in WARM_START_METRICS if run.kind == "warmstart" else METRICS:
        cells = [_cell(run, name, records, key, kind) for name, records in columns]
        if any(cell is not None for cell in cells):
            rows.append([label, *("–" if cell is None else cell for cell in cells)])
    head = ["", *(name for name, _ in columns)]
    return table(head, rows, caption=f"{run.name}: from the first step to the last")


Columns = list[tuple[str, Sequence[Mapping[str, Any]]]]


def _columns(run: Run) -> Columns:
    """The records of each column."""
    metrics = run.metrics
    columns: Columns = [("first", metrics[:1])]
    if len(metrics) > 1:
        columns.append(("last", metrics[-1:]))
    if len(metrics) > LAST:
        columns.append((f"mean of the last {LAST}", metrics[-LAST:]))
    return columns


def _cell(run: Run, column: str, records: Sequence[Mapping[str, Any]], key: str, kind: str) -> Content:
    if key.startswith("eval_"):  # measured only every few steps: take the first or last steps that have it
        having = [record for record in run.metrics if as_number(record.get(key)) is not None]
        records = having[:1] if column == "first" else having[-1:] if column == "last" else having[-LAST:]
    values = [value for record in records if (value := as_number(look_up(record, key))) is not None]
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    text = {SHARE: share(mean), COUNT: amount(mean), PLAIN: f"{mean:.3g}"}[kind]
    return link(_steps_id(run, column, held_out=key.startswith("eval_")), text)


def _step(record: Mapping[str, Any]) -> int:
    return int(as_number(record.get("step")) or 0)


def _steps_id(run: Run, column: str, *, held_out: bool) -> str:
    return anchor("steps", run.name, column, "eval" if held_out else "train")


def step_details(run: Run) -> Markup | None:
    """Commands that show the trees of the steps in the table."""
    if not run.metrics:
        return None
    inner: list[Content] = []
    for column, records in _columns(run):
        inner.append(_step_commands(run, column, [_step(record) for record in records], held_out=False))
        having = [_step(record) + 1 for record in run.metrics if as_number(record.get("eval_success")) is not None]
        steps = having[:1] if column == "first" else having[-1:] if column == "last" else having[-LAST:]
        inner.append(_step_commands(run, column, steps, held_out=True) if steps else None)
    return tag("details", tag("summary", f"{run.name}: the trees of these steps"), inner, class_="behind")


def _step_commands(run: Run, column: str, steps: Sequence[int], *, held_out: bool) -> Markup:
    prefixes = [f"eval-{step:06d}-" if held_out else f"{step:06d}-" for step in steps]
    known = {tree[: len(prefixes[0])] for tree in run.tree_ids} if prefixes else set[str]()
    stored = [prefix for prefix in prefixes if prefix in known]
    shown: Content = [tag("div", show_command(run, prefix)) for prefix in stored]
    if not stored:
        shown = tag("p", "No trees of these steps are stored: demonstrations are generated again from the seed.")
    title = f"{column}, held-out tasks" if held_out else column
    return tag("div", tag("h4", title), shown, id=_steps_id(run, column, held_out=held_out))


def trees_table(run: Run, trees: Sequence[Tree]) -> Markup:
    """The trees of a run that has neither metrics nor records."""
    rows: list[Sequence[Content]] = []
    for tree in trees:
        verdict = tree.root.verdict
        used = tree.usage
        rows.append(
            [
                one_line(tree.task.question, 70),
                "–" if verdict is None else f"{verdict.score:g}",
                one_line(tree.answer if tree.answer is not None else "no answer", 60),
                f"{used.tokens:,}",
                f"{used.critical_path_tokens:,}",
                f"{len(tree.nodes):,}",
                f"{tree.depth}",
                show_command(run, tree.id),
            ]
        )
    head = ("question", "score", "answer", "generated", "critical path", "nodes", "depth", "show")
    return tag("div", table(head, rows, caption=f"{run.name}: trees", left=(2, 7)), class_="trees")


def sql_hint(run: Run) -> Markup:
    """An example of `ramet sql`."""
    query = "select depth, count(*) as nodes, avg(score) as score, avg(tokens) as tokens from nodes group by depth"
    return tag("p", "Query it: ", tag("code", f'ramet sql {shlex.quote(str(run.path))} "{query}"', class_="copy"))
