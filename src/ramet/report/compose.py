"""The parts of the page: evaluations, training runs, trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ramet.draw import counted
from ramet.evaluate.tables import Section
from ramet.report.curves import overlaid_pictures, training_pictures
from ramet.report.delegation import delegation_by_size
from ramet.report.differences import difference_picture
from ramet.report.drilldown import cell_details, difference_details, drawn_tree, examples
from ramet.report.endings import ending_table
from ramet.report.figures import Picture
from ramet.report.grouping import make_overviews
from ramet.report.learnt import learnt
from ramet.report.markup import Content, tag
from ramet.report.page_tables import (
    area_table,
    bucket_tables,
    comparison_tables,
    figures,
    method_tables,
    split_tables,
)
from ramet.report.plots import evaluation_pictures, overview_picture
from ramet.report.read import Run, newest_trees, read_trees, read_warm_start
from ramet.report.timeline import MAX_NODES, timeline
from ramet.report.training import sql_hint, step_details, training_table, trees_table
from ramet.report.viewer import Linked, tree_link
from ramet.report.when import when_picture
from ramet.store import slug
from ramet.store.checkpoints import WARM
from ramet.types import Tree, is_right

WHEN = "when-to-delegate"  # file of the picture that the page begins with
MAX_TREES = 12  # of a run that is only trees
RECENT_TREES = 64  # of a training run: one of them is drawn
ORACLE = "best@k is an oracle: it looks at the reference to choose, so it is an upper bound for choosing."
MULTIPLE = "Differences are over the same items. With 95% intervals, one in twenty misses the true value."
UNEQUAL = "Cells have different numbers of items: the evaluation is not finished, or was interrupted."


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePart:
    """A part of the page under one heading."""

    title: str
    content: Sequence[Content]
    pictures: Sequence[Picture]
    trees: Sequence[Linked] = ()  # those that it links to


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """When a training run learnt to delegate: a sentence and a picture."""

    run: str
    sentence: str
    picture: Picture


def compose_stories(runs: Sequence[Run]) -> list[Story]:
    """One for each training run whose trees delegate and whose tasks have sizes. The page begins with the first."""
    learning = [run for run in runs if run.metrics and run.kind != "warmstart"]
    prefixes = _file_prefixes(runs)
    stories: list[Story] = []
    for run in learning:
        delegation = delegation_by_size(run)
        if delegation is not None:
            sentence = learnt(delegation) if len(learning) == 1 else f"{run.name}: {learnt(delegation)}"
            name = f"{prefixes[run.name] if stories else ''}{WHEN}"
            stories.append(Story(run=run.name, sentence=sentence, picture=when_picture(delegation, name=name)))
    return stories


def compose_parts(
    runs: Sequence[Run], sections: Sequence[Section], stories: Sequence[Story] = (), *, linked: bool = False
) -> list[PagePart]:
    """All parts of the page for these runs, without the story that the page begins with.

    `linked`: trees that are drawn link to the viewer's page of them.
    """
    by_name = {run.name: run for run in runs}
    parts = [_overview(overview, sections, place) for place, overview in enumerate(make_overviews(runs))]
    parts += [_evaluation(section, by_name, only=len(sections) == 1, linked=linked) for section in sections]
    training = [run for run in runs if run.metrics]
    learning = [run for run in training if run.kind != "warmstart"]
    if len(learning) > 1:
        pictures = overlaid_pictures(learning, name="runs-")
        parts.append(PagePart(title="Training runs together", content=[figures(pictures)], pictures=pictures))
    prefixes = _file_prefixes(runs)
    later = {story.run: story for story in stories[1:]}
    parts += [_training(run, later.get(run.name), name=prefixes[run.name], linked=linked) for run in training]
    plain = [run for run in runs if not run.metrics and not run.records and run.tree_ids]
    return parts + [_plain(run, name=prefixes[run.name], linked=linked) for run in plain]


def _file_prefixes(runs: Sequence[Run]) -> dict[str, str]:
    """The start of the file names of each run: a slug of its name, with a number if it is not unique."""
    slugs = [slug(run.name) for run in runs]
    return {
        run.name: f"{own}-" if slugs.count(own) == 1 else f"{own}-{place}-"
        for place, (run, own) in enumerate(zip(runs, slugs, strict=True), 1)
    }


def _overview(overview: Section, sections: Sequence[Section], place: int) -> PagePart:
    """Several splits next to each other."""
    picture = overview_picture(overview, name=f"splits-{place + 1}" if place else "splits")
    pictures = [] if picture is None else [picture]
    content = [tag("div", figures(pictures), tag("div", split_tables(overview, sections)), class_="beside")]
    return PagePart(title="All splits", content=content, pictures=pictures)


def _evaluation(section: Section, runs: Mapping[str, Run], *, only: bool, linked: bool) -> PagePart:
    name = "" if only else f"{slug(section.title or 'eval')}-{section.number}-"
    pictures = evaluation_pictures(section, name=name)
    drawn = _example_trees(section, runs)
    timelines = _timeline([tree for _, _, tree in drawn], name=f"{name}timeline")
    differences = difference_picture(section, name=f"{name}differences")
    pictures += [] if differences is None else [differences]
    content: list[Content] = [
        tag("p", UNEQUAL, class_="note") if _has_unequal_cells(section) else None,
        figures(pictures[:2]),
        tag("p", ORACLE) if any(cell.oracle for cell in section.cells) else None,
        method_tables(section),
        area_table(section),
        comparison_tables(section),
        tag("p", MULTIPLE, class_="small") if section.comparisons else None,
        figures(pictures[2:]) if pictures[2:] else None,
        bucket_tables(section),
        ending_table(section, runs),
        tag("h3", "Trees"),
        figures(timelines) if timelines else None,
        [
            drawn_tree(tree, run, title=title, open_=place == 0, linked=linked)
            for place, (title, run, tree) in enumerate(drawn)
        ]
        or tag("p", "No tree of these items is stored."),
        tag("h3", "Behind the numbers"),
        tag("p", "Every number in the tables above links to its items and their trees."),
        _folded("Items of each method and budget", cell_details(section, runs)),
        _folded("Items on which two methods or runs differ", difference_details(section, runs)),
    ]
    title = f"Evaluation on {section.title}" if section.title else "Evaluation"
    trees = [(run, tree.id) for _, run, tree in drawn] if linked else []
    return PagePart(title=title, content=content, pictures=[*pictures, *timelines], trees=trees)


def _has_unequal_cells(section: Section) -> bool:
    """Whether a run has more items in one cell than in another."""
    counts = {(cell.run, cell.items) for cell in section.cells}
    return len(counts) > len({cell.run for cell in section.cells})


def _folded(title: str, parts: Sequence[Content]) -> Content:
    return tag("details", tag("summary", f"{title} ({len(parts)})"), parts, class_="behind all") if parts else None


def _example_trees(section: Section, runs: Mapping[str, Run]) -> list[tuple[str, Run, Tree]]:
    """A tree for each example; of several votes, one with the chosen answer."""
    drawn: list[tuple[str, Run, Tree]] = []
    for title, run, record in examples(section, runs):
        trees = list(read_trees(run, record.trees).values())
        chosen = [tree for tree in trees if tree.answer == record.answer] or trees
        drawn += [(title, run, tree) for tree in chosen[:1]]
    return drawn


def _timeline(trees: Sequence[Tree], *, name: str) -> list[Picture]:
    """The largest tree that fits on the page; none if no tree delegated."""
    delegated = [tree for tree in trees if len(tree.nodes) > 1]
    candidates = [tree for tree in delegated if len(tree.nodes) <= MAX_NODES] or delegated
    if not candidates:
        return []
    return [timeline(max(candidates, key=lambda tree: len(tree.nodes)), name=name)]


def _training(run: Run, story: Story | None, *, name: str, linked: bool) -> PagePart:
    start = read_warm_start(run)
    before = [] if start is None else training_pictures(start, name=f"{name}{WARM}-")
    pictures = [*before, *training_pictures(run, name=name)]
    trees = list(read_trees(run, newest_trees(run, RECENT_TREES)).values())
    timelines = _timeline(trees, name=f"{name}timeline")
    shown = _right_and_wrong(trees) if linked else []
    steps = len(start.metrics) if start else 0
    own = [] if story is None else [story.picture]
    content: list[Content] = [
        tag("p", f"It started with {counted(steps, 'step')} on demonstrations.") if steps else None,
        tag("p", story.sentence) if story is not None else None,
        figures(own) if own else None,
        figures(pictures),
        training_table(run),
        figures(timelines) if timelines else None,
        [
            tag("p", f"A {word} tree of the last steps, {tree.id}: ", tree_link(run, tree.id), ".")
            for word, tree in shown
        ],
        step_details(run),
        sql_hint(run) if run.tree_ids else None,
    ]
    linked_trees = [(run, tree.id) for _, tree in shown]
    verb = {"train": "Training", "warmstart": "Warm start"}.get(run.kind, run.kind.capitalize())
    return PagePart(
        title=f"{verb}: {run.name}", content=content, pictures=[*own, *pictures, *timelines], trees=linked_trees
    )


def _right_and_wrong(trees: Sequence[Tree]) -> list[tuple[str, Tree]]:
    """The largest right tree and the largest wrong one."""
    found: list[tuple[str, Tree]] = []
    for word, right in (("right", True), ("wrong", False)):
        graded = [tree for tree in trees if tree.root.verdict is not None]
        own = [tree for tree in graded if tree.root.verdict and is_right(tree.root.verdict.score) == right]
        found += [(word, max(own, key=lambda tree: len(tree.nodes)))] if own else []
    return found


def _plain(run: Run, *, name: str, linked: bool) -> PagePart:
    trees = list(read_trees(run, newest_trees(run, MAX_TREES)).values())
    timelines = _timeline(trees, name=f"{name}timeline")
    older = len(run.tree_ids) - len(trees)
    content: list[Content] = [
        trees_table(run, trees),
        tag("p", f"{older:,} older trees are not shown.") if older else None,
        figures(timelines) if timelines else None,
        [
            drawn_tree(tree, run, title=f"Tree {tree.id}", open_=place == 0, linked=linked)
            for place, tree in enumerate(trees)
        ],
        sql_hint(run),
    ]
    named = [(run, tree.id) for tree in trees] if linked else []
    return PagePart(title=f"Trees: {run.name}", content=content, pictures=timelines, trees=named)
