"""Build HTML. All text is escaped unless it is `Markup`, so model output can never become markup."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterable, Sequence

VOID = frozenset({"meta", "br", "hr", "img", "link"})
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")  # not allowed in XML


class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


Content = str | None | Iterable["Content"]


def tag(name: str, /, *content: Content, **attributes: str | bool | None) -> Markup:
    """An element. `class_` sets its class; True gives an attribute without value, None and False omit it.

    Example:
        tag("a", "1 < 2", href="#x")  # '<a href="#x">1 &lt; 2</a>'
    """
    pairs = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    attribute_text = "".join(
        f" {key}" if value is True else f' {key}="{escaped(value)}"'
        for key, value in pairs
        if value is not None and value is not False
    )
    start = f"<{name}{attribute_text}>"
    return Markup(start) if name in VOID else Markup(f"{start}{join(*content)}</{name}>")


def join(*content: Content) -> Markup:
    """Concatenate pieces, escaping those that are not markup."""
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
    """A table that scrolls on a narrow screen. The first `labels` columns name the row; `left` columns hold text.

    Labels that repeat those of the row above are muted.
    """
    top = [
        tag("th", cell, scope="col", class_="l" if i < labels or i in left else None) if cell else tag("td")
        for i, cell in enumerate(head)
    ]
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
    return tag("div", inner, class_="scroll", tabindex="0", role="group", aria_label=caption)


def anchor(*parts: object) -> str:
    """An HTML id from names: letters, digits and a few signs. Different names give different ids.

    Example:
        anchor("cell", "vote@8", 2000)  # "cell.vote-40_8.2000"
    """
    return ".".join(re.sub(r"[^A-Za-z0-9_]", lambda match: f"-{ord(match[0]):x}_", str(part)) for part in parts)
