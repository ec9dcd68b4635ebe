"""What the page is made of, section by section: comparisons, training runs, trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ramet.report.curves import overlaid_pictures, training_pictures
from ramet.report.differences import gaps_picture
from ramet.report.drilldown import behind_cells, behind_differences, drawn_tree, examples
from ramet.report.markup import Content, tag
from ramet.report.numbers import Comparison, overviews
from ramet.report.plots import Picture, evaluation_pictures, overview_picture
from ramet.report.read import START, Run, newest_trees, read_trees, start_of
from ramet.report.sections import (
    area_table,
    bucket_tables,
    comparison_tables,
    figures,
    method_tables,
    split_tables,
)
from ramet.report.timeline import MOST_NODES, timeline
from ramet.report.training import behind_steps, sql_hint, training_table, trees_table
from ramet.store import slug
from ramet.types import Tree

MOST_TREES = 12  # of a run that is only trees
LAST_TREES = 64  # of a training run: one of them is drawn
ORACLE = "best@k is an oracle: it looks at the reference to choose, so it shows what choosing could reach at most."
CHANCE = "Differences are over the same items. Each interval stands for itself: of twenty, one may miss the truth."
UNEQUAL = "Not every cell has the same number of items: the evaluation has not finished, or was cut off."


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page under one heading."""

    title: str
    content: Sequence[Content]
    pictures: Sequence[Picture]


def sections_of(runs: Sequence[Run], compared: Sequence[Comparison]) -> list[Section]:
    """Everything there is to show of these runs."""
    sections = [_overview(one, compared, place) for place, one in enumerate(overviews(runs))]
    sections += [_evaluation(one, alone=len(compared) == 1) for one in compared]
    training = [run for run in runs if run.metrics]
    learning = [run for run in training if run.kind != "warmstart"]
    if len(learning) > 1:
        pictures = overlaid_pictures(learning, name="runs-")
        sections.append(Section(title="Training runs together", content=[figures(pictures)], pictures=pictures))
    names = _file_names(runs)
    sections += [_training(run, name=names[run.name]) for run in training]
    plain = [run for run in runs if not run.metrics and not run.records and run.tree_ids]
    return sections + [_plain(run, name=names[run.name]) for run in plain]


def _file_names(runs: Sequence[Run]) -> dict[str, str]:
    """How the files of each run begin: its name, as a file can have it, and a number where that is taken."""
    slugs = [slug(run.name) for run in runs]
    return {
        run.name: f"{own}-" if slugs.count(own) == 1 else f"{own}-{place}-"
        for place, (run, own) in enumerate(zip(runs, slugs, strict=True), 1)
    }


def _overview(overview: Comparison, compared: Sequence[Comparison], place: int) -> Section:
    """Several splits beside each other."""
    picture = overview_picture(overview, name=f"splits-{place + 1}" if place else "splits")
    pictures = [] if picture is None else [picture]
    return Section(title="All splits", content=[figures(pictures), split_tables(overview, compared)], pictures=pictures)


def _evaluation(comparison: Comparison, *, alone: bool) -> Section:
    name = "" if alone else f"{slug(comparison.title or 'eval')}-{comparison.place}-"
    pictures = evaluation_pictures(comparison, name=name)
    drawn = _drawn(comparison)
    lines = _timeline([tree for _, _, tree in drawn], name=f"{name}timeline")
    gaps = gaps_picture(comparison, name=f"{name}differences")
    pictures += [] if gaps is None else [gaps]
    content: list[Content] = [
        tag("p", UNEQUAL, class_="note") if _unequal(comparison) else None,
        figures(pictures[:2]),
        tag("p", ORACLE) if any(cell.oracle for cell in comparison.cells) else None,
        method_tables(comparison),
        area_table(comparison),
        comparison_tables(comparison),
        tag("p", CHANCE, class_="small") if comparison.methods_apart or comparison.runs_apart else None,
        figures(pictures[2:]) if pictures[2:] else None,
        bucket_tables(comparison),
        tag("h3", "Trees"),
        figures(lines) if lines else None,
        [drawn_tree(tree, run, title=title, open_=place == 0) for place, (title, run, tree) in enumerate(drawn)]
        or tag("p", "No tree of these items is stored."),
        tag("h3", "Behind the numbers"),
        tag("p", "Every number in the tables above leads here: its items and their trees."),
        _folded("Items of each method and budget", behind_cells(comparison)),
        _folded("Items on which two methods or runs differ", behind_differences(comparison)),
    ]
    title = f"Evaluation on {comparison.title}" if comparison.title else "Evaluation"
    return Section(title=title, content=content, pictures=[*pictures, *lines])


def _unequal(comparison: Comparison) -> bool:
    """Some run has more items of one cell than of another."""
    counts = {(cell.run, len(cell.records)) for cell in comparison.cells}
    return len(counts) > len({cell.run for cell in comparison.cells})


def _folded(title: str, parts: Sequence[Content]) -> Content:
    return tag("details", tag("summary", f"{title} ({len(parts)})"), parts, class_="behind all") if parts else None


def _drawn(comparison: Comparison) -> list[tuple[str, Run, Tree]]:
    """A tree for each example; of several votes, one that gave the answer that was chosen."""
    found: list[tuple[str, Run, Tree]] = []
    for title, run, record in examples(comparison):
        trees = list(read_trees(run, record.trees).values())
        chosen = [tree for tree in trees if tree.answer == record.answer] or trees
        found += [(title, run, tree) for tree in chosen[:1]]
    return found


def _timeline(trees: Sequence[Tree], *, name: str) -> list[Picture]:
    """The tree with most clones that fits on the page; none where nobody delegated."""
    split = [tree for tree in trees if 1 < len(tree.nodes) <= MOST_NODES] or [t for t in trees if len(t.nodes) > 1]
    if not split:
        return []
    return [timeline(max(split, key=lambda tree: len(tree.nodes)), name=name)]


def _training(run: Run, *, name: str) -> Section:
    start = start_of(run)
    before = [] if start is None else training_pictures(start, name=f"{name}{START}-")
    pictures = [*before, *training_pictures(run, name=name)]
    trees = list(read_trees(run, newest_trees(run, LAST_TREES)).values())
    lines = _timeline(trees, name=f"{name}timeline")
    content: list[Content] = [
        tag("p", f"It began with {len(start.metrics):,} steps on demonstrations.") if start and start.metrics else None,
        figures(pictures),
        training_table(run),
        figures(lines) if lines else None,
        behind_steps(run),
        sql_hint(run) if run.tree_ids else None,
    ]
    verb = {"train": "Training", "warmstart": "Warm start"}.get(run.kind, run.kind.capitalize())
    return Section(title=f"{verb}: {run.name}", content=content, pictures=[*pictures, *lines])


def _plain(run: Run, *, name: str) -> Section:
    trees = list(read_trees(run, newest_trees(run, MOST_TREES)).values())
    lines = _timeline(trees, name=f"{name}timeline")
    left = len(run.tree_ids) - len(trees)
    content: list[Content] = [
        trees_table(run, trees),
        tag("p", f"{left:,} older trees are not shown.") if left else None,
        figures(lines) if lines else None,
        [drawn_tree(tree, run, title=f"Tree {tree.id}", open_=place == 0) for place, tree in enumerate(trees)],
        sql_hint(run),
    ]
    return Section(title=f"Trees: {run.name}", content=content, pictures=lines)
