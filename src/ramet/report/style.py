"""The style of plots: a palette for colour-blind readers, and never colour alone.

A method has the same colour, marker and line on the whole page. Plots are drawn in light colours; in the page these
become CSS variables, so that a dark page shows dark ones.
"""

# matplotlib's types are partial.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ramet.errors import ConfigError
from ramet.report.markup import CONTROL, escaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# name: (light, dark). The first six are from the palette of Okabe and Ito; tests check the contrast of all.
COLOURS = {
    "blue": ("#0072b2", "#56b4e9"),
    "vermillion": ("#d55e00", "#e69f00"),
    "green": ("#009e73", "#009e74"),
    "purple": ("#cc79a7", "#cc79a8"),
    "black": ("#000000", "#f0e442"),
    "grey": ("#6b7079", "#9aa1ab"),
    "ink": ("#1b1e23", "#e8eaed"),
    "muted": ("#565b63", "#aab0b9"),
    "rule": ("#d9dce0", "#3a3f46"),
    "shade": ("#eceef1", "#272b31"),
    "paper": ("#ffffff", "#15181c"),
}
LINES = ("blue", "vermillion", "green", "purple", "black", "grey")
TEXT = ("ink", "muted")
MARKERS = ("o", "s", "^", "D", "v", "X")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1.2)),
    (0, (6, 1.5, 1, 1.5)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (8, 3)),
)
FAMILIES = ("clones", "single", "vote", "best", "split", "chain")  # always have the same look
PNG_COLOURS = 128
WIDTH, HEIGHT = 4.7, 3.3  # inches of a plot: two fit side by side on a desktop, one on a phone


Fill = Literal["full", "none", "left", "bottom"]
HALF: tuple[Fill, ...] = ("left", "bottom")  # filled on that side


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Colour, marker and line of a series; each of them alone distinguishes two series."""

    colour: str  # a name in COLOURS
    marker: str
    dashes: Any
    fill: Fill = "full"  # of the marker

    @property
    def hollow(self) -> bool:
        return self.fill == "none"

    @property
    def light(self) -> str:
        return light(self.colour)

    def line(self, **more: Any) -> dict[str, Any]:
        """Keywords for `Axes.plot`; `more` override them."""
        face = light("paper") if self.hollow else self.light
        own = {"color": self.light, "marker": self.marker, "linestyle": self.dashes, "markerfacecolor": face}
        if self.fill in HALF:
            own |= {"fillstyle": self.fill, "markerfacecoloralt": light("paper")}
        return own | more


def light(name: str) -> str:
    """The light variant of a colour."""
    return COLOURS[name][0]


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """A look for each method; common methods always have the same.

    Example:
        looks(["vote@8"])["vote@8"].colour  # "green"
    """
    places: dict[str, int] = {}
    later: list[str] = []
    for method in dict.fromkeys(methods):
        family = re.split(r"[@/]", method)[0]
        place = FAMILIES.index(family) if family in FAMILIES else None
        if place is None or place in places.values():
            later.append(method)
        else:
            places[method] = place
    free = [place for place in range(len(LINES)) if place not in places.values()]
    for number, method in enumerate(later):
        places[method] = free[number] if number < len(free) else number - len(free)
    return {method: indexed_look(place, turn=_turn(method, place, places)) for method, place in places.items()}


def _turn(method: str, place: int, places: dict[str, int]) -> int:
    """How many methods before it have the same place."""
    return [name for name, other in places.items() if other == place].index(method)


def indexed_look(place: int, *, turn: int = 0) -> Look:
    """The look with this index; a second turn has other, hollow markers."""
    place %= len(LINES)
    marker = MARKERS[(place + 3 * turn) % len(MARKERS)]
    return Look(colour=LINES[place], marker=marker, dashes=DASHES[place], fill="none" if turn else "full")


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours as defined by WCAG, from 1 to 21.

    Example:
        contrast("#ffffff", "#000000")  # 21.0
    """
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def matplotlib_settings() -> dict[Any, Any]:
    """Settings for plain plots with reproducible bytes."""
    ink, muted, rule = light("ink"), light("muted"), light("rule")
    return {
        "axes.axisbelow": True,
        "axes.edgecolor": muted,
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.labelcolor": ink,
        "axes.linewidth": 0.8,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "figure.facecolor": light("paper"),
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "grid.color": rule,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "legend.handlelength": 2.6,
        "lines.linewidth": 1.5,
        "lines.markersize": 5.5,
        "svg.fonttype": "none",
        "svg.hashsalt": "ramet",
        "text.color": ink,
        "text.parse_math": False,  # a dollar sign in a goal is a dollar sign
        "xtick.color": muted,
        "ytick.color": muted,
    }


@contextmanager
def drawing() -> Generator[None]:
    """Apply our settings to figures. Characters missing from the font are drawn as boxes, without a warning."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install 'ramet[report]'") from None
    with matplotlib.rc_context(matplotlib_settings()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def canvas(*, width: float = WIDTH, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """A figure with one panel, without a display."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def arrange(figure: Figure) -> None:
    """Place axes, labels and legends, once for all files of the figure.

    Saving a figure arranges it again, with text measured by the slower SVG renderer, and draws it twice for that.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    engine = figure.get_layout_engine()
    if engine is not None:
        FigureCanvasAgg(figure)  # becomes the canvas of the figure: its renderer measures text
        engine.execute(figure)
        figure.set_layout_engine("none")


def to_png(figure: Figure) -> bytes:
    """The figure with a palette of its own, which is a third of the size."""
    from PIL import Image

    drawn, sink = io.BytesIO(), io.BytesIO()
    arrange(figure)
    figure.savefig(drawn, format="png", dpi=150)
    image = Image.open(drawn).convert("RGB")
    image.quantize(PNG_COLOURS, dither=Image.Dither.NONE).save(sink, format="png", optimize=True)
    return sink.getvalue()


def to_svg(figure: Figure, *, name: str, label: str) -> str:
    """The figure as an SVG element: colours as CSS variables, the font of the page, ids prefixed with `name`."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    sink = io.StringIO()
    arrange(figure)
    background = figure.get_facecolor()
    figure.set_facecolor("none")
    FigureCanvasSVG(figure).print_svg(sink, metadata={"Date": None, "Creator": None, "Format": None})
    figure.set_facecolor(background)
    text = CONTROL.sub("\N{REPLACEMENT CHARACTER}", sink.getvalue())
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<defs>\s*</defs>", "", text, flags=re.DOTALL)
    return _add_label(re.sub(r"<[^>]*>", lambda match: _adapt_element(match[0], name), text), label)


def _adapt_element(element: str, name: str) -> str:
    """Ids, links, fonts and colours of one tag. Text between tags is not touched."""
    element = re.sub(r'\bid="([^"]+)"', rf'id="{name}.\1"', element)
    element = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}.\1)", element)
    element = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{name}.\1"', element)
    element = re.sub(r' xmlns(:\w+)?="[^"]*"', "", element)
    element = re.sub(r'(?<= d=")[^"]+', lambda path: _shorten(path[0]), element)
    element = element.replace("font-family: 'DejaVu Sans'", "font-family: inherit")
    element = re.sub(r"(font: (?:\w+ )?[\d.]+px) 'DejaVu Sans'[^;\"]*", r"\1 sans-serif; font-family: inherit", element)
    names = {on_paper: f"var(--{colour})" for colour, (on_paper, _) in COLOURS.items()}
    return re.sub(r"#[0-9a-f]{6}\b", lambda match: names.get(match[0], match[0]), element)


def _shorten(path: str) -> str:
    """The coordinates of a path in hundredths of a point, on one line."""
    return re.sub(r"-?\d+\.\d+", lambda number: f"{round(float(number[0]), 2):g}", " ".join(path.split()))


def _add_label(text: str, label: str) -> str:
    """Keep only the view box, so that the element scales, and add a label for screen readers."""
    end = text.index(">")
    box = re.search(r'viewBox="[^"]+"', text[:end])
    return f'<svg {box[0] if box else ""} role="img" aria-label="{escaped(label)}"{text[end:].rstrip()}'


def css_variables() -> str:
    """The colours as CSS variables, light and dark."""
    on_paper = " ".join(f"--{name}: {pair[0]};" for name, pair in COLOURS.items())
    on_screen = " ".join(f"--{name}: {pair[1]};" for name, pair in COLOURS.items())
    return (
        f":root {{ color-scheme: light dark; {on_paper} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {on_screen} }} }}\n"
    )
