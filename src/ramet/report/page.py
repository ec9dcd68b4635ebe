"""One page for one or more runs. It is complete: nothing is loaded from elsewhere.

    write_report([Path("runs/before"), Path("runs/after")], Path("report"))

writes `index.html`, and the records as `records.csv` and `records.parquet`; with `png=True`, also every plot as a file.
"""

# pyarrow ships no types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ramet.draw import counted
from ramet.errors import ConfigError, StoreError
from ramet.evaluate.journal import FILE
from ramet.evaluate.tables import Section
from ramet.report.compose import PagePart, Story, compose_parts, compose_stories
from ramet.report.figures import Picture
from ramet.report.grouping import group_runs, not_compared
from ramet.report.headline import headline, plain_headline
from ramet.report.markup import Content, Markup, anchor, join, tag
from ramet.report.page_tables import figures
from ramet.report.provenance import provenance
from ramet.report.read import Run, read_runs, read_warm_start
from ramet.report.style import css_variables, drawing, to_png
from ramet.report.viewer import Export, export_trees
from ramet.store.atomic import write_text

HERE = Path(__file__).parent
TOP_LINES = 3  # of the headline; the others are folded


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A page and the files next to it."""

    runs: tuple[Run, ...]
    sections: tuple[Section, ...]
    headline: tuple[str, ...]
    pictures: tuple[Picture, ...]
    html: str
    trees: Mapping[str, str]  # pages of the viewer by file name


def write_report(
    runs: Sequence[Path],
    into: Path,
    *,
    names: Sequence[str | None] | None = None,
    export: Export | None = None,
    png: bool = False,
) -> Path:
    """Read runs, write the page and its files, return the path of the page. The same runs give the same bytes.

    `names` label the runs; None stands for the name of the directory. With `export`, `ramet.view.export.export`, the
    trees that are drawn can be read node by node: the page links to files beside it. `png`: write every plot as a PNG
    file too, for slides and papers; the page has them as SVG.
    """
    return save_report(make_report(runs, names=names, export=export), into, png=png)


def update_report(run: Path) -> Path:
    """Write the report of a finished evaluation into its run directory, unless it is newer than the records."""
    page = run / "report" / "index.html"
    return page if is_current(page, [run]) else write_report([run], page.parent)


def is_current(page: Path, runs: Sequence[Path]) -> bool:
    """Whether a page exists that is newer than the records and metrics of these runs."""
    sources = [file for run in runs for name in (FILE, "metrics.jsonl") if (file := run / name).exists()]
    return page.exists() and all(page.stat().st_mtime >= file.stat().st_mtime for file in sources)


def make_report(
    runs: Sequence[Path], *, names: Sequence[str | None] | None = None, export: Export | None = None
) -> Report:
    """Read runs and compose the page."""
    loaded = [_begun(run) for run in read_runs(runs, names=names)]
    sections = group_runs(loaded)
    with drawing():
        stories = compose_stories(loaded)
        parts = compose_parts(loaded, sections, stories, linked=export is not None)
    if not parts:
        reasons = "; ".join(f"{run.path}: {', '.join(run.notes) or 'no tree is finished yet'}" for run in loaded)
        raise ConfigError(f"nothing to show yet: {reasons}")
    lines = [headline(section, titled=len(sections) > 1) for section in sections]
    room = max(1, TOP_LINES // max(1, len(sections)))
    top = [line for group in lines for line in group[:room]]
    top += [line for run in loaded if (line := plain_headline(run)) is not None] + not_compared(loaded, sections)
    rest = [line for group in lines for line in group[room:]]
    first = stories[:1]
    return Report(
        runs=tuple(loaded),
        sections=tuple(sections),
        headline=(*(story.sentence for story in first), *top),
        pictures=(*(story.picture for story in first), *(picture for part in parts for picture in part.pictures)),
        html=_html(loaded, first, top, rest, parts),
        trees={} if export is None else export_trees([tree for part in parts for tree in part.trees], export),
    )


def _begun(run: Run) -> Run:
    """The run, or its supervised start if it has nothing else yet."""
    empty = not run.metrics and not run.records and not run.tree_ids
    return (read_warm_start(run) if empty else None) or run


def save_report(report: Report, into: Path, *, png: bool = False) -> Path:
    """Write all files, the page last, so that everything it links to exists."""
    page = into / "index.html"
    try:
        into.mkdir(parents=True, exist_ok=True)
        if png:
            _write_pictures(report, into)
        for name, text in report.trees.items():
            write_text(into / name, text)
        _write_records(report, into)
        write_text(page, report.html)
    except OSError as error:
        raise StoreError(f"cannot write to {into}: {error.strerror or error}") from None
    return page


def _write_pictures(report: Report, into: Path) -> None:
    with drawing():
        for picture in report.pictures:
            (into / f"{picture.name}.png").write_bytes(to_png(picture.figure))


def _write_records(report: Report, into: Path) -> None:
    """One row per item, with the name of its run."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = [{"run": run.name, **asdict(record)} for run in report.runs for record in run.records]
    if not rows:
        return
    pq.write_table(pa.Table.from_pylist(rows), into / "records.parquet")
    sink = io.StringIO()
    writer = csv.DictWriter(sink, list(rows[0]))
    writer.writeheader()
    writer.writerows(row | {"trees": " ".join(row["trees"])} for row in rows)
    (into / "records.csv").write_text(sink.getvalue(), encoding="utf-8")


def _html(
    runs: Sequence[Run], first: Sequence[Story], top: Sequence[str], rest: Sequence[str], parts: Sequence[PagePart]
) -> str:
    names = ", ".join(run.name for run in runs)
    ids = [anchor("section", str(number)) for number in range(len(parts))]
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{names} · ramet report"),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(css_variables() + (HERE / "page.css").read_text(encoding="utf-8"))),
    ]
    links = [tag("a", part.title, href=f"#{target}") for part, target in zip(parts, ids, strict=True)]
    if any(run.records for run in runs):
        links += [tag("a", "records.csv", href="records.csv"), tag("a", "records.parquet", href="records.parquet")]
    incomplete = sum(bool(run.notes) for run in runs)
    lead = [
        tag("h1", f"ramet report: {names}"),
        [[tag("p", story.sentence, class_="story"), figures([story.picture])] for story in first],
        tag("ul", [tag("li", line) for line in top], class_="lead after" if first else "lead"),
        _folded(rest) if rest else None,
        tag("p", _link_to_notes(incomplete), class_="small") if incomplete else None,
    ]
    sections = [_part(part, target) for part, target in zip(parts, ids, strict=True)]
    origin = [tag("h2", "Provenance", id="provenance"), tag("div", provenance(runs), class_="facts")]
    body = [
        tag("header", lead),
        tag("nav", links, tag("a", "Provenance", href="#provenance")),
        tag("main", sections, tag("section", origin)),
        tag("script", Markup((HERE / "page.js").read_text(encoding="utf-8"))),
    ]
    page = join(tag("head", head), tag("body", body))
    return f"<!doctype html>\n{tag('html', page, lang='en')}\n"


def _folded(lines: Sequence[str]) -> Markup:
    summary = tag("summary", counted(len(lines), "more finding"))
    return tag("details", summary, tag("ul", [tag("li", line) for line in lines]), class_="small")


def _link_to_notes(incomplete: int) -> Content:
    runs = "One run is" if incomplete == 1 else f"{incomplete} runs are"
    return [f"{runs} incomplete: ", tag("a", "what is missing", href="#provenance"), "."]


def _part(part: PagePart, target: str) -> Markup:
    return tag("section", tag("h2", part.title, id=target), part.content)
