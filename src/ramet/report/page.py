"""One page for one or more runs, complete in itself: nothing is loaded from elsewhere.

    write_report([Path("runs/before"), Path("runs/after")], Path("report"))

writes `index.html`, a PNG of every picture, and the records as `records.csv` and `records.parquet`.
"""

# pyarrow ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError, StoreError
from ramet.report.curves import overlaid_pictures, training_pictures
from ramet.report.markup import Content, Markup, anchor, join, tag
from ramet.report.numbers import Comparison, comparisons
from ramet.report.plots import Picture, evaluation_pictures
from ramet.report.provenance import provenance
from ramet.report.read import Run, newest_trees, read_runs, read_trees
from ramet.report.sections import (
    behind_cells,
    behind_differences,
    bucket_table,
    comparison_tables,
    drawn_tree,
    examples,
    figures,
    method_table,
)
from ramet.report.style import drawing, variables
from ramet.report.timeline import MOST_NODES, timeline
from ramet.report.training import behind_steps, sql_hint, trees_table, training_table
from ramet.report.words import headline, hundredths
from ramet.store import slug
from ramet.types import Tree

HERE = Path(__file__).parent
MOST_TREES = 12  # of a run that is only trees, and to choose from at the end of a training run


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A page and what lies beside it."""

    runs: tuple[Run, ...]
    comparisons: tuple[Comparison, ...]
    headline: tuple[str, ...]
    pictures: tuple[Picture, ...]
    html: str


@dataclass(slots=True, kw_only=True)
class Section:
    """A part of the page under one heading."""

    title: str
    content: list[Content]
    pictures: list[Picture]


def write_report(runs: Sequence[Path], into: Path) -> Path:
    """Read runs, write the page and its files; returns the page. The same runs give the same bytes."""
    return save_report(make_report(runs), into)


def make_report(runs: Sequence[Path]) -> Report:
    """Read runs and compose the page."""
    found = read_runs(runs)
    compared = comparisons(found)
    with drawing():
        sections = _sections(found, compared)
    if not sections:
        reasons = "; ".join(f"{run.path}: {', '.join(run.notes) or 'no tree has finished yet'}" for run in found)
        raise ConfigError(f"nothing to show yet: {reasons}")
    said = [*(line for one in compared for line in headline(one)), *_plain_headline(found)]
    return Report(
        runs=tuple(found),
        comparisons=tuple(compared),
        headline=tuple(said),
        pictures=tuple(picture for section in sections for picture in section.pictures),
        html=_html(found, said, sections),
    )


def save_report(report: Report, into: Path) -> Path:
    """Write everything, the page last: what it speaks of is there."""
    page = into / "index.html"
    try:
        into.mkdir(parents=True, exist_ok=True)
        for picture in report.pictures:
            (into / f"{picture.name}.png").write_bytes(picture.png)
        _write_records(report, into)
        aside = into / "index.html.tmp"
        aside.write_text(report.html, encoding="utf-8")
        aside.replace(page)
    except OSError as error:
        raise StoreError(f"cannot write to {into}: {error.strerror or error}") from None
    return page


def _write_records(report: Report, into: Path) -> None:
    """One row an item, with the run it is of."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = [{"run": run.name, **asdict(one)} for run in report.runs for one in run.records]
    if not rows:
        return
    pq.write_table(pa.Table.from_pylist(rows), into / "records.parquet")
    sink = io.StringIO()
    writer = csv.DictWriter(sink, list(rows[0]))
    writer.writeheader()
    writer.writerows(row | {"trees": " ".join(row["trees"])} for row in rows)
    (into / "records.csv").write_text(sink.getvalue(), encoding="utf-8")


def _plain_headline(runs: Sequence[Run]) -> list[str]:
    """What training runs came to. Nothing is compared here: steps play other tasks than the ones before."""
    found: list[str] = []
    for run in runs:
        first, last = (run.metrics[0], run.metrics[-1]) if run.metrics else ({}, {})
        if "eval_success" in last:
            begun = next(one["eval_success"] for one in run.metrics if "eval_success" in one)
            said = f"from {hundredths(begun)} % to {hundredths(last['eval_success'])} % success on held-out tasks"
            found.append(f"{run.name}: {said} in {len(run.metrics):,} steps.")
        elif "success" in last and run.kind == "train":
            said = f"from {hundredths(first['success'])} % to {hundredths(last['success'])} % success"
            found.append(f"{run.name}: {said} in {len(run.metrics):,} steps, each on tasks of its own.")
        elif run.metrics:
            found.append(f"{run.name}: {len(run.metrics):,} steps.")
        elif not run.records and run.tree_ids:
            number = len(run.tree_ids)
            found.append(f"{run.name}: {number:,} {'tree' if number == 1 else 'trees'}.")
    return found


def _sections(runs: Sequence[Run], compared: Sequence[Comparison]) -> list[Section]:
    sections: list[Section] = []
    for number, comparison in enumerate(compared):
        name = "" if len(compared) == 1 else f"{number + 1}-"
        sections.append(_evaluation(comparison, name=name, numbered=len(compared) > 1))
    training = [run for run in runs if run.metrics]
    if len(training) > 1:
        pictures = overlaid_pictures(training, name="runs-")
        sections.append(Section(title="Training runs together", content=[figures(pictures)], pictures=pictures))
    names = _file_names(runs)
    sections += [_training(run, name=names[run.name]) for run in training]
    plain = [run for run in runs if not run.metrics and not run.records and run.tree_ids]
    sections += [_plain(run, name=names[run.name]) for run in plain]
    return sections


def _file_names(runs: Sequence[Run]) -> dict[str, str]:
    """How the files of each run begin: its name, as a file can have it, and a number where that is taken."""
    slugs = [slug(run.name) for run in runs]
    return {
        run.name: f"{own}-" if slugs.count(own) == 1 else f"{own}-{place}-"
        for place, (run, own) in enumerate(zip(runs, slugs, strict=True), 1)
    }


def _evaluation(comparison: Comparison, *, name: str, numbered: bool) -> Section:
    pictures = evaluation_pictures(comparison, name=name)
    shown = [(title, run, read_trees(run, [tree]).get(tree)) for title, run, tree in examples(comparison)]
    drawn = [(title, run, tree) for title, run, tree in shown if tree is not None]
    first = next((run.name for run in comparison.runs), "")
    lines = _timeline([tree for _, _, tree in drawn], name=f"{name}timeline")
    oracle = any(cell.oracle for cell in comparison.cells)
    content: list[Content] = [
        figures(pictures[:2]),
        tag(
            "p",
            "best@k is an oracle: it looks at the reference to choose, so it shows what choosing could reach at most.",
        )
        if oracle
        else None,
        method_table(comparison),
        comparison_tables(comparison),
        tag(
            "p",
            "Differences are over the same items. Each interval stands for itself: of twenty, one may miss the truth.",
            class_="small",
        ),
        figures(pictures[2:]) if pictures[2:] else None,
        bucket_table(comparison),
        tag("h3", "Trees"),
        figures(lines) if lines else None,
        [drawn_tree(tree, run, title=title, open_=place == 0) for place, (title, run, tree) in enumerate(drawn)]
        or tag("p", "No tree of these items is stored."),
        tag("h3", "Behind the numbers"),
        tag("p", "Every number in the tables above leads here: its items and their trees."),
        behind_cells(comparison),
        behind_differences(comparison),
    ]
    title = "Evaluation" if not numbered else f"Evaluation: {first}"
    return Section(title=title, content=content, pictures=[*pictures, *lines])


def _timeline(trees: Sequence[Tree], *, name: str) -> list[Picture]:
    """The tree with most clones that fits on the page; none where nobody delegated."""
    split = [tree for tree in trees if 1 < len(tree.nodes) <= MOST_NODES] or [t for t in trees if len(t.nodes) > 1]
    if not split:
        return []
    return [timeline(max(split, key=lambda tree: len(tree.nodes)), name=name)]


def _training(run: Run, *, name: str) -> Section:
    pictures = training_pictures(run, name=name)
    trees = list(read_trees(run, newest_trees(run, MOST_TREES)).values())
    lines = _timeline(trees, name=f"{name}timeline")
    content: list[Content] = [
        figures(pictures),
        training_table(run),
        figures(lines) if lines else None,
        behind_steps(run),
        sql_hint(run) if run.tree_ids else None,
    ]
    return Section(title=f"{_verb(run)} {run.name}", content=content, pictures=[*pictures, *lines])


def _verb(run: Run) -> str:
    return {"train": "Training", "warmstart": "Warm start"}.get(run.kind, run.kind.capitalize())


def _plain(run: Run, *, name: str) -> Section:
    ids = newest_trees(run, MOST_TREES)
    trees = list(read_trees(run, ids).values())
    lines = _timeline(trees, name=f"{name}timeline")
    left = len(run.tree_ids) - len(trees)
    content: list[Content] = [
        trees_table(run, trees),
        tag("p", f"{left:,} older trees are not shown.") if left else None,
        figures(lines) if lines else None,
        [drawn_tree(tree, run, title=f"Tree {tree.id}", open_=place == 0) for place, tree in enumerate(trees)],
        sql_hint(run),
    ]
    return Section(title=f"Trees of {run.name}", content=content, pictures=lines)


def _html(runs: Sequence[Run], said: Sequence[str], sections: Sequence[Section]) -> str:
    names = ", ".join(run.name for run in runs)
    ids = [anchor("section", str(number)) for number in range(len(sections))]
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{names} · ramet report"),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(variables() + (HERE / "page.css").read_text(encoding="utf-8"))),
    ]
    links = [tag("a", section.title, href=f"#{target}") for section, target in zip(sections, ids, strict=True)]
    if any(run.records for run in runs):
        links += [tag("a", "records.csv", href="records.csv"), tag("a", "records.parquet", href="records.parquet")]
    broken = sum(bool(run.notes) for run in runs)
    body = [
        tag("h1", f"ramet report: {names}"),
        tag("ul", [tag("li", line) for line in said], class_="lead"),
        tag("p", link_to_notes(broken), class_="small") if broken else None,
        tag("nav", links, " ", tag("a", "Where this comes from", href="#provenance")),
        tag("main", [_section(one, target) for one, target in zip(sections, ids, strict=True)]),
        tag("h2", "Where this comes from", id="provenance"),
        tag("div", provenance(runs), class_="facts"),
        tag("script", Markup((HERE / "page.js").read_text(encoding="utf-8"))),
    ]
    page = join(tag("head", head), tag("body", body))
    return f"<!doctype html>\n{tag('html', page, lang='en')}\n"


def link_to_notes(broken: int) -> Content:
    runs = "One run is" if broken == 1 else f"{broken} runs are"
    return [f"{runs} incomplete: ", tag("a", "what is missing", href="#provenance"), "."]


def _section(section: Section, target: str) -> Markup:
    return tag("section", tag("h2", section.title, id=target), section.content)
