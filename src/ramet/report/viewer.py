"""Links from the page into the viewer: trees of a run, exported to one HTML file beside the page.

The viewer is a layer above this one, so its export is passed in: `ramet.view.export.export`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from ramet.report.markup import Markup, tag
from ramet.report.read import Run
from ramet.store import slug

Export = Callable[[Sequence[Path], Sequence[str]], str]  # runs, ids of trees: an HTML page with these trees
Linked = tuple[Run, str]  # a run and the id of one of its trees


def export_file(run: Run) -> str:
    """The file with the trees of a run that the page links to."""
    return f"trees-{slug(run.name)}.html"


def tree_link(run: Run, tree: str) -> Markup:
    """A link to a tree: every message, token and number of its nodes."""
    place = f"/run/{quote(run.path.resolve().name, safe='')}/tree/{quote(tree, safe='')}"
    return tag("a", "read it node by node", href=f"{export_file(run)}#{place}")


def export_trees(linked: Iterable[Linked], export: Export) -> dict[str, str]:
    """The files that links lead to, by name."""
    by_run: dict[str, tuple[Run, list[str]]] = {}
    for run, tree in linked:
        by_run.setdefault(export_file(run), (run, []))[1].append(tree)
    return {name: export([run.path], list(dict.fromkeys(trees))) for name, (run, trees) in by_run.items()}
