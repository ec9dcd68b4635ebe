"""Pictures can be told apart: by contrast, by colour, and without colour."""

from __future__ import annotations

import re
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.report.page import HERE
from ramet.report.style import (
    COLOURS,
    LINES,
    TEXT,
    canvas,
    contrast,
    drawing,
    looks,
    numbered,
    png_of,
    svg_of,
    variables,
)

BACKGROUNDS = ("paper", "shade")
METHODS = ["single", "vote@8", "best@8", "clones", "clones/1", "clones/2"]


def test_contrast_is_as_the_guidelines_say() -> None:
    # Grey #777777: 0.2159 by the formula with 2.4 as exponent; (1 + 0.05) / (0.1845 + 0.05) = 4.48.
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    assert contrast("#abcdef", "#abcdef") == 1.0


@pytest.mark.parametrize("screen", [0, 1], ids=["on paper", "on a dark screen"])
@pytest.mark.parametrize("background", BACKGROUNDS)
def test_lines_and_text_stand_out_from_their_background(screen: int, background: str) -> None:
    ground = COLOURS[background][screen]
    least = 3.0 if background == "paper" else 2.6  # the shade is ground for a few marks only
    for name in LINES:
        assert contrast(COLOURS[name][screen], ground) >= least, name
    for name in TEXT:
        assert contrast(COLOURS[name][screen], ground) >= 4.5, name


def test_no_two_colours_of_a_theme_are_the_same() -> None:
    """Otherwise a picture could not be turned into variables and back."""
    for screen in (0, 1):
        values = [pair[screen] for pair in COLOURS.values()]
        assert len(set(values)) == len(values)
        assert all(re.fullmatch("#[0-9a-f]{6}", value) for value in values)


def test_the_style_sheet_has_no_colour_of_its_own() -> None:
    sheet = (HERE / "page.css").read_text(encoding="utf-8")
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgb|hsl", sheet)
    named = set(re.findall(r"var\(--(\w+)\)", sheet))
    assert named <= set(COLOURS)
    assert all(f"--{name}:" in variables() for name in named)


@pytest.mark.parametrize("what", ["colour", "marker", "dashes"])
def test_any_one_of_colour_marker_and_line_tells_methods_apart(what: str) -> None:
    found = [str(getattr(look, what)) for look in looks(METHODS).values()]
    assert len(set(found)) == len(METHODS)


@given(st.lists(st.sampled_from(["single", "vote@2", "vote@8", "best@4", "clones", "clones/1", "other"]), unique=True))
def test_common_methods_look_the_same_whatever_stands_beside_them(methods: list[str]) -> None:
    found = looks(methods)
    assert list(found) != [] or not methods
    for method, colour in (("clones", "blue"), ("single", "vermillion"), ("best@4", "purple")):
        if method in methods and not (method == "clones" and "clones/1" in methods):
            assert found[method].colour == colour
    assert len({(look.colour, look.marker, look.hollow) for look in found.values()}) == len(methods)


def test_more_series_than_colours_still_differ() -> None:
    found = [numbered(place, turn=place // len(LINES)) for place in range(2 * len(LINES))]
    for one, other in combinations(found, 2):
        assert (one.colour, one.marker, one.hollow) != (other.colour, other.marker, other.hollow)


def test_a_picture_in_the_page_has_the_pages_colours_and_ids_of_its_own() -> None:
    with drawing():
        figure, axes = canvas()
        axes.plot([1, 2], [1, 2], label='id="x" $y$ #0072b2 <b>', **looks(["clones"])["clones"].line())
        axes.legend()
        svg = svg_of(figure, name="some", label='a "picture"')
        png = png_of(figure)
    assert "var(--blue)" in svg
    assert 'aria-label="a &quot;picture&quot;"' in svg
    assert all(found.startswith("some.") for found in re.findall(r'\sid="([^"]+)"', re.sub(r">[^<]*<", "><", svg)))
    assert all(found.startswith("some.") for found in re.findall(r'(?:url\(|href=")#([^)"]+)', svg))
    assert "$y$ #0072b2 &lt;b&gt;" in svg  # somebody's words stay as they are
    assert "DejaVu" not in svg
    assert png.startswith(b"\x89PNG")
