"""Series differ in colour, and without colour; lines and text have enough contrast."""

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
    css_variables,
    drawing,
    indexed_look,
    looks,
    to_png,
    to_svg,
)

BACKGROUNDS = ("paper", "shade")
METHODS = ["single", "vote@8", "best@8", "clones", "clones/1", "clones/2"]


def test_contrast_follows_wcag() -> None:
    # Grey #777777: 0.2159 by the formula with 2.4 as exponent; (1 + 0.05) / (0.1845 + 0.05) = 4.48.
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    assert contrast("#abcdef", "#abcdef") == 1.0


@pytest.mark.parametrize("screen", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("background", BACKGROUNDS)
def test_lines_and_text_stand_out_from_their_background(screen: int, background: str) -> None:
    ground = COLOURS[background][screen]
    least = 3.0 if background == "paper" else 2.6  # only a few marks are on shade
    for name in LINES:
        assert contrast(COLOURS[name][screen], ground) >= least, name
    for name in TEXT:
        assert contrast(COLOURS[name][screen], ground) >= 4.5, name


def test_no_two_colours_of_a_theme_are_the_same() -> None:
    """Colours are replaced by CSS variables, so each must be unique."""
    for screen in (0, 1):
        values = [pair[screen] for pair in COLOURS.values()]
        assert len(set(values)) == len(values)
        assert all(re.fullmatch("#[0-9a-f]{6}", value) for value in values)


def test_the_style_sheet_uses_only_variables_for_colours() -> None:
    sheet = (HERE / "page.css").read_text(encoding="utf-8")
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgb|hsl", sheet)
    named = set(re.findall(r"var\(--(\w+)\)", sheet))
    assert named <= set(COLOURS)
    assert all(f"--{name}:" in css_variables() for name in named)


@pytest.mark.parametrize("what", ["colour", "marker", "dashes"])
def test_colour_marker_and_line_each_distinguish_the_methods(what: str) -> None:
    values = [str(getattr(look, what)) for look in looks(METHODS).values()]
    assert len(set(values)) == len(METHODS)


@given(st.lists(st.sampled_from(["single", "vote@2", "vote@8", "best@4", "clones", "clones/1", "other"]), unique=True))
def test_common_methods_always_have_the_same_look(methods: list[str]) -> None:
    styles = looks(methods)
    assert set(styles) == set(methods)
    for method, colour in (("clones", "blue"), ("single", "vermillion"), ("best@4", "purple")):
        if method in methods and not (method == "clones" and "clones/1" in methods):
            assert styles[method].colour == colour
    assert len({(look.colour, look.marker, look.hollow) for look in styles.values()}) == len(methods)


def test_more_series_than_colours_still_differ() -> None:
    values = [indexed_look(place, turn=place // len(LINES)) for place in range(2 * len(LINES))]
    for one, other in combinations(values, 2):
        assert (one.colour, one.marker, one.hollow) != (other.colour, other.marker, other.hollow)


def test_an_svg_uses_css_variables_and_unique_ids() -> None:
    with drawing():
        figure, axes = canvas()
        axes.plot([1, 2], [1, 2], label='id="x" $y$ #0072b2 <b>', **looks(["clones"])["clones"].line())
        axes.legend()
        svg = to_svg(figure, name="some", label='a "picture"')
        png = to_png(figure)
    assert "var(--blue)" in svg
    assert 'aria-label="a &quot;picture&quot;"' in svg
    assert all(name.startswith("some.") for name in re.findall(r'\sid="([^"]+)"', re.sub(r">[^<]*<", "><", svg)))
    assert all(name.startswith("some.") for name in re.findall(r'(?:url\(|href=")#([^)"]+)', svg))
    assert "$y$ #0072b2 &lt;b&gt;" in svg  # text is not changed
    assert "DejaVu" not in svg
    assert png.startswith(b"\x89PNG")


def test_a_figure_keeps_its_arrangement_and_background_in_every_file() -> None:
    with drawing():
        figure, axes = canvas()
        axes.set_xlabel("a label that needs room")
        first = to_svg(figure, name="one", label="")
        place, background = axes.get_position().bounds, figure.get_facecolor()
        to_png(figure)
        assert to_svg(figure, name="one", label="") == first
    assert axes.get_position().bounds == place
    assert figure.get_facecolor() == background == (1.0, 1.0, 1.0, 1.0)
    assert place[1] > 0.11  # the label is inside the figure: the axes end above matplotlib's default of 0.11
