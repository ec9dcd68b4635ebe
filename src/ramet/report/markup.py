"""HTML from Python. Text is escaped unless it was made here: what a model wrote can never become markup."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterable, Sequence

VOID = frozenset({"meta", "br", "hr", "img", "link"})
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")  # no browser shows them, and no XML may hold them


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = str | None | Iterable["Content"]


def tag(name: str, /, *content: Content, **attributes: str | bool | None) -> Markup:
    """An element. `class_` is its class; an attribute that is True stands alone, None and False are left out.

    Example:
        tag("a", "1 < 2", href="#x")  # '<a href="#x">1 &lt; 2</a>'
    """
    pairs = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    said = "".join(
        f" {key}" if value is True else f' {key}="{escaped(value)}"'
        for key, value in pairs
        if value is not None and value is not False
    )
    return Markup(f"<{name}{said}>") if name in VOID else Markup(f"<{name}{said}>{join(*content)}</{name}>")


def join(*content: Content) -> Markup:
    """Pieces one after the other, each escaped unless it is markup."""
    pieces: list[str] = []
    for piece in content:
        if piece is None:
            continue
        if isinstance(piece, Markup):
            pieces.append(piece)
        elif isinstance(piece, str):
            pieces.append(escaped(piece))
        else:
            pieces.append(join(*piece))
    return Markup("".join(pieces))


def escaped(text: str) -> str:
    return html.escape(CONTROL.sub("\N{REPLACEMENT CHARACTER}", text), quote=True)


def table(
    head: Sequence[Content],
    rows: Iterable[Sequence[Content]],
    *,
    caption: str,
    labels: int = 1,
    left: Collection[int] = (),
) -> Markup:
    """A table that scrolls by itself on a narrow screen; the first `labels` columns name the row, `left` hold text.

    Where all names but the last are those of the row above, they step back.
    """
    top = [tag("th", cell, scope="col", class_="l" if i < labels or i in left else None) for i, cell in enumerate(head)]
    body: list[Markup] = []
    above: list[Content] | None = None
    for row in rows:
        names = list(row[: labels - 1])
        same = labels > 1 and names == above
        cells = [
            tag("th", cell, scope="row", class_="same" if same and i < labels - 1 else None)
            if i < labels
            else tag("td", cell, class_="l" if i in left else None)
            for i, cell in enumerate(row)
        ]
        body.append(tag("tr", cells, class_="new" if labels > 1 and above is not None and not same else None))
        above = names
    inner = tag("table", tag("caption", tag("span", caption)), tag("thead", tag("tr", top)), tag("tbody", body))
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)


def anchor(*parts: object) -> str:
    """An id out of names: letters, digits and a few signs, and different names give different ids.

    Example:
        anchor("cell", "vote@8", 2000)  # "cell.vote-40_8.2000"
    """
    return ".".join(re.sub(r"[^A-Za-z0-9_]", lambda found: f"-{ord(found[0]):x}_", str(part)) for part in parts)
