"""Parse a page as a browser would."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "use", "path"}


@dataclass
class Table:
    caption: str = ""
    rows: list[list[str]] = field(default_factory=list)


class Page(HTMLParser):
    """Ids, links, tables and text of a page. Badly nested elements fail an assertion."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []  # what a browser would fetch
        self.handlers: list[str] = []
        self.tables: list[Table] = []
        self.codes: list[str] = []
        self.items: list[str] = []
        self.text = ""
        self.scripts = 0
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = {name: value or "" for name, value in attrs}
        if "id" in own:
            self.ids.append(own["id"])
        if tag == "a":
            self.links.append(own["href"])
        self.loads += [own[name] for name in ("src", "srcset", "data", "poster") if name in own]
        self.loads += [own["href"]] if tag == "link" else []
        self.handlers += [name for name in own if name.startswith("on")]
        self.scripts += tag == "script"
        if tag == "table":
            self.tables.append(Table())
        elif tag == "tr":
            self.tables[-1].rows.append([])
        elif tag in ("td", "th"):
            self.tables[-1].rows[-1].append("")
        elif tag == "code":
            self.codes.append("")
        elif tag == "li":
            self.items.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"script", "style"} & set(self.open):
            return
        self.text += data
        if "caption" in self.open:
            self.tables[-1].caption += data
        elif {"td", "th"} & set(self.open):
            self.tables[-1].rows[-1][-1] += data
        if "code" in self.open:
            self.codes[-1] += data
        if "li" in self.open:
            self.items[-1] += data

    def table(self, caption: str) -> Table:
        """The only table whose caption starts with this."""
        found = [table for table in self.tables if table.caption.startswith(caption)]
        assert len(found) == 1, [table.caption for table in self.tables]
        return found[0]

    def row(self, caption: str, *names: str) -> list[str]:
        """The only row of a table that starts with these names."""
        found = [row for row in self.table(caption).rows if row[: len(names)] == list(names)]
        assert len(found) == 1, self.table(caption).rows
        return found[0]
