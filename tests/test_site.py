"""The documentation site: every page is in its navigation, and no link between pages is broken."""

from __future__ import annotations

import inspect
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ramet

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
SITE: dict[str, Any] = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`|<!--.*?-->", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|\b(?:src|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def links(page: Path) -> list[str]:
    """Targets of links and pictures that are not in code."""
    return [first or second for first, second in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the site and code hosts make them.

    Example:
        a heading "What `x` is, in short" has the anchor "what-x-is-in-short"
    """
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = [re.sub(r"[^\w\s-]", "", title).strip().lower() for title in HEADING.findall(text)]
    return {re.sub(r"[\s]+", "-", title) for title in titles}


def pages_of(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from pages_of(inner)


def test_the_navigation_names_every_page_once() -> None:
    assert sorted(pages_of(SITE["nav"])) == sorted(page.name for page in DOCS.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for link in links(page):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}, which has no such heading"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_no_page_has_the_marks_of_an_unfinished_merge(page: Path) -> None:
    assert not re.findall(r"^(?:<{7}|={7}|>{7})(?: .*)?$", page.read_text(encoding="utf-8"), re.MULTILINE)


def test_pages_of_the_site_link_to_nothing_outside_docs() -> None:
    for page in DOCS.glob("*.md"):
        assert not [link for link in links(page) if link.startswith("../")], page.name


def test_the_site_loads_nothing_from_elsewhere() -> None:
    assert SITE["theme"]["font"] is False
    assert not {"extra_javascript", "analytics"} & SITE.keys()
    styles = "".join((DOCS / name).read_text(encoding="utf-8") for name in SITE["extra_css"])
    assert "url(" not in styles
    assert "@import" not in styles


def test_the_api_page_has_every_public_name_once() -> None:
    names = re.findall(r"^::: ramet\.(\S+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(name for name in names if "." not in name) == sorted(set(ramet.__all__) - {"__version__"})


def test_every_name_of_the_api_page_exists_and_is_documented() -> None:
    for name in re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE):
        found = pkgutil.resolve_name(name)
        assert inspect.getdoc(found) or not (inspect.isclass(found) or inspect.isroutine(found)), name


def test_every_file_of_docs_is_a_page_or_used_by_one() -> None:
    used = {link.partition("#")[0].removeprefix("docs/") for page in PAGES for link in links(page)}
    used |= {*SITE["extra_css"], "api_docstrings.py"}
    assert not {file.name for file in DOCS.iterdir() if file.is_file() and file.suffix != ".md"} - used


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_taskset_of_the_tutorial_is_that_of_the_example() -> None:
    found = re.search(r"<!-- file: products.py -->\n```python\n(.*?)```", (DOCS / "tutorial.md").read_text(), re.DOTALL)
    assert found is not None
    assert found[1].strip() in (ROOT / "examples" / "own_taskset.py").read_text()
