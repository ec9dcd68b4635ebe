"""The page of a card: does delegation pay for this model, where, and at what cost? Nothing is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ramet.evaluate.format import budget_label, method_label, percent, share
from ramet.evaluate.statistics import Estimate
from ramet.evaluate.suite.card import against_alone, conclusion, headline
from ramet.report.markup import Content, Markup, join, table, tag
from ramet.report.style import css_variables
from ramet.store.atomic import write_text

HERE = Path(__file__).parent
COSTS = {
    "generated": "generated",
    "prompt": "prompt",
    "critical_path": "critical path",
    "seconds": "seconds",
    "dollars": "money",
}
COLOURS = {"better": "green", "worse": "vermillion"}  # grey: no conclusion
# A plot of intervals: one row per part, from -100 to +100 points.
WIDTH, ROW, LABEL, NOTE = 820, 34, 110, 260
STYLE = """
.card { max-width: 60rem; margin: 0 auto; }
.card svg { width: 100%; height: auto; }
.card svg text { font: 13px system-ui, sans-serif; fill: var(--ink); }
.card svg .note { fill: var(--muted); }
@media (max-width: 40rem) { /* the plot without the numbers beside it, which are in the tables too */
  .card .plot { overflow: hidden; }
  .card .plot svg { width: 139%; max-width: none; }
  .card svg text { font-size: 18px; }
  .card svg .points { display: none; }
}
.card .facts { display: flex; flex-wrap: wrap; gap: .4rem 2rem; padding: 0; list-style: none; }
.card .facts b { font-weight: 600; }
"""


def write_page(card: Mapping[str, Any], file: Path) -> Path:
    """Write the page of a card."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, card_page(card))
    return file


def card_page(card: Mapping[str, Any]) -> str:
    name = str(card["model"]["model"])
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{name} · {card['suite']}"),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(css_variables() + (HERE / "page.css").read_text(encoding="utf-8") + STYLE)),
    ]
    body = tag(
        "div",
        tag("h1", f"{name}: {card['about']}"),
        tag("ul", [tag("li", line) for line in headline(card)], class_="lead"),
        _facts(card),
        tag("h2", "Delegation against one agent alone, under the same budget"),
        tag("p", "Difference of accuracy in points, with its 95% interval, item by item.", class_="small"),
        interval_plot(card["parts"]) if card["parts"] else None,
        _cost_table(card["parts"]) if card["parts"] else None,
        [_part(part) for part in card["parts"]],
        _skipped(card["skipped"]),
        class_="card",
    )
    page = join(tag("head", head), tag("body", body))
    return f"<!doctype html>\n{tag('html', page, lang='en')}\n"


def _facts(card: Mapping[str, Any]) -> Markup:
    model = card["model"]
    facts = {
        "suite": f"{card['suite']}, {card['size']}",
        "dialect": card["dialect"],
        "suite hash": str(card["hash"])[:16],
        "weights": str(model["model_sha256"])[:16] if "model_sha256" in model else None,
        "ramet": card["ramet"],
        "date": card["date"],
    }
    items = [tag("li", tag("b", f"{name} "), str(value)) for name, value in facts.items() if value is not None]
    return tag("ul", items, class_="facts")


def interval_plot(parts: Sequence[Mapping[str, Any]]) -> Markup:
    """A line per part: the difference between delegating and working alone, on a scale from -100 to +100 points."""
    height = ROW * (len(parts) + 1)
    rows = [_interval(part, ROW * place + ROW // 2) for place, part in enumerate(parts)]
    ticks = [_tick(value, height) for value in (-1.0, -0.5, 0.0, 0.5, 1.0)]
    label = "; ".join(f"{part['name']} {against_alone(part)['points']}" for part in parts)
    plot = tag("svg", ticks, rows, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=label)
    return tag("div", plot, class_="plot")


def _x(value: float) -> float:
    room = WIDTH - LABEL - NOTE
    return LABEL + room * (value + 1) / 2


def _tick(value: float, height: int) -> Content:
    x, text = f"{_x(value):.1f}", "0" if value == 0 else f"{100 * value:+.0f}"
    line = tag(
        "line", x1=x, x2=x, y1="4", y2=f"{height - ROW + 4}", stroke=f"var(--{'muted' if value == 0 else 'rule'})"
    )
    return [line, tag("text", text, x=x, y=f"{height - 10}", text_anchor="middle", class_="note")]


def _interval(part: Mapping[str, Any], y: int) -> Content:
    fact = against_alone(part)
    gap, colour = fact["difference"], COLOURS.get(conclusion(fact), "grey")
    ends = {"y1": str(y), "y2": str(y), "stroke": f"var(--{colour})"}
    middle = f"{_x(gap['value']):.1f}"
    return [
        tag("text", part["name"], x=str(LABEL - 12), y=str(y + 5), text_anchor="end"),
        tag("line", x1=f"{_x(gap['low']):.1f}", x2=f"{_x(gap['high']):.1f}", stroke_width="3", **ends),
        tag("circle", cx=middle, cy=str(y), r="6", fill=f"var(--{colour})"),
        tag(
            "text",
            f"{fact['points']}  {conclusion(fact)}",
            x=str(WIDTH - NOTE + 12),
            y=str(y + 5),
            class_="note points",
        ),
    ]


def _cost_table(parts: Sequence[Mapping[str, Any]]) -> Markup:
    facts = [against_alone(part) for part in parts]
    shown = [name for name in COSTS if any(fact["cost"][name] is not None for fact in facts)]
    rows = [
        [part["name"], *(_times(fact["cost"][name]) for name in shown)] for part, fact in zip(parts, facts, strict=True)
    ]
    caption = "Cost of delegating, as a multiple of the cost of one agent alone"
    return table(["", *(COSTS[name] for name in shown)], rows, caption=caption)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}×"


def _part(part: Mapping[str, Any]) -> Markup:
    head = ["method", "budget", "accuracy", "generated", "critical path", "prompt", "seconds", "nodes", "delegated"]
    priced = any(cell["dollars"] is not None for cell in part["cells"])
    cells = table(
        [*head, *(["money"] if priced else [])],
        [_cell(cell) for cell in part["cells"]],
        caption=f"{part['task']}, {part['items']} items; means per item",
        labels=2,
    )
    compared = table(
        ["clones against", "budget", "points", "verdict"],
        [
            [method_label(fact["against"]), budget_label(fact["budget"]), fact["points"], fact["verdict"]]
            for fact in part["comparisons"]
        ],
        caption="Compared item by item",
        labels=2,
        left=(3,),
    )
    return tag("section", tag("h2", part["name"]), tag("p", f"{part['about']}.".capitalize()), cells, compared)


def _cell(cell: Mapping[str, Any]) -> list[Content]:
    accuracy = Estimate(**cell["accuracy"])
    dollars = cell["dollars"]
    return [
        method_label(cell["method"]),
        budget_label(cell["budget"]),
        percent(accuracy),
        f"{cell['generated']['value']:,.0f}",
        f"{cell['critical_path']['value']:,.0f}",
        f"{cell['prompt']:,.0f}",
        f"{cell['seconds']:.1f}",
        f"{cell['nodes']:.1f}",
        share(cell["delegated"]),
        *([] if dollars is None else [f"${dollars:.5f}"]),
    ]


def _skipped(skipped: Sequence[Mapping[str, str]]) -> Content:
    if not skipped:
        return None
    items = [tag("li", tag("b", f"{part['name']}: "), part["reason"]) for part in skipped]
    return tag("section", tag("h2", "Not run"), tag("ul", items))
