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
from ramet.report.compose import Section, sections_of
from ramet.report.headline import headline, plain_headline
from ramet.report.markup import Content, Markup, anchor, join, tag
from ramet.report.numbers import Comparison, comparisons
from ramet.report.plots import Picture
from ramet.report.provenance import provenance
from ramet.report.read import Run, read_runs
from ramet.report.style import drawing, png_of, variables

HERE = Path(__file__).parent
SENTENCES = 3  # on top of the page; the others are folded


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A page and what lies beside it."""

    runs: tuple[Run, ...]
    comparisons: tuple[Comparison, ...]
    headline: tuple[str, ...]
    pictures: tuple[Picture, ...]
    html: str


def write_report(runs: Sequence[Path], into: Path, *, names: Sequence[str | None] | None = None) -> Path:
    """Read runs, write the page and its files; returns the page. The same runs give the same bytes.

    `names` label the runs; where there is none, its directory does.
    """
    return save_report(make_report(runs, names=names), into)


def make_report(runs: Sequence[Path], *, names: Sequence[str | None] | None = None) -> Report:
    """Read runs and compose the page."""
    found = read_runs(runs, names=names)
    compared = comparisons(found)
    with drawing():
        sections = sections_of(found, compared)
    if not sections:
        reasons = "; ".join(f"{run.path}: {', '.join(run.notes) or 'no tree has finished yet'}" for run in found)
        raise ConfigError(f"nothing to show yet: {reasons}")
    spoken = [headline(one, titled=len(compared) > 1) for one in compared]
    room = max(1, SENTENCES // max(1, len(compared)))
    top = [line for lines in spoken for line in lines[:room]]
    top += [line for run in found if (line := plain_headline(run)) is not None]
    rest = [line for lines in spoken for line in lines[room:]]
    return Report(
        runs=tuple(found),
        comparisons=tuple(compared),
        headline=tuple(top),
        pictures=tuple(picture for section in sections for picture in section.pictures),
        html=_html(found, top, rest, sections),
    )


def save_report(report: Report, into: Path) -> Path:
    """Write everything, the page last: what it speaks of is there."""
    page = into / "index.html"
    try:
        into.mkdir(parents=True, exist_ok=True)
        with drawing():
            for picture in report.pictures:
                (into / f"{picture.name}.png").write_bytes(png_of(picture.figure))
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


def _html(runs: Sequence[Run], top: Sequence[str], rest: Sequence[str], sections: Sequence[Section]) -> str:
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
        tag("ul", [tag("li", line) for line in top], class_="lead"),
        _folded(rest) if rest else None,
        tag("p", _link_to_notes(broken), class_="small") if broken else None,
        tag("nav", links, tag("a", "Where this comes from", href="#provenance")),
        tag("main", [_section(one, target) for one, target in zip(sections, ids, strict=True)]),
        tag("h2", "Where this comes from", id="provenance"),
        tag("div", provenance(runs), class_="facts"),
        tag("script", Markup((HERE / "page.js").read_text(encoding="utf-8"))),
    ]
    page = join(tag("head", head), tag("body", body))
    return f"<!doctype html>\n{tag('html', page, lang='en')}\n"


def _folded(lines: Sequence[str]) -> Markup:
    summary = tag("summary", f"{len(lines)} more such {'sentence' if len(lines) == 1 else 'sentences'}")
    return tag("details", summary, tag("ul", [tag("li", line) for line in lines]), class_="small")


def _link_to_notes(broken: int) -> Content:
    runs = "One run is" if broken == 1 else f"{broken} runs are"
    return [f"{runs} incomplete: ", tag("a", "what is missing", href="#provenance"), "."]


def _section(section: Section, target: str) -> Markup:
    return tag("section", tag("h2", section.title, id=target), section.content)
